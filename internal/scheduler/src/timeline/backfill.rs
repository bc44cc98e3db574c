//! Backfill: which gangs may start although a gang before them waits. A gang may if it leaves the
//! head, at its shadow time, what it needs: the gang either ends before the shadow time, or takes
//! room that the head does not need then. A gang that was refused on the nodes where it was tried
//! first is tried once more on nodes that the head will not use.
//!
//! Cost: the shadow is computed once for each change of the cluster. Gangs with the same likeness
//! as one that was refused are refused without a trial.
//!
//! Example: the head needs 4 GPUs and gets them in 60 minutes, when two nodes of 4 GPUs will be
//! free. A gang of 4 GPUs without a walltime starts on one of the nodes; a second one is held back.
//!
//! Tests: `no_backfilled_gang_delays_the_head` in `tests/timeline_properties.rs`, and
//! `tests/timeline.rs` by table.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::head::Head;
use super::shadow::{Ends, Shadow};
use crate::class::ClassIx;
use crate::evict::transaction::PodPlacement;
use crate::gang::{Gang, GangKey};
use crate::node::NodeIx;
use crate::place::{Attempt, Placement};
use crate::report::Obstacle;
use crate::resource::Ix;
use crate::state::Scheduler;

/// The properties by which two gangs delay the head alike: the class of the first waiting member,
/// how many members wait and how many are placed, and what they request together.
pub(super) type BackfillKey = (ClassIx, usize, usize, Vec<(Ix, i64)>);

impl Scheduler {
    /// Drops the shadow, because its inputs changed.
    pub(crate) fn outdate_shadow(&mut self) {
        self.timeline.shadow = None;
        if !std::mem::take(&mut self.timeline.denied).is_empty() {
            // The gangs that were held back for it may be tried again.
            self.releases += 1;
        }
    }

    /// Computes the head's shadow if it is missing or out of date.
    pub(super) fn update_shadow(&mut self, now: Timestamp) {
        let clock = self.clock;
        let current = |shadow: &Shadow| shadow.clock == clock;
        if self.timeline.shadow.as_ref().is_some_and(current) {
            return;
        }
        self.outdate_shadow();
        let Some(ask) = self.timeline.head.as_ref().map(|head| head.ask.clone()) else {
            return;
        };
        self.timeline.shadow = self.compute_shadow(&ask, now, Ends::Latest);
    }

    /// Before a gang is tried: why it is held back for the head, if a gang like it was.
    pub(crate) fn held_back(&mut self, key: &GangKey, now: Timestamp) -> Option<Obstacle> {
        let clock = self.clock;
        let stale = |shadow: &Shadow| shadow.clock != clock;
        if self.timeline.shadow.as_ref().is_some_and(stale) {
            self.outdate_shadow();
        }
        let head = self.timeline.head.as_ref()?;
        if head.key == *key {
            return None;
        }
        self.update_shadow(now);
        if self.timeline.denied.is_empty() || self.ends_before(key, now) {
            return None;
        }
        let gang = self.gangs.get(key)?;
        let head = self.timeline.head.as_ref()?;
        let comparison = self.compared_with_head(gang)?;
        let denied = self.timeline.denied.contains(&comparison)
            && !self.goes_before(gang, head, comparison.0, comparison.1);
        denied.then(|| Obstacle::behind(&head.key, gang.total.have()))
    }

    /// After a gang was tried: takes back placements that would delay the head.
    pub(crate) fn admit_behind_head(
        &mut self,
        key: &GangKey,
        attempt: Attempt,
        now: Timestamp,
        beyond: usize,
    ) -> Attempt {
        let Some(mut shadow) = self.timeline.shadow.take() else {
            return attempt;
        };
        // A trial that was undone changed nothing.
        shadow.clock = self.clock;
        let Attempt::Placed(placed) = attempt else {
            self.timeline.shadow = Some(shadow);
            return attempt;
        };
        let (gang, head) = (self.gangs.get(key), self.timeline.head.as_ref());
        let (Some(gang), Some(head)) = (gang, head.filter(|head| head.key != *key)) else {
            // The head itself started.
            return Attempt::Placed(placed);
        };
        if self.ends_before_shadow(gang, &shadow, now) {
            self.note_ended_before(&mut shadow, &placed.members);
        } else if !self.subtract_from_shadow(&mut shadow, &placed.members) {
            let class = placed
                .members
                .first()
                .map_or(0, |placement| placement.class);
            if !self.goes_before(gang, head, class, 0) {
                let count = placed.members.len();
                let have = gang.total.have().saturating_sub(count);
                let obstacle = Obstacle::behind(&head.key, have);
                self.withdraw(key, placed);
                let elsewhere = self.elsewhere(key, &mut shadow, class, count, now, beyond);
                shadow.clock = self.clock;
                self.timeline.shadow = Some(shadow);
                if let Some(attempt) = elsewhere {
                    return attempt;
                }
                let gang = self.gangs.get(key);
                let comparison = gang.and_then(|gang| self.compared_with_head(gang));
                self.timeline.denied.extend(comparison);
                return Attempt::Blocked(obstacle);
            }
            // The head waits longer for this gang.
            shadow.clock = u64::MAX;
        }
        self.timeline.shadow = Some(shadow);
        Attempt::Placed(placed)
    }

