//! The victim search: a minimal set of victims after whose eviction a gang starts.
//!
//! Method: candidates are taken in their order until the gang fits. A bisection then finds the
//! shortest prefix of the candidates that suffices. Finally victims that are not needed are
//! released, the last taken first, until no more can be. All of this changes the scheduler's state
//! itself, in a transaction that is undone if the search fails.
//!
//! Cost: most questions are answered by counters. The number of members of a class that all nodes
//! together hold is maintained as nodes change, so a full placement is tried only where the
//! counters admit the gang, and the number of candidates between failed tries doubles.
//!
//! Example: candidates of 1, 1, 4 and 2 GPUs in this order, all on one node, and a preemptor of 4
//! GPUs. The search takes the first three, fits the preemptor, and releases both candidates of 1
//! GPU, because the third alone suffices.
//!
//! Tests: `tests/evictions_oracle.rs` compares it with every set of victims on small clusters,
//! `tests/evictions_properties.rs` checks that no victim could have stayed.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::candidates::EvictionUnit;
use super::loss_bound::EvictableGangs;
use super::reserved_places::ReservedPlace;
use super::transaction::{EvictionTransaction, PodPlacement};
use super::victims_by_node::VictimsByNode;
use crate::class::ClassIx;
use crate::gang::GangKey;
use crate::place::Placement;
use crate::queue::Payer;
use crate::resource::{Demand, GPU_UNIT, Room};
use crate::state::Scheduler;

/// The least that a gang needs to start, by class.
#[derive(Clone, Debug, Default)]
pub(crate) struct MinimumDemand {
    pub(crate) payer: Option<Payer>,
    /// Whether evictions for it may break a PodDisruptionBudget.
    pub(crate) breaks_budgets: bool,
    /// How long it waits for room without evictions, in seconds; set where the cost of evictions is
    /// weighed against this wait.
    pub(crate) wait: Option<i64>,
    /// Members that the gang's tasks require.
    required: BTreeMap<ClassIx, usize>,
    /// The other members, and how many of them are needed.
    others: BTreeMap<ClassIx, usize>,
    needed: usize,
    /// What the needed members request together; if several classes could be chosen, of the first.
    pub(crate) demand: Demand,
}

impl MinimumDemand {
    /// The classes and numbers of members that are certain to be placed.
    pub(crate) fn certain(&self) -> BTreeMap<ClassIx, usize> {
        let mut all = self.required.clone();
        if let [(class, _)] = self.others.iter().collect::<Vec<_>>()[..] {
            *all.entry(*class).or_default() += self.needed;
        }
        all.retain(|_, members| *members > 0);
        all
    }

    /// All classes, to compare two requests.
    pub(crate) fn classes(&self) -> Vec<(ClassIx, usize, bool)> {
        let required = self.required.iter().map(|(class, n)| (*class, *n, true));
        let others = self
            .others
            .keys()
            .map(|class| (*class, self.needed, false))
            .filter(|_| self.needed > 0);
        required.chain(others).collect()
    }
}

/// A victim set, and the placements that it makes room for.
#[derive(Debug)]
pub(crate) struct VictimSet {
    pub(crate) units: Vec<EvictionUnit>,
    pub(crate) placed: Vec<Placement>,
    /// Places to reserve for the moved members.
    pub(crate) places: Vec<(GangKey, ReservedPlace)>,
    /// Whether the victims are among the first candidates, so that further candidates would make no
    /// difference.
    pub(crate) first: bool,
    pub(crate) transaction: EvictionTransaction,
}

/// Why a search found no victims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoVictims {
    /// The gang does not fit, whichever candidates are evicted.
    NoRoom,
    /// Evicting any sufficient victims costs more than the gang saves.
    NotWorth,
}

/// The source of candidates: which candidate may be taken next, given those taken so far.
pub(crate) trait Candidates {
    fn next(&mut self, state: &mut Scheduler) -> Option<EvictionUnit>;

    /// The gangs that may ever be taken, and possibly others; none if the source does not say.
    fn reach(&self, _: &Scheduler) -> Option<EvictableGangs> {
        None
    }

    /// Whether the rule behind the evictions admits the preemptor, given the evictions so far and
    /// without the preemptor in the accounts.
    fn admits(&self, state: &Scheduler) -> bool;

    /// All candidates that could ever be taken, where that is more than one order yields: the rule
    /// then bounds how many may be taken, and other candidates could be taken instead.
    fn all_candidates(&mut self, _: &mut Scheduler) -> Vec<EvictionUnit> {
        Vec::new()
    }

