//! Fair sharing among queues that borrow: a gang takes from the queue with the largest share of
//! what is borrowed, if its own queue's share with the gang stays below that.
//!
//! Method: shares are compared where the two branches of the queue tree part. The search for the
//! queue with the largest share descends the tree level by level. The queue's rules name one or two
//! strategies: the preemptor's share must be at most the victim queue's share after the eviction
//! (`LessThanOrEqualToFinalShare`), or less than its share before it (`LessThanInitialShare`).
//! Candidates that the first strategy refuses are tried again by the second. The cost is one
//! descent of the tree for each victim.
//!
//! Example: queues `a` and `b` own nothing and share a pool of 8 GPUs; `a` borrows all 8 for
//! one-GPU gangs. A gang of 2 GPUs in `b` takes 2 GPUs from `a`. By the first strategy further
//! gangs of `b` may take until each queue borrows 4.
//!
//! Tests: Kueue's preemption cases in `tests/conformance/preemption.rs`, and
//! `kueue_14543_fair_sharing_comes_to_rest` in `tests/known_failures.rs`.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::NoEvictions;
use super::candidates::{CandidateScope, Cursor, EvictionUnit};
use super::loss_bound::EvictableGangs;
use super::search::{Candidates, MinimumDemand, NoVictims, VictimSet};
use crate::gang::GangKey;
use crate::plan::EvictionReason;
use crate::queue::rules::{FairStrategy, ReclaimWithinCohort};
use crate::queue::{QueueIx, QueueShare, Queues, ROOT};
use crate::resource::{Demand, Ix};
use crate::state::Scheduler;

struct FairSharing {
    own: QueueIx,
    /// The topmost queue of the tree that the preemptor's queue is in.
    top: QueueIx,
    path: BTreeSet<QueueIx>,
    demand: Demand,
    short: Vec<Ix>,
    cursors: BTreeMap<QueueIx, Cursor>,
    /// Candidates that the first strategy refused, by queue, in order.
    later: BTreeMap<QueueIx, Vec<EvictionUnit>>,
    strategies: Vec<FairStrategy>,
    /// Whether the preemptor may take back its queue's deserved amount whatever the shares are.
    own_freely: bool,
    pruned: BTreeSet<QueueIx>,
    second: bool,
    now: Timestamp,
}

impl FairSharing {
    fn new(
        state: &Scheduler,
        own: QueueIx,
        ask: &MinimumDemand,
        own_limit: CandidateScope,
        priority: i32,
        now: Timestamp,
    ) -> FairSharing {
        let queues = &state.queues;
        let rules = queues
            .rules(own)
            .map(|rules| rules.preemption.clone())
            .unwrap_or_default();
        let path: Vec<QueueIx> = queues.path(own).filter(|at| *at != ROOT).collect();
        let mut all = FairSharing {
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
            ReclaimWithinCohort::Any => CandidateScope::None,
            ReclaimWithinCohort::LowerPriority => CandidateScope::Below(priority),
            ReclaimWithinCohort::Never => CandidateScope::NoGang,
        };
        for name in state.victims.keys() {
            let Some(queue) = queues.find(name) else {
                continue;
            };
            let limit = if queue == own { own_limit } else { limit };
            let borrows = queue == own
                || all
                    .short
                    .iter()
                    .any(|ix| queues.held(queue, *ix) > queues.deserved(queue, *ix));
            let reclaimable =
                queue == own || queues.rules(queue).is_none_or(|rules| rules.reclaimable);
            if limit != CandidateScope::NoGang
                && borrows
                && reclaimable
                && queues.holds(all.top, queue)
            {
                let cursor = match queue == own {
                    true => Cursor::new(name, limit),
                    false => Cursor::for_others(name, limit),
                };
                all.cursors.insert(queue, cursor);
            }
        }
        all
    }

    fn share(&self, queues: &Queues, at: QueueIx) -> QueueShare {
        if self.path.contains(&at) {
            queues.borrowed_share_with(at, self.own, &self.demand)
        } else {
            queues.borrowed_share(at)
        }
    }

