//! Preemption by quota, for queues whose rules set a borrowing policy: what a queue holds above its
//! own quota is borrowed, and the queues that lent it may take it back.
//!
//! Method: from the preemptor's queue upwards, once its request fits in the quota of a subtree,
//! queues outside that subtree that borrow may lose, even if the preemptor's queue borrows itself
//! (they are preempted "with an advantage"). Without an advantage the preemptor's queue must end
//! within its own quota, or its rules must permit preemption while it borrows, and then only of
//! gangs below its priority and at most at a threshold. A queue within its quota loses nothing to
//! other queues. Candidates of queues with an advantage come first, then those without, then the
//! own queue's. The cost is one comparison of the queues with candidates for each victim.
//!
//! Example: queues `a` and `b` of one cohort have a quota of 4 GPUs each; `b` runs one-GPU
//! and so borrows 3. A gang of 4 GPUs in `a` fits in the quota of `a`: it takes 3 GPUs from `b`,
//! and `b` keeps its quota.
//!
//! Test: Kueue's preemption cases in `tests/conformance/preemption.rs`.

use jiff::Timestamp;

use super::NoEvictions;
use super::candidates::{CandidateScope, Cursor, EvictionUnit};
use super::loss_bound::EvictableGangs;
use super::search::{Candidates, MinimumDemand, NoVictims, VictimSet};
use crate::gang::GangKey;
use crate::plan::EvictionReason;
use crate::queue::rules::{BorrowPolicy, BorrowWithinCohort, ReclaimWithinCohort, WithinQueue};
use crate::queue::{QueueIx, Queues, ROOT};
use crate::resource::{Demand, Ix, PODS};
use crate::state::Scheduler;

/// A queue that the preemptor may take from.
struct QuotaSource {
    /// The queues from this one up to, and without, the queue that it has in common with the
    /// preemptor.
    way: Vec<QueueIx>,
    cursor: Cursor,
    /// Whether the preemptor's request fits in the quota of a subtree that this queue is not part
    /// of.
    advantage: bool,
    own: bool,
}

/// The queues with candidates, searched with or without borrowing.
struct QuotaSources {
    own: QueueIx,
    demand: Demand,
    short: Vec<Ix>,
    all: Vec<QuotaSource>,
    /// Whether the preemptor's queue may end above its own quota.
    borrowing: bool,
    /// Preemption while borrowing: victims have a priority below the first value and at most the
    /// second.
    while_borrowing: Option<(i32, Option<i32>)>,
    now: Timestamp,
}

impl QuotaSources {
    fn new(
        state: &Scheduler,
        own: QueueIx,
        ask: &MinimumDemand,
        own_limit: CandidateScope,
        priority: i32,
        now: Timestamp,
    ) -> QuotaSources {
        let queues = &state.queues;
        let rules = queues
            .rules(own)
            .map(|rules| rules.preemption.clone())
            .unwrap_or_default();
        let borrow = rules.borrow.flatten();
        let mut all = QuotaSources {
            own,
            demand: ask.demand.clone(),
            short: state.short_of(ask),
            all: Vec::new(),
            borrowing: false,
            while_borrowing: borrow
                .filter(|borrow: &BorrowWithinCohort| borrow.policy == BorrowPolicy::LowerPriority)
                .map(|borrow| (priority, borrow.max_priority_threshold)),
            now,
        };
        let limit = match rules.reclaim {
            ReclaimWithinCohort::Any => Some(CandidateScope::None),
            ReclaimWithinCohort::LowerPriority => Some(CandidateScope::Below(priority)),
            ReclaimWithinCohort::Never => None,
        };
        if let Some(limit) = limit {
            for name in state.victims.keys() {
                let Some(queue) = queues.find(name).filter(|queue| *queue != own) else {
                    continue;
                };
                all.add(queues, name, queue, limit);
            }
        }
        // Queues with an advantage first, then those without, then the preemptor's own queue.
        all.all.sort_by_key(|source| !source.advantage);
        if own_limit != CandidateScope::NoGang {
            all.all.push(QuotaSource {
                way: Vec::new(),
                cursor: Cursor::new(queues.name(own), own_limit),
                advantage: false,
                own: true,
            });
        }
        all
    }