    /// Whether the candidate may be taken, given the evictions so far.
    fn may_take(&self, _: &Scheduler, _: &EvictionUnit) -> bool {
        true
    }
}

impl Scheduler {
    /// The least that a gang needs to start; one member if the gang already has its minimum.
    pub(crate) fn ask(&self, key: &GangKey) -> MinimumDemand {
        let Some(gang) = self.gangs.get(key) else {
            return MinimumDemand::default();
        };
        let mut ask = MinimumDemand {
            payer: gang.payer,
            ..MinimumDemand::default()
        };
        let tasks = gang.spec.iter().flat_map(|spec| &spec.min_task_member);
        let mut short: BTreeMap<&str, usize> = tasks
            .map(|(task, min)| (&**task, min.saturating_sub(gang.task(task).have())))
            .collect();
        ask.needed = gang.minimum(key).saturating_sub(gang.total.have());
        let alike = short.is_empty();
        if alike {
            ask.others = gang.kinds.iter().map(|(kind, n)| (*kind, *n)).collect();
        }
        for (_, name) in gang.pending.iter().filter(|_| !alike) {
            let Some(pod) = self.pods.get(name) else {
                continue;
            };
            match short.get_mut(&*pod.task) {
                Some(left) if *left > 0 => {
                    *left -= 1;
                    ask.needed = ask.needed.saturating_sub(1);
                    *ask.required.entry(pod.class).or_default() += 1;
                }
                _ => *ask.others.entry(pod.class).or_default() += 1,
            }
        }
        if ask.required.is_empty() && ask.needed == 0 {
            ask.needed = 1;
        }
        ask.demand = self.sum(&ask);
        ask
    }

    fn sum(&self, ask: &MinimumDemand) -> Demand {
        let mut sum = Room::default();
        for (class, members) in &ask.required {
            sum.add(self.classes.get(*class).demand(), *members as i64);
        }
        let mut needed = ask.needed;
        for (class, members) in &ask.others {
            let some = needed.min(*members);
            sum.add(self.classes.get(*class).demand(), some as i64);
            needed -= some;
        }
        Demand(sum.iter().filter(|(_, amount)| *amount > 0).collect())
    }

    /// Whether the gang might fit, by the counters of all nodes together and its queue's bounds.
    /// False is certain.
    pub(super) fn might_fit(&mut self, ask: &MinimumDemand) -> bool {
        self.counts_suffice(ask, |view| view.room) && self.within_quota(ask)
    }

    /// Whether the gang might fit if the nodes were empty. If not, no eviction helps.
    pub(crate) fn fits_when_empty(&mut self, ask: &MinimumDemand) -> bool {
        self.counts_suffice(ask, |view| view.empty)
    }

    fn counts_suffice(
        &mut self,
        ask: &MinimumDemand,
        room: fn(&crate::fit::ClassView) -> u64,
    ) -> bool {
        let mut of = |class: ClassIx| {
            self.refresh(class);
            let room = self.views.get(&class).map_or(0, room);
            usize::try_from(room).unwrap_or(usize::MAX)
        };
        for (class, members) in &ask.required {
            if of(*class) < *members {
                return false;
            }
        }
        let mut rest = 0usize;
        for (class, members) in &ask.others {
            rest = rest.saturating_add(of(*class).min(*members));
        }
        rest >= ask.needed
    }

    /// Whether the queue's bounds admit the members that are certain to be placed.
    pub(crate) fn within_quota(&mut self, ask: &MinimumDemand) -> bool {
        let Some(payer) = ask.payer else {
            return false;
        };
        let mut charged = Vec::new();
        let mut within = true;
        for (class, members) in ask.certain() {
            let demand = self.classes.get(class).demand().clone();
            let (allowed, _) = self.queues.allows(payer, &demand, |ix| self.idle(ix));
            if (allowed as usize) < members {
                within = false;
                break;
            }
            let times = members as i64;
            self.queues.charge(payer, &demand, times);
            self.used.add(&demand, times);
            charged.push((demand, times));
        }
        for (demand, times) in charged {
            self.queues.charge(payer, &demand, -times);
            self.used.add(&demand, -times);
        }
        within
    }

    /// Searches a minimal victim set: candidates in their own order; if that fails, node by node;
    /// if that takes too much from other queues, by the least excess. Where counters show that no
    /// set helps, no candidate is taken. An error leaves the state as it was.
    pub(crate) fn search(
        &mut self,
        key: &GangKey,
        ask: &MinimumDemand,
        candidates: &mut dyn Candidates,
        now: Timestamp,
    ) -> Result<VictimSet, NoVictims> {
        if let Some(vain) = self.hopeless_by_bound(key, ask, candidates, now) {
            return Err(vain);
        }
        self.search_without_bound(key, ask, candidates, now)
    }