    /// Whether the gang's latest end is before the shadow time.
    fn ends_before_shadow(&self, gang: &Gang, shadow: &Shadow, now: Timestamp) -> bool {
        let runs = self.timeline.at_most(&self.facts_of(gang));
        runs.is_some_and(|runs| now.as_second().saturating_add(runs) <= shadow.at)
    }

    fn ends_before(&self, key: &GangKey, now: Timestamp) -> bool {
        match (self.gangs.get(key), &self.timeline.shadow) {
            (Some(gang), Some(shadow)) => self.ends_before_shadow(gang, shadow, now),
            _ => true,
        }
    }

    /// Whether the gang, with `more` members, precedes the head's reservation: by a higher
    /// priority, or because its queue stays within its deserved amount where the head's queue does
    /// not.
    fn goes_before(&self, gang: &Gang, head: &Head, class: ClassIx, more: usize) -> bool {
        let Some(payer) = gang.payer else {
            return false;
        };
        let rank = (self.queue_priority(payer.queue), self.priority_of(gang));
        let demand = self.classes.get(class).demand();
        let right = |queue| self.queues.within_deserved(queue, demand, more as i64);
        rank > head.rank || !head.by_right && right(payer.queue)
    }

    /// Tries a gang that would delay the head once more, on nodes that the head will not use, if
    /// these have room for enough members of the class.
    fn elsewhere(
        &mut self,
        key: &GangKey,
        shadow: &mut Shadow,
        class: ClassIx,
        members: usize,
        now: Timestamp,
        beyond: usize,
    ) -> Option<Attempt> {
        self.refresh(class);
        let view = self.views.get(&class)?;
        let gained = view.gained;
        let (mut room, mut curtain) = (0, Vec::new());
        for (at, held) in shadow.each() {
            let holds = view.holds(at);
            if held == 0 {
                room += u64::from(holds);
            } else if holds > 0 {
                curtain.push(at);
            }
        }
        if room < members as u64 {
            return None;
        }
        self.draw(&curtain, true);
        let attempt = self.attempt_with_kept(key, now, beyond);
        self.draw(&curtain, false);
        self.refresh(class);
        if let Some(view) = self.views.get_mut(&class) {
            view.gained = gained;
        }
        match attempt {
            Attempt::Placed(placed) if self.subtract_from_shadow(shadow, &placed.members) => {
                Some(Attempt::Placed(placed))
            }
            Attempt::Placed(placed) => {
                self.withdraw(key, placed);
                None
            }
            _ => None,
        }
    }

    /// Hides nodes from placement, or shows them again.
    fn draw(&mut self, nodes: &[NodeIx], drawn: bool) {
        for at in nodes {
            self.nodes[*at].closed_for_attempt = drawn;
            self.touch(*at);
        }
    }

    /// Undoes placements as if they had not been tried, but for the reservations that they used up
    /// ([`Scheduler::withdraw`]).
    pub(crate) fn withdraw_placements(&mut self, key: &GangKey, placed: &[Placement]) {
        let releases = self.releases;
        let classes: BTreeSet<ClassIx> = placed.iter().map(|placement| placement.class).collect();
        let gained: Vec<(ClassIx, u64)> = classes
            .into_iter()
            .filter_map(|class| Some((class, self.views.get(&class)?.gained)))
            .collect();
        for placement in placed {
            self.set_placement(&placement.pod, PodPlacement::pending());
        }
        self.settle(key);
        for (class, gained) in gained {
            self.refresh(class);
            if let Some(view) = self.views.get_mut(&class) {
                view.gained = gained;
            }
        }
        self.releases = releases;
    }

    fn compared_with_head(&self, gang: &Gang) -> Option<BackfillKey> {
        let (_, first) = gang.pending.first()?;
        Some((
            self.pods.get(first)?.class,
            gang.total.pending,
            gang.total.have(),
            gang.waiting
                .iter()
                .filter(|(_, amount)| *amount != 0)
                .collect(),
        ))
    }
}
