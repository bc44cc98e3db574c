//! Not asking again what has been answered: a gang that was blocked stays so until something
//! happens that could help it. What that is depends on what stopped it: room for one of its
//! classes, or anything that its queue or the cluster's rules may have to do with. What happens to
//! the gang itself always counts (`settle` forgets the answer).

use std::sync::Arc;

use resources::report::{PlacementReport, Verdict};

use crate::class::ClassIx;
use crate::gang::GangKey;
use crate::report::Obstacle;
use crate::resource::Ix;
use crate::state::Scheduler;

use super::Attempt;

/// How many answers are given anew in one plan only because their wording may be out of date.
const REWORDED_MAX: usize = 8;

/// A blocked gang's answer and what it waits for.
#[derive(Clone, Debug)]
pub(crate) struct Parked {
    obstacle: Obstacle,
    /// Room for these classes; none where room is not what it waits for.
    classes: Vec<ClassIx>,
    /// The number of the last change when it was asked.
    clock: u64,
    /// How often something had been given back or allowed by then.
    eased: u64,
    /// How much was free then of the resource whose free amount the answer names.
    free: Option<(Ix, i64)>,
    /// The report on it is made of this answer: how many had gone past it by then.
    reported: Option<usize>,
}

impl Parked {
    /// Was room all that was lacking?
    pub(crate) fn lacks_room(&self) -> bool {
        self.obstacle.is_room()
    }

    /// Was it what no end of others changes?
    pub(crate) fn is_lasting(&self) -> bool {
        self.obstacle.is_lasting()
    }

    /// Notes that the last report is made of this answer.
    pub(crate) fn report_stands(&mut self, overtaken: usize) {
        self.reported = Some(overtaken);
    }

    /// Was it a queue's limit?
    pub(crate) fn over_quota(&self) -> bool {
        self.obstacle.verdict == Verdict::QuotaExceeded
    }

    /// Was it that somebody before it would have started later?
    pub(crate) fn waits_behind(&self) -> bool {
        self.obstacle.verdict == Verdict::Waiting
    }

    /// The classes that room is lacking for.
    pub(crate) fn classes(&self) -> &[ClassIx] {
        &self.classes
    }
}

impl Scheduler {
    /// The last answer to a gang, if it must be the same now.
    pub(super) fn same_answer(&mut self, key: &GangKey) -> Option<Obstacle> {
        let gang = self.gangs.get(key)?;
        let parked = gang.parked.as_ref()?;
        if gang.held_until.is_some() {
            return None;
        }
        let clock = parked.clock;
        let mut reworded = false;
        if parked.classes.is_empty() {
            if parked.eased != self.eased {
                return None;
            }
            // Others may have taken what it could have had by its rights.
            reworded = self.clock > clock;
        }
        for i in 0..parked.classes.len() {
            let class = *self.gangs.get(key)?.parked.as_ref()?.classes.get(i)?;
            self.refresh(class);
            let view = self.views.get(&class)?;
            if view.gained > clock {
                return None;
            }
            reworded |= view.changed > clock;
        }
        // Of what is free, others may have taken some that was of no use to the class, or left it.
        let free = self.gangs.get(key)?.parked.as_ref()?.free;
        reworded |= free.is_some_and(|(ix, free)| self.idle(ix) != free);
        if reworded && let Some(obstacle) = self.same_in_new_words(key) {
            return Some(obstacle);
        }
        if reworded && self.reworded < REWORDED_MAX {
            self.reworded += 1;
            return None;
        }
        let parked = self.gangs.get(key)?.parked.as_ref()?;
        Some(parked.obstacle.clone())
    }

    /// The answer of a gang of one class that all nodes together have too little room for, as the
    /// room is now: what an attempt would say, without looking at each member.
    fn same_in_new_words(&mut self, key: &GangKey) -> Option<Obstacle> {
        let gang = self.gangs.get(key)?;
        let parked = gang.parked.as_ref()?;
        let ([class], true) = (&parked.classes[..], parked.obstacle.is_plain_room()) else {
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
        let parked = self.gangs.get_mut(key)?.parked.as_mut()?;
        parked.obstacle = obstacle.clone();
        parked.clock = clock;
        parked.free = free;
        parked.reported = None;
        Some(obstacle)
    }

    /// The resource whose free amount an answer names, and how much of it is free now.
    fn free_for(&self, obstacle: &Obstacle) -> Option<(Ix, i64)> {
        let ix = obstacle.counts_free()?;
        Some((ix, self.idle(ix)))
    }

    /// The last report on a gang, if it gave the same answer since.
    pub(crate) fn same_report(&self, key: &GangKey) -> Option<&Arc<PlacementReport>> {
        let gang = self.gangs.get(key)?;
        let same = gang.parked.as_ref()?.reported? == gang.overtaken;
        gang.report.as_ref().filter(|_| same)
    }

    /// Has a report made anew: what it says of the time to come is out of date.
    pub(crate) fn forget_report(&mut self, key: &GangKey) {
        let Some(gang) = self.gangs.get_mut(key) else {
            return;
        };
        if let Some(parked) = gang.parked.as_mut() {
            parked.reported = None;
        }
        if gang.report.is_some() {
            self.outdated.insert(key.clone());
        }
    }

    /// Keeps a report for as long as the answer stays the same.
    pub(crate) fn keep_report(&mut self, key: &GangKey, report: &Arc<PlacementReport>) {
        if let Some(gang) = self.gangs.get_mut(key) {
            if let Some(parked) = gang.parked.as_mut() {
                parked.reported = Some(gang.overtaken);
            }
            gang.report = Some(report.clone());
        }
    }

    /// Remembers what came of an attempt.
    pub(super) fn park(&mut self, key: &GangKey, attempt: &Attempt) {
        let parked = match attempt {
            Attempt::Blocked(obstacle) => Some(obstacle.clone()),
            Attempt::Nothing | Attempt::Placed(..) => None,
        };
        let Some(gang) = self.gangs.get(key) else {
            return;
        };
        if parked.is_none() && gang.parked.is_none() {
            return;
        }
        let parked = parked.map(|obstacle| {
            let kinds = gang.kinds.keys().copied();
            let classes = kinds.filter(|_| obstacle.is_room()).collect();
            Box::new(Parked {
                free: self.free_for(&obstacle),
                obstacle,
                classes,
                clock: self.clock,
                eased: self.eased,
                reported: None,
            })
        });
        if let Some(gang) = self.gangs.get_mut(key) {
            gang.parked = parked;
        }
    }
}
