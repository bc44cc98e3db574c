//! Preemption by quota, for queues whose rules say how it goes while borrowing: what is above a
//! queue's own quota is borrowed, and may be taken back by those it was borrowed from.
//!
//! From the taker's queue upwards: once its request fits in the quota of a subtree, whoever
//! borrows from outside that subtree may lose it, though the queue itself borrows. Without that
//! advantage it must end within its own quota, or be allowed to evict while it borrows, and then
//! only gangs of lower priority and at most a threshold. Nobody within their quota is touched.

use jiff::Timestamp;

use super::Refusal;
use super::bound::Reach;
use super::candidates::{Bite, Cursor, Limit};
use super::search::{Ask, Candidates, Found, Vain};
use crate::gang::GangKey;
use crate::plan::EvictionReason;
use crate::queue::rules::{Borrow, BorrowPolicy, Reclaim, WithinQueue};
use crate::queue::{QueueIx, Queues, ROOT};
use crate::resource::{Demand, Ix, PODS};
use crate::state::Scheduler;

/// A queue that something may be taken from.
struct Source {
    /// From the queue up to, and without, the one that it has in common with the taker.
    way: Vec<QueueIx>,
    cursor: Cursor,
    /// The taker's request fits in the quota of a subtree that this one is not part of.
    advantage: bool,
    own: bool,
}

/// What is gone through, in one of two ways.
struct Sources {
    own: QueueIx,
    demand: Demand,
    short: Vec<Ix>,
    all: Vec<Source>,
    /// May the taker's queue end above its own quota?
    borrowing: bool,
    /// Evicting while borrowing: lower than this, and at most that.
    while_borrowing: Option<(i32, Option<i32>)>,
    now: Timestamp,
}

impl Sources {
    fn new(
        state: &Scheduler,
        own: QueueIx,
        ask: &Ask,
        junior: Limit,
        priority: i32,
        now: Timestamp,
    ) -> Sources {
        let queues = &state.queues;
        let rules = queues
            .rules(own)
            .map(|rules| rules.preemption.clone())
            .unwrap_or_default();
        let borrow = rules.borrow.flatten();
        let mut all = Sources {
            own,
            demand: ask.demand.clone(),
            short: state.short_of(ask),
            all: Vec::new(),
            borrowing: false,
            while_borrowing: borrow
                .filter(|borrow: &Borrow| borrow.policy == BorrowPolicy::LowerPriority)
                .map(|borrow| (priority, borrow.max_priority_threshold)),
            now,
        };
        let limit = match rules.reclaim {
            Reclaim::Any => Some(Limit::None),
            Reclaim::LowerPriority => Some(Limit::Below(priority)),
            Reclaim::Never => None,
        };
        if let Some(limit) = limit {
            for name in state.victims.keys() {
                let Some(queue) = queues.find(name).filter(|queue| *queue != own) else {
                    continue;
                };
                all.add(queues, name, queue, limit);
            }
        }
        // With an advantage first, then without, then the taker's own queue.
        all.all.sort_by_key(|source| !source.advantage);
        if junior != Limit::Nobody {
            all.all.push(Source {
                way: Vec::new(),
                cursor: Cursor::new(queues.name(own), junior),
                advantage: false,
                own: true,
            });
        }
        all
    }

    fn add(&mut self, queues: &Queues, name: &str, queue: QueueIx, limit: Limit) {
        let fork = queues.lowest_common_level(self.own, queue);
        if fork.above == ROOT {
            // Trees of their own lend each other nothing.
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
        self.all.push(Source {
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

    /// Does the queue hold no more than its quota of what the taker is short of?
    fn within_quota(&self, queues: &Queues, at: QueueIx) -> bool {
        self.short
            .iter()
            .all(|ix| queues.held(at, *ix) <= queues.deserved(at, *ix))
    }

    /// Is any source of this kind left to take from?
    fn any(&self, state: &Scheduler, kind: impl Fn(&Source) -> bool) -> bool {
        self.all
            .iter()
            .any(|source| kind(source) && source.cursor.clone().next(state, self.now).is_some())
    }

    /// On what grounds the bite may be taken; none if on none.
    fn grounds(&self, source: &Source, priority: i32) -> Option<EvictionReason> {
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

impl Candidates for Sources {
    fn next(&mut self, state: &mut Scheduler) -> Option<Bite> {
        loop {
            // Of the first kind that has any: the least by priority, then the last to start.
            let mut best: Option<(bool, usize, super::candidates::Turn)> = None;
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
            let mut bite = self.all[at].cursor.next(state, self.now)?;
            let uses = bite.pods.iter().any(|pod| state.uses_any(pod, &self.short));
            let why = self.grounds(&self.all[at], turn.priority());
            if let Some(why) = why.filter(|_| uses) {
                bite.why = why;
                return Some(bite);
            }
        }
    }

    fn reach(&self, state: &Scheduler) -> Option<Reach> {
        let gangs = self
            .all
            .iter()
            .flat_map(|source| source.cursor.gangs(state));
        Some(Reach {
            gangs: gangs.cloned().collect(),
            own: self.all.iter().any(|source| source.own),
        })
    }

    fn admits(&self, state: &Scheduler) -> bool {
        self.borrowing || self.fits_quota(&state.queues, self.own)
    }
}

impl Scheduler {
    /// Seeks room for a gang by quota, in its own queue and others.
    pub(super) fn take_by_quota(
        &mut self,
        key: &GangKey,
        ask: &Ask,
        now: Timestamp,
    ) -> Result<Found, Refusal> {
        let Some((gang, payer)) = self.gangs.get(key).zip(ask.payer) else {
            return Err(Refusal::at_once("it is gone"));
        };
        let (own, priority) = (payer.queue, self.priority_of(gang));
        let junior = self.juniors(key, gang);
        let mut sources = Sources::new(self, own, ask, junior, priority, now);
        let others = sources.any(self, |source| !source.own);
        let advantage = sources.any(self, |source| !source.own && source.advantage);
        if !others && !sources.any(self, |source| source.own) {
            return Err(Refusal::at_once(
                "nobody of lower priority runs in its queue, and no other queue borrows what it needs",
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
                Err(Vain::NotWorth) => return Err(Refusal::not_worth()),
                Err(Vain::NoRoom) => {}
            }
        }
        Err(self.no_use(
            sources.spared_until(),
            now,
            "evicting all that may be evicted by quota would not make room",
        ))
    }

    /// Resources that the gang finds too little of: within its queue's bounds, or at all.
    pub(super) fn short_of(&self, ask: &Ask) -> Vec<Ix> {
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

    /// Does a pod hold any of these?
    pub(super) fn uses_any(&self, pod: &crate::pod::PodKey, short: &[Ix]) -> bool {
        self.pods.get(pod).is_some_and(|pod| {
            let demand = self.classes.get(pod.class).demand();
            short.iter().any(|ix| demand.get(*ix) > 0)
        })
    }

    /// Which gangs of its own queue come after a gang, as its queue sees it.
    pub(super) fn juniors(&self, key: &GangKey, gang: &crate::gang::Gang) -> Limit {
        let priority = self.priority_of(gang);
        let rules = gang.payer.and_then(|payer| self.queues.rules(payer.queue));
        match rules.map_or(WithinQueue::default(), |rules| {
            rules.preemption.within_queue
        }) {
            WithinQueue::LowerPriority => Limit::Below(priority),
            WithinQueue::LowerOrNewerEqualPriority => {
                Limit::Younger(priority, self.victim_key(key, gang).created.0)
            }
            WithinQueue::Never => Limit::Nobody,
        }
    }
}
