//! Fair sharing among queues that borrow: a gang takes from the queue whose share of what is
//! borrowed is the largest, where its own queue's share with it stays below. Shares are compared
//! where the two branches of the tree part; the way down to the largest is taken level by level.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::Refusal;
use super::bound::Reach;
use super::candidates::{Bite, Cursor, Limit};
use super::search::{Ask, Candidates, Found, Vain};
use crate::gang::GangKey;
use crate::plan::EvictionReason;
use crate::queue::rules::{FairStrategy, Reclaim};
use crate::queue::{QueueIx, Queues, ROOT, Share};
use crate::resource::{Demand, Ix};
use crate::state::Scheduler;

struct Sharers {
    own: QueueIx,
    /// The top of the tree that the taker is part of.
    top: QueueIx,
    path: BTreeSet<QueueIx>,
    demand: Demand,
    short: Vec<Ix>,
    cursors: BTreeMap<QueueIx, Cursor>,
    /// Refused by the first strategy, by queue, in order.
    later: BTreeMap<QueueIx, Vec<Bite>>,
    strategies: Vec<FairStrategy>,
    /// What it deserves it may take back whatever the shares are.
    own_freely: bool,
    pruned: BTreeSet<QueueIx>,
    second: bool,
    now: Timestamp,
}

impl Sharers {
    fn new(
        state: &Scheduler,
        own: QueueIx,
        ask: &Ask,
        junior: Limit,
        priority: i32,
        now: Timestamp,
    ) -> Sharers {
        let queues = &state.queues;
        let rules = queues
            .rules(own)
            .map(|rules| rules.preemption.clone())
            .unwrap_or_default();
        let path: Vec<QueueIx> = queues.path(own).filter(|at| *at != ROOT).collect();
        let mut all = Sharers {
            own,
            top: path.last().copied().unwrap_or(own),
            path: path.into_iter().collect(),
            demand: ask.demand.clone(),
            short: state.short_of(ask),
            cursors: BTreeMap::new(),
            later: BTreeMap::new(),
            strategies: rules.fair.unwrap_or_default(),
            own_freely: rules.fair_within_deserved,
            pruned: BTreeSet::new(),
            second: false,
            now,
        };
        let limit = match rules.reclaim {
            Reclaim::Any => Limit::None,
            Reclaim::LowerPriority => Limit::Below(priority),
            Reclaim::Never => Limit::Nobody,
        };
        for name in state.victims.keys() {
            let Some(queue) = queues.find(name) else {
                continue;
            };
            let limit = if queue == own { junior } else { limit };
            let borrows = queue == own
                || all
                    .short
                    .iter()
                    .any(|ix| queues.held(queue, *ix) > queues.deserved(queue, *ix));
            let reclaimable =
                queue == own || queues.rules(queue).is_none_or(|rules| rules.reclaimable);
            if limit != Limit::Nobody && borrows && reclaimable && queues.holds(all.top, queue) {
                let cursor = match queue == own {
                    true => Cursor::new(name, limit),
                    false => Cursor::for_others(name, limit),
                };
                all.cursors.insert(queue, cursor);
            }
        }
        all
    }

    fn share(&self, queues: &Queues, at: QueueIx) -> Share {
        if self.path.contains(&at) {
            queues.borrowed_share_with(at, self.own, &self.demand)
        } else {
            queues.borrowed_share(at)
        }
    }

    /// Does its own queue, with the gang, hold no more than its quota of what it is short of?
    fn within_quota(&self, queues: &Queues) -> bool {
        self.short.iter().all(|ix| {
            let asked = self.demand.get(*ix);
            queues.quota_left(self.own, *ix, self.own, asked) >= 0
        })
    }

    fn has_any(&mut self, state: &Scheduler, queue: QueueIx) -> bool {
        if self.second {
            return self
                .later
                .get(&queue)
                .is_some_and(|bites| !bites.is_empty());
        }
        let (short, now) = (&self.short, self.now);
        let Some(cursor) = self.cursors.get_mut(&queue) else {
            return false;
        };
        cursor.skip_to(state, now, |bite| {
            bite.pods.iter().any(|pod| state.uses_any(pod, short))
        })
    }

    /// Down from a queue to the one with the largest share that has somebody to lose.
    fn largest(&mut self, state: &Scheduler, above: QueueIx) -> Option<QueueIx> {
        loop {
            if self.pruned.contains(&above) {
                return None;
            }
            let queues = &state.queues;
            let children: Vec<QueueIx> = queues.children(above).to_vec();
            let mut leaf: Option<(Share, QueueIx)> = None;
            let mut inner: Option<(Share, QueueIx)> = None;
            for child in children {
                if self.pruned.contains(&child) {
                    continue;
                }
                let share = self.share(queues, child);
                let on_path = self.path.contains(&child);
                let is_leaf = queues.children(child).is_empty();
                if is_leaf {
                    if (share == Share::NONE && !on_path) || !self.has_any(state, child) {
                        self.pruned.insert(child);
                        continue;
                    }
                    if leaf.is_none_or(|(most, _)| share > most) {
                        leaf = Some((share, child));
                    }
                } else if share == Share::NONE && !on_path {
                    self.pruned.insert(child);
                } else if inner.is_none_or(|(most, _)| share > most) {
                    inner = Some((share, child));
                }
            }
            match (leaf, inner) {
                (None, None) => {
                    self.pruned.insert(above);
                    return None;
                }
                (Some((share, leaf)), Some((other, _))) if share > other => return Some(leaf),
                (Some((_, leaf)), None) => return Some(leaf),
                (_, Some((_, inner))) => {
                    if let Some(found) = self.largest(state, inner) {
                        return Some(found);
                    }
                    // That branch is out: look again.
                }
            }
        }
    }

