//! Requeue hints: a blocked gang is not tried again until an event occurs that could help it.
//!
//! Method: the last obstacle is cached with the change counters at that time. A gang blocked by
//! missing room is retried when a node gained room for one of its classes. A gang blocked by
//! anything else is retried when something was released or a rule changed. Any change of the gang
//! itself drops the cached answer (`settle`).
//!
//! Cost: the number of the gang's classes.
//!
//! Tests: `tests/incremental_plans.rs` compares with a scheduler that asks all gangs.

use std::sync::Arc;

use resources::report::{PlacementReport, WaitReason};

use crate::class::ClassIx;
use crate::gang::GangKey;
use crate::report::Obstacle;
use crate::resource::Ix;
use crate::state::Scheduler;

use super::Attempt;

/// The most gangs that are tried again in one plan only because the numbers in their message are
/// stale.
const RENEWED_MAX: usize = 8;

/// A blocked gang's cached answer and the events that would invalidate it.
#[derive(Clone, Debug)]
pub(crate) struct BlockedAnswer {
    obstacle: Obstacle,
    /// The classes that lack room; empty if the gang does not wait for room.
    classes: Vec<ClassIx>,
    /// The change counter at the time of the attempt.
    clock: u64,
    /// The release counter at that time.
    releases: u64,
    /// The free amount at that time of the resource that the message names.
    free: Option<(Ix, i64)>,
    /// The value of `overtaken` in the report made of this answer, if one was made.
    reported: Option<usize>,
}

impl BlockedAnswer {
    /// True if only room was missing.
    pub(crate) fn lacks_room(&self) -> bool {
        self.obstacle.is_room()
    }

    /// True if the end of other pods cannot change it.
    pub(crate) fn is_lasting(&self) -> bool {
        self.obstacle.is_lasting()
    }

    /// Records that the last report is made of this answer.
    pub(crate) fn report_stands(&mut self, overtaken: usize) {
        self.reported = Some(overtaken);
    }

    /// True if a queue's limit was the reason.
    pub(crate) fn over_quota(&self) -> bool {
        self.obstacle.verdict == WaitReason::QuotaExceeded
    }

    /// True if the gang waits because it would delay the gang that room is reserved for.
    pub(crate) fn waits_behind(&self) -> bool {
        self.obstacle.verdict == WaitReason::Waiting
    }

    /// The classes that lack room.
    pub(crate) fn classes(&self) -> &[ClassIx] {
        &self.classes
    }
}

impl Scheduler {
    /// The cached answer, if a new attempt would give the same one.
    pub(super) fn cached_answer(&mut self, key: &GangKey) -> Option<Obstacle> {
        let gang = self.gangs.get(key)?;
        let blocked_answer = gang.blocked_answer.as_ref()?;
        if gang.held_until.is_some() {
            return None;
        }
        let clock = blocked_answer.clock;
        let mut renewed = false;
        if blocked_answer.classes.is_empty() {
            if blocked_answer.releases != self.releases {
                return None;
            }
            // Another pod may have taken capacity that this gang was entitled to: the message may
            // be stale.
            renewed = self.clock > clock;
        }
        for i in 0..blocked_answer.classes.len() {
            let class = *self
                .gangs
                .get(key)?
                .blocked_answer
                .as_ref()?
                .classes
                .get(i)?;
            self.refresh(class);
            let view = self.views.get(&class)?;
            if view.gained > clock {
                return None;
            }
            renewed |= view.changed > clock;
        }
        // Free capacity that this class cannot use may have changed; the message names the amount.
        let free = self.gangs.get(key)?.blocked_answer.as_ref()?.free;
        renewed |= free.is_some_and(|(ix, free)| self.idle(ix) != free);
        if renewed && let Some(obstacle) = self.renumbered_answer(key) {
            return Some(obstacle);
        }
        if renewed && self.renewed < RENEWED_MAX {
            self.renewed += 1;
            return None;
        }
        let blocked_answer = self.gangs.get(key)?.blocked_answer.as_ref()?;
        Some(blocked_answer.obstacle.clone())
    }

    /// The answer, with current numbers, for a gang of one class that total capacity is too small
    /// for. Equal to what an attempt would answer, without reading each member.
    fn renumbered_answer(&mut self, key: &GangKey) -> Option<Obstacle> {
        let gang = self.gangs.get(key)?;
        let blocked_answer = gang.blocked_answer.as_ref()?;
        let ([class], true) = (
            &blocked_answer.classes[..],
            blocked_answer.obstacle.is_plain_room(),
        ) else {
            return None;
        };
        let (class, have) = (*class, gang.total.have());
        let need = gang.minimum(key).saturating_sub(have);
        let room = usize::try_from(self.views.get(&class)?.room).unwrap_or(usize::MAX);
        if room >= need {
            return None;
        }
        let obstacle = self.no_room(class, need - room, have + room);
        let (clock, free) = (self.clock, self.free_for(&obstacle));
        let blocked_answer = self.gangs.get_mut(key)?.blocked_answer.as_mut()?;
        blocked_answer.obstacle = obstacle.clone();
        blocked_answer.clock = clock;
        blocked_answer.free = free;
        blocked_answer.reported = None;
        Some(obstacle)
    }

    /// The resource whose free amount the answer names, and that amount now.
    fn free_for(&self, obstacle: &Obstacle) -> Option<(Ix, i64)> {
        let ix = obstacle.counts_free()?;
        Some((ix, self.idle(ix)))
    }

    /// The last report on a gang, if it is still correct.
    pub(crate) fn same_report(&self, key: &GangKey) -> Option<&Arc<PlacementReport>> {
        let gang = self.gangs.get(key)?;
        let same = gang.blocked_answer.as_ref()?.reported? == gang.overtaken;
        gang.report.as_ref().filter(|_| same)
    }

    /// Marks a gang's report as stale because its start estimate changed.
    pub(crate) fn forget_report(&mut self, key: &GangKey) {
        let Some(gang) = self.gangs.get_mut(key) else {
            return;
        };
        if let Some(blocked_answer) = gang.blocked_answer.as_mut() {
            blocked_answer.reported = None;
        }
        if gang.report.is_some() {
            self.outdated.insert(key.clone());
        }
    }

    /// Keeps a report for as long as the answer stays the same.
    pub(crate) fn keep_report(&mut self, key: &GangKey, report: &Arc<PlacementReport>) {
        if let Some(gang) = self.gangs.get_mut(key) {
            if let Some(blocked_answer) = gang.blocked_answer.as_mut() {
                blocked_answer.reported = Some(gang.overtaken);
            }
            gang.report = Some(report.clone());
        }
    }

    /// Caches the result of an attempt.
    pub(super) fn park(&mut self, key: &GangKey, attempt: &Attempt) {
        let blocked_answer = match attempt {
            Attempt::Blocked(obstacle) => Some(obstacle.clone()),
            Attempt::Nothing | Attempt::Placed(..) => None,
        };
        let Some(gang) = self.gangs.get(key) else {
            return;
        };
        if blocked_answer.is_none() && gang.blocked_answer.is_none() {
            return;
        }
        let blocked_answer = blocked_answer.map(|obstacle| {
            let kinds = gang.kinds.keys().copied();
            let classes = kinds.filter(|_| obstacle.is_room()).collect();
            Box::new(BlockedAnswer {
                free: self.free_for(&obstacle),
                obstacle,
                classes,
                clock: self.clock,
                releases: self.releases,
                reported: None,
            })
        });
        if let Some(gang) = self.gangs.get_mut(key) {
            gang.blocked_answer = blocked_answer;
        }
    }
}