    /// Whether the preemptor's queue, with the gang, holds no more than its quota of the resources
    /// that it lacks.
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
                .is_some_and(|units| !units.is_empty());
        }
        let (short, now) = (&self.short, self.now);
        let Some(cursor) = self.cursors.get_mut(&queue) else {
            return false;
        };
        cursor.skip_to(state, now, |unit| {
            unit.pods.iter().any(|pod| state.uses_any(pod, short))
        })
    }

    /// Descends from a queue to the one with the largest share that has candidates.
    fn largest(&mut self, state: &Scheduler, above: QueueIx) -> Option<QueueIx> {
        loop {
            if self.pruned.contains(&above) {
                return None;
            }
            let queues = &state.queues;
            let children: Vec<QueueIx> = queues.children(above).to_vec();
            let mut leaf: Option<(QueueShare, QueueIx)> = None;
            let mut inner: Option<(QueueShare, QueueIx)> = None;
            for child in children {
                if self.pruned.contains(&child) {
                    continue;
                }
                let share = self.share(queues, child);
                let on_path = self.path.contains(&child);
                let is_leaf = queues.children(child).is_empty();
                if is_leaf {
                    if (share == QueueShare::NONE && !on_path) || !self.has_any(state, child) {
                        self.pruned.insert(child);
                        continue;
                    }
                    if leaf.is_none_or(|(most, _)| share > most) {
                        leaf = Some((share, child));
                    }
                } else if share == QueueShare::NONE && !on_path {
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
                    // That branch has no candidates: compare the others again.
                }
            }
        }
    }

    fn holds_for(
        &self,
        strategy: FairStrategy,
        taker: QueueShare,
        before: QueueShare,
        after: QueueShare,
    ) -> bool {
        match strategy {
            FairStrategy::LessThanOrEqualToFinalShare => taker <= after,
            FairStrategy::LessThanInitialShare => taker < before,
        }
    }

    fn first_strategy(
        &mut self,
        state: &mut Scheduler,
        strategy: FairStrategy,
    ) -> Option<EvictionUnit> {
        loop {
            let queue = self.largest(state, self.top)?;
            let now = self.now;
            let next = |all: &mut FairSharing, state: &Scheduler| {
                let some = all.has_any(state, queue);
                let cursor = all.cursors.get_mut(&queue)?;
                if some { cursor.next(state, now) } else { None }
            };
            if queue == self.own {
                let mut unit = next(self, state)?;
                unit.why = EvictionReason::Preempted;
                return Some(unit);
            }
            if self.own_freely && self.within_quota(&state.queues) {
                // The queue takes its own quota back: shares are not compared.
                let mut unit = next(self, state)?;
                unit.why = EvictionReason::Reclaimed;
                return Some(unit);
            }
            let fork = state.queues.lowest_common_level(self.own, queue);
            let taker = self.share(&state.queues, fork.left);
            let before = self.share(&state.queues, fork.right);
            while let Some(mut unit) = next(self, state) {
                let after = state.share_without(fork.right, &unit);
                if self.holds_for(strategy, taker, before, after) {
                    unit.why = EvictionReason::FairShare;
                    return Some(unit);
                }
                self.later.entry(queue).or_default().push(unit);
            }
        }
    }

    fn second_strategy(&mut self, state: &mut Scheduler) -> Option<EvictionUnit> {
        loop {
            let queue = self.largest(state, self.top)?;
            let fork = state.queues.lowest_common_level(self.own, queue);
            let taker = self.share(&state.queues, fork.left);
            let before = self.share(&state.queues, fork.right);
            // The share before the eviction is one value for each queue: it is compared once.
            self.pruned.insert(queue);
            if taker < before {
                let units = self.later.get_mut(&queue)?;
                let mut unit = units.remove(0);
                unit.why = EvictionReason::FairShare;
                return Some(unit);
            }
        }
    }
}

impl Candidates for FairSharing {
    fn next(&mut self, state: &mut Scheduler) -> Option<EvictionUnit> {
        if !self.second {
            let first = self.strategies.first().copied()?;
            if let Some(unit) = self.first_strategy(state, first) {
                return Some(unit);
            }
            self.second = true;
            self.pruned.clear();
        }
        if self.strategies.len() < 2 {
            return None;
        }
        self.second_strategy(state)
    }

    fn reach(&self, state: &Scheduler) -> Option<EvictableGangs> {
        let gangs = self.cursors.values().flat_map(|cursor| cursor.gangs(state));
        Some(EvictableGangs {
            gangs: gangs.cloned().collect(),
            own: self.cursors.contains_key(&self.own),
        })
    }

    fn admits(&self, _: &Scheduler) -> bool {
        true
    }
}

impl Scheduler {
    /// Searches victims for a gang by fair sharing.
    pub(super) fn evict_by_fairness(
        &mut self,
        key: &GangKey,
        ask: &MinimumDemand,
        now: Timestamp,
    ) -> Result<VictimSet, NoEvictions> {
        let Some((gang, payer)) = self.gangs.get(key).zip(ask.payer) else {
            return Err(NoEvictions::at_once("the gang no longer exists"));
        };
        let own_limit = self.preemption_limit(key, gang);
        let priority = self.priority_of(gang);
        let mut fair_sharing = FairSharing::new(self, payer.queue, ask, own_limit, priority, now);
        if fair_sharing.cursors.is_empty() {
            return Err(NoEvictions::at_once(
                "no gang of lower priority runs in its queue, and no other queue borrows what it needs",
            ));
        }
        match self.search(key, ask, &mut fair_sharing, now) {
            Ok(found) => Ok(found),
            Err(NoVictims::NotWorth) => Err(NoEvictions::not_worth()),
            Err(NoVictims::NoRoom) => {
                let spared = fair_sharing.cursors.values();
                let spared = spared.filter_map(|cursor| cursor.spared_until).min();
                Err(self.no_use(
                    spared,
                    now,
                    "evicting every candidate of the queues with a larger share would not make room",
                ))
            }
        }
    }

    /// A queue's share of what is borrowed without the candidate.
    fn share_without(&mut self, queue: QueueIx, unit: &EvictionUnit) -> QueueShare {
        let Some(payer) = self.gangs.get(&unit.gang).and_then(|gang| gang.payer) else {
            return QueueShare::NONE;
        };
        let demands: Vec<Demand> = unit
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