    /// As `search`, without the check by counters.
    pub(super) fn search_without_bound(
        &mut self,
        key: &GangKey,
        ask: &MinimumDemand,
        candidates: &mut dyn Candidates,
        now: Timestamp,
    ) -> Result<VictimSet, NoVictims> {
        if let Some(found) = self.search_in_order(key, ask, candidates, now) {
            return Ok(found);
        }
        let all_candidates = candidates.all_candidates(self);
        if all_candidates.is_empty() {
            return Err(NoVictims::NoRoom);
        }
        for excess in [false, true] {
            let units = if excess {
                self.by_excess(ask, &all_candidates)
            } else {
                self.by_node(ask, all_candidates.clone())
            };
            let grounds = &*candidates;
            let mut by_node = VictimsByNode { units, grounds };
            if let Some(mut found) = self.search_in_order(key, ask, &mut by_node, now) {
                found.first = false;
                return Ok(found);
            }
        }
        Err(NoVictims::NoRoom)
    }

    fn search_in_order(
        &mut self,
        key: &GangKey,
        ask: &MinimumDemand,
        candidates: &mut dyn Candidates,
        now: Timestamp,
    ) -> Option<VictimSet> {
        let mut transaction = self.begin();
        let mut units: Vec<EvictionUnit> = Vec::new();
        let mut marks = Vec::new();
        // The gang does not fit with this many candidates taken.
        let mut failed = 0;
        let (mut next_try, mut step) = (0, 1);
        let mut placed = None;
        // Whether the gang would have been tried at this point whatever candidates follow.
        let mut due = true;
        loop {
            let next = candidates.next(self);
            let done = next.is_none();
            if let Some(mut unit) = next {
                if !ask.breaks_budgets
                    && let Some(budget) = self.broken_budget(&unit)
                {
                    self.note_budget(budget);
                    continue;
                }
                marks.push(transaction.len());
                self.take(&mut transaction, &mut unit);
                units.push(unit);
            }
            if units.len() == failed || !candidates.admits(self) || !self.might_fit(ask) {
                failed = units.len();
            } else if units.len() >= next_try || done {
                let mark = transaction.len();
                due = units.len() >= next_try;
                placed = transaction.attempt(self, key, now);
                if placed.is_some() {
                    break;
                }
                self.undo_to(&mut transaction, mark);
                failed = units.len();
                next_try = units.len() + step;
                step *= 2;
            }
            if done {
                break;
            }
        }
        let Some(mut placed) = placed else {
            self.undo(transaction);
            return None;
        };
        let mut enough = units.len();
        while enough > failed + 1 {
            let middle = failed + (enough - failed) / 2;
            self.undo_to(&mut transaction, marks[middle]);
            let mark = transaction.len();
            let found = if candidates.admits(self) {
                transaction.attempt(self, key, now)
            } else {
                None
            };
            match found {
                Some(found) => {
                    enough = middle;
                    placed = found;
                }
                None => {
                    self.undo_to(&mut transaction, mark);
                    failed = middle;
                    for at in middle..enough {
                        let mut unit = units[at].clone();
                        marks[at] = transaction.len();
                        self.take(&mut transaction, &mut unit);
                        units[at] = unit;
                    }
                    // Try again with the number of victims that sufficed before.
                    match transaction.attempt(self, key, now) {
                        Some(found) => placed = found,
                        None => {
                            self.undo(transaction);
                            return None;
                        }
                    }
                }
            }
        }
        units.truncate(enough);
        let found = VictimSet {
            units,
            placed,
            places: Vec::new(),
            first: due,
            transaction,
        };
        self.give_back_unneeded(key, ask, candidates, found, now)
    }

    pub(super) fn take(&mut self, transaction: &mut EvictionTransaction, unit: &mut EvictionUnit) {
        unit.before.clear();
        for pod in &unit.pods {
            if let Some(known) = self.pods.get(pod) {
                unit.before.push(PodPlacement::of(known));
            }
            transaction.evict(self, pod);
        }
    }

    pub(super) fn put_back(&mut self, transaction: &mut EvictionTransaction, unit: &EvictionUnit) {
        for (pod, placement) in unit.pods.iter().zip(&unit.before) {
            transaction.set_placement(self, pod, placement.clone());
        }
    }