    fn add(&mut self, queues: &Queues, name: &str, queue: QueueIx, limit: CandidateScope) {
        let fork = queues.lowest_common_level(self.own, queue);
        if fork.above == ROOT {
            // Separate trees lend each other nothing.
            return;
        }
        let way: Vec<QueueIx> = queues
            .path(queue)
            .take_while(|at| *at != fork.above)
            .collect();
        if way.is_empty() || way.iter().any(|at| self.within_quota(queues, *at)) {
            return;
        }
        let kept = |at: &QueueIx| queues.rules(*at).is_some_and(|rules| !rules.reclaimable);
        if way.iter().any(kept) {
            return;
        }
        let advantage = queues
            .path(self.own)
            .take_while(|at| *at != fork.above)
            .any(|at| self.fits_quota(queues, at));
        self.all.push(QuotaSource {
            way,
            cursor: Cursor::for_others(name, limit),
            advantage,
            own: false,
        });
    }

    fn fits_quota(&self, queues: &Queues, at: QueueIx) -> bool {
        let mut asked = self.demand.0.iter().filter(|(ix, _)| *ix != PODS);
        asked.all(|(ix, amount)| queues.quota_left(at, *ix, self.own, *amount) >= 0)
    }

    /// Whether the queue holds no more than its quota of the resources that the preemptor lacks.
    fn within_quota(&self, queues: &Queues, at: QueueIx) -> bool {
        self.short
            .iter()
            .all(|ix| queues.held(at, *ix) <= queues.deserved(at, *ix))
    }

    /// Whether a queue of this kind has a candidate left.
    fn any(&self, state: &Scheduler, kind: impl Fn(&QuotaSource) -> bool) -> bool {
        self.all
            .iter()
            .any(|source| kind(source) && source.cursor.clone().next(state, self.now).is_some())
    }

    /// The reason for which the candidate may be evicted; none if it may not.
    fn grounds(&self, source: &QuotaSource, priority: i32) -> Option<EvictionReason> {
        if source.own {
            return Some(EvictionReason::Preempted);
        }
        if source.advantage {
            return Some(EvictionReason::Reclaimed);
        }
        let below = |(own, most): (i32, Option<i32>)| {
            priority < own && most.is_none_or(|most| priority <= most)
        };
        match self.while_borrowing {
            Some(bounds) if below(bounds) => Some(EvictionReason::ReclaimedWhileBorrowing),
            _ if self.borrowing => None,
            _ => Some(EvictionReason::Reclaimed),
        }
    }

    fn spared_until(&self) -> Option<Timestamp> {
        let all = self.all.iter();
        all.filter_map(|source| source.cursor.spared_until).min()
    }

    fn again(&mut self, borrowing: bool) {
        self.borrowing = borrowing;
        for source in &mut self.all {
            source.cursor.rewind();
        }
    }
}

impl Candidates for QuotaSources {
    fn next(&mut self, state: &mut Scheduler) -> Option<EvictionUnit> {
        loop {
            // From the first kind of queue that has candidates: the lowest priority, then the last
            // to start.
            let mut best: Option<(bool, usize, super::candidates::CandidatePosition)> = None;
            for at in 0..self.all.len() {
                let source = &self.all[at];
                if source.own && best.is_some() {
                    break;
                }
                if best
                    .as_ref()
                    .is_some_and(|(advantage, ..)| *advantage != source.advantage)
                {
                    break;
                }
                let queues = &state.queues;
                if !source.own && source.way.iter().any(|way| self.within_quota(queues, *way)) {
                    continue;
                }
                let now = self.now;
                let source = &mut self.all[at];
                let Some(turn) = source.cursor.peek(state, now) else {
                    continue;
                };
                if best.as_ref().is_none_or(|(_, _, old)| turn < *old) {
                    best = Some((source.advantage, at, turn));
                }
            }
            let (_, at, turn) = best?;
            let mut unit = self.all[at].cursor.next(state, self.now)?;
            let uses = unit.pods.iter().any(|pod| state.uses_any(pod, &self.short));
            let why = self.grounds(&self.all[at], turn.priority());
            if let Some(why) = why.filter(|_| uses) {
                unit.why = why;
                return Some(unit);
            }
        }
    }