    fn holds_for(&self, strategy: FairStrategy, taker: Share, before: Share, after: Share) -> bool {
        match strategy {
            FairStrategy::LessThanOrEqualToFinalShare => taker <= after,
            FairStrategy::LessThanInitialShare => taker < before,
        }
    }

    fn first_strategy(&mut self, state: &mut Scheduler, strategy: FairStrategy) -> Option<Bite> {
        loop {
            let queue = self.largest(state, self.top)?;
            let now = self.now;
            let next = |all: &mut Sharers, state: &Scheduler| {
                let some = all.has_any(state, queue);
                let cursor = all.cursors.get_mut(&queue)?;
                if some { cursor.next(state, now) } else { None }
            };
            if queue == self.own {
                let mut bite = next(self, state)?;
                bite.why = EvictionReason::Preempted;
                return Some(bite);
            }
            if self.own_freely && self.within_quota(&state.queues) {
                // What it takes is its own: no share need be compared.
                let mut bite = next(self, state)?;
                bite.why = EvictionReason::Reclaimed;
                return Some(bite);
            }
            let fork = state.queues.lowest_common_level(self.own, queue);
            let taker = self.share(&state.queues, fork.left);
            let before = self.share(&state.queues, fork.right);
            while let Some(mut bite) = next(self, state) {
                let after = state.share_without(fork.right, &bite);
                if self.holds_for(strategy, taker, before, after) {
                    bite.why = EvictionReason::FairShare;
                    return Some(bite);
                }
                self.later.entry(queue).or_default().push(bite);
            }
        }
    }

    fn second_strategy(&mut self, state: &mut Scheduler) -> Option<Bite> {
        loop {
            let queue = self.largest(state, self.top)?;
            let fork = state.queues.lowest_common_level(self.own, queue);
            let taker = self.share(&state.queues, fork.left);
            let before = self.share(&state.queues, fork.right);
            // One value for a queue: it is looked at once.
            self.pruned.insert(queue);
            if taker < before {
                let bites = self.later.get_mut(&queue)?;
                let mut bite = bites.remove(0);
                bite.why = EvictionReason::FairShare;
                return Some(bite);
            }
        }
    }
}

impl Candidates for Sharers {
    fn next(&mut self, state: &mut Scheduler) -> Option<Bite> {
        if !self.second {
            let first = self.strategies.first().copied()?;
            if let Some(bite) = self.first_strategy(state, first) {
                return Some(bite);
            }
            self.second = true;
            self.pruned.clear();
        }
        if self.strategies.len() < 2 {
            return None;
        }
        self.second_strategy(state)
    }

    fn reach(&self, state: &Scheduler) -> Option<Reach> {
        let gangs = self.cursors.values().flat_map(|cursor| cursor.gangs(state));
        Some(Reach {
            gangs: gangs.cloned().collect(),
            own: self.cursors.contains_key(&self.own),
        })
    }

    fn admits(&self, _: &Scheduler) -> bool {
        true
    }
}

impl Scheduler {
    /// Seeks room for a gang by fair sharing.
    pub(super) fn take_by_fairness(
        &mut self,
        key: &GangKey,
        ask: &Ask,
        now: Timestamp,
    ) -> Result<Found, Refusal> {
        let Some((gang, payer)) = self.gangs.get(key).zip(ask.payer) else {
            return Err(Refusal::at_once("it is gone"));
        };
        let junior = self.juniors(key, gang);
        let priority = self.priority_of(gang);
        let mut sharers = Sharers::new(self, payer.queue, ask, junior, priority, now);
        if sharers.cursors.is_empty() {
            return Err(Refusal::at_once(
                "nobody of lower priority runs in its queue, and no other queue borrows what it needs",
            ));
        }
        match self.search(key, ask, &mut sharers, now) {
            Ok(found) => Ok(found),
            Err(Vain::NotWorth) => Err(Refusal::not_worth()),
            Err(Vain::NoRoom) => {
                let spared = sharers.cursors.values();
                let spared = spared.filter_map(|cursor| cursor.spared_until).min();
                Err(self.no_use(
                    spared,
                    now,
                    "evicting all that have a larger share would not make room",
                ))
            }
        }
    }

    /// A queue's share of what is borrowed if a bite were gone.
    fn share_without(&mut self, queue: QueueIx, bite: &Bite) -> Share {
        let Some(payer) = self.gangs.get(&bite.gang).and_then(|gang| gang.payer) else {
            return Share::NONE;
        };
        let demands: Vec<Demand> = bite
            .pods
            .iter()
            .filter_map(|pod| self.pods.get(pod))
            .map(|pod| {
                let node = pod.node.map(|at| &self.nodes[at]);
                self.classes.get(pod.class).take(node).demand
            })
            .collect();
        for demand in &demands {
            self.queues.charge(payer, demand, -1);
        }
        let share = self.queues.borrowed_share(queue);
        for demand in &demands {
            self.queues.charge(payer, demand, 1);
        }
        share
    }
}