    /// Releases the victims that are not needed, the last taken first: first the victims that fit
    /// beside the gang as it was placed, then the victims without which the gang can be placed
    /// elsewhere.
    fn give_back_unneeded(
        &mut self,
        key: &GangKey,
        ask: &MinimumDemand,
        candidates: &dyn Candidates,
        found: VictimSet,
        now: Timestamp,
    ) -> Option<VictimSet> {
        let VictimSet {
            units,
            mut placed,
            mut transaction,
            ..
        } = found;
        let mut kept = vec![true; units.len()];
        for at in (0..units.len()).rev() {
            if self.is_bound_up(&units, &kept, at) || self.lost_its_gpus(&units[at]) {
                continue;
            }
            self.put_back(&mut transaction, &units[at]);
            let fits = self.all_fit_with(&units[at])
                && ask.payer.is_some_and(|payer| {
                    self.stays_within_quota(payer, &placed, |state| candidates.admits(state))
                });
            if fits {
                kept[at] = false;
            } else {
                let mut unit = units[at].clone();
                self.take(&mut transaction, &mut unit);
            }
        }
        self.unplace(&mut transaction, key, &placed);
        for at in (0..units.len()).rev() {
            if !kept[at] || self.is_bound_up(&units, &kept, at) {
                continue;
            }
            self.put_back(&mut transaction, &units[at]);
            if candidates.admits(self) && self.might_fit(ask) {
                let mark = transaction.len();
                if let Some(found) = transaction.attempt(self, key, now) {
                    self.unplace(&mut transaction, key, &found);
                    kept[at] = false;
                    continue;
                }
                self.undo_to(&mut transaction, mark);
            }
            let mut unit = units[at].clone();
            self.take(&mut transaction, &mut unit);
        }
        match transaction.attempt(self, key, now) {
            Some(found) => placed = found,
            None => {
                self.undo(transaction);
                return None;
            }
        }
        let units = units.into_iter().zip(kept);
        Some(VictimSet {
            units: units.filter(|(_, kept)| *kept).map(|(b, _)| b).collect(),
            placed,
            places: found.places,
            first: found.first,
            transaction,
        })
    }

    /// Whether the member belongs to a gang that is evicted whole.
    fn is_bound_up(&self, units: &[EvictionUnit], kept: &[bool], at: usize) -> bool {
        units[at].shrinks
            && units
                .iter()
                .zip(kept)
                .any(|(unit, kept)| *kept && !unit.shrinks && unit.gang == units[at].gang)
    }

    /// Whether another pod now holds the GPUs that the victim held: then the victim does not fit
    /// beside that pod.
    fn lost_its_gpus(&self, unit: &EvictionUnit) -> bool {
        unit.pods.iter().zip(&unit.before).any(|(pod, before)| {
            let class = self.pods.get(pod).map(|pod| pod.class);
            let Some((at, class)) = before.node.zip(class) else {
                return false;
            };
            let each = self.take_on(class, at).each;
            let held = &self.nodes[at].held;
            let mut ids = before.devices.iter();
            ids.any(|id| held.of(id) + each > GPU_UNIT)
        })
    }

    pub(super) fn all_fit_with(&self, unit: &EvictionUnit) -> bool {
        let nodes: BTreeSet<usize> = unit.before.iter().filter_map(|at| at.node).collect();
        nodes.into_iter().all(|at| !self.nodes[at].overcommitted())
    }

    /// Whether the queue's bounds would admit these placements, which are counted already, if they
    /// were made now.
    pub(super) fn stays_within_quota(
        &mut self,
        payer: Payer,
        placed: &[Placement],
        admits: impl Fn(&Scheduler) -> bool,
    ) -> bool {
        let mut by_class: BTreeMap<ClassIx, i64> = BTreeMap::new();
        for placement in placed {
            *by_class.entry(placement.class).or_default() += 1;
        }
        for (class, members) in &by_class {
            self.charge_class(payer, *class, -members);
        }
        let mut within = admits(self);
        for (class, members) in &by_class {
            let demand = self.classes.get(*class).demand();
            let (allowed, _) = self.queues.allows(payer, demand, |ix| self.idle(ix));
            within &= i64::from(allowed) >= *members;
            self.charge_class(payer, *class, *members);
        }
        within
    }

    fn charge_class(&mut self, payer: Payer, class: ClassIx, times: i64) {
        let demand = self.classes.get(class).demand();
        self.queues.charge(payer, demand, times);
        self.used.add(demand, times);
    }

    fn unplace(
        &mut self,
        transaction: &mut EvictionTransaction,
        key: &GangKey,
        placed: &[Placement],
    ) {
        for placement in placed {
            transaction.set_placement(self, &placement.pod, PodPlacement::pending());
        }
        self.settle(key);
    }
}