    fn reach(&self, state: &Scheduler) -> Option<EvictableGangs> {
        let gangs = self
            .all
            .iter()
            .flat_map(|source| source.cursor.gangs(state));
        Some(EvictableGangs {
            gangs: gangs.cloned().collect(),
            own: self.all.iter().any(|source| source.own),
        })
    }

    fn admits(&self, state: &Scheduler) -> bool {
        self.borrowing || self.fits_quota(&state.queues, self.own)
    }
}

impl Scheduler {
    /// Searches victims for a gang by quota, in its own queue and in others.
    pub(super) fn evict_by_quota(
        &mut self,
        key: &GangKey,
        ask: &MinimumDemand,
        now: Timestamp,
    ) -> Result<VictimSet, NoEvictions> {
        let Some((gang, payer)) = self.gangs.get(key).zip(ask.payer) else {
            return Err(NoEvictions::at_once("the gang no longer exists"));
        };
        let (own, priority) = (payer.queue, self.priority_of(gang));
        let own_limit = self.preemption_limit(key, gang);
        let mut sources = QuotaSources::new(self, own, ask, own_limit, priority, now);
        let others = sources.any(self, |source| !source.own);
        let advantage = sources.any(self, |source| !source.own && source.advantage);
        if !others && !sources.any(self, |source| source.own) {
            return Err(NoEvictions::at_once(
                "no gang of lower priority runs in its queue, and no other queue borrows what it needs",
            ));
        }
        let forbidden = sources.while_borrowing.is_none();
        let under = sources
            .short
            .iter()
            .all(|ix| self.queues.held(own, *ix) < self.queues.deserved(own, *ix));
        let ways: &[bool] = if !others || (forbidden && !under) {
            &[true]
        } else if forbidden && !advantage {
            &[false, true]
        } else {
            &[true, false]
        };
        for borrowing in ways {
            sources.again(*borrowing);
            match self.search(key, ask, &mut sources, now) {
                Ok(found) => return Ok(found),
                Err(NoVictims::NotWorth) => return Err(NoEvictions::not_worth()),
                Err(NoVictims::NoRoom) => {}
            }
        }
        Err(self.no_use(
            sources.spared_until(),
            now,
            "evicting every gang that the quota rules permit would not make room",
        ))
    }

    /// The resources that the gang lacks: within its queue's bounds, or in the cluster.
    pub(super) fn short_of(&self, ask: &MinimumDemand) -> Vec<Ix> {
        let Some(payer) = ask.payer else {
            return Vec::new();
        };
        let asked = ask.demand.0.iter().filter(|(ix, _)| *ix != PODS);
        let short: Vec<Ix> = asked
            .clone()
            .filter(|(ix, amount)| {
                let one = Demand(vec![(*ix, *amount)]);
                let (times, _) = self.queues.allows(payer, &one, |ix| self.idle(ix));
                times == 0 || self.idle(*ix) < *amount
            })
            .map(|(ix, _)| *ix)
            .collect();
        if short.is_empty() {
            return asked.map(|(ix, _)| *ix).collect();
        }
        short
    }

    /// Whether a pod holds any of these resources.
    pub(super) fn uses_any(&self, pod: &crate::pod::PodKey, short: &[Ix]) -> bool {
        self.pods.get(pod).is_some_and(|pod| {
            let demand = self.classes.get(pod.class).demand();
            short.iter().any(|ix| demand.get(*ix) > 0)
        })
    }

    /// Which gangs of its own queue a gang may preempt, by the queue's rules.
    pub(super) fn preemption_limit(
        &self,
        key: &GangKey,
        gang: &crate::gang::Gang,
    ) -> CandidateScope {
        let priority = self.priority_of(gang);
        let rules = gang.payer.and_then(|payer| self.queues.rules(payer.queue));
        match rules.map_or(WithinQueue::default(), |rules| {
            rules.preemption.within_queue
        }) {
            WithinQueue::LowerPriority => CandidateScope::Below(priority),
            WithinQueue::LowerOrNewerEqualPriority => {
                CandidateScope::Younger(priority, self.victim_key(key, gang).created.0)
            }
            WithinQueue::Never => CandidateScope::NoGang,
        }
    }
}
