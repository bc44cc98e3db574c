//! Consolidation: the scheduler moves running members so that a waiting gang fits. It moves as few
//! as it can, and only if each of them gets a new place in the same plan. A pod cannot be migrated:
//! it is evicted, and its new place is reserved for the pod that replaces it. Pods without a
//! PodGroup are not moved, because possibly no controller would create them again.
//!
//! Method: module `move_sets` computes sets of members to move, cheapest first. For each set the
//! scheduler takes the members off their nodes, places the gang, puts back the members that still
//! fit beside it, and seeks places for the rest; if that fails, it adds the next members of the
//! set. Where no set works, it clears whole nodes, 2, 4, 8 and so on. The cost is bounded by
//! `TRIES_MAX` sets and `MOVED_MAX` members.
//!
//! Example: two nodes of 4 GPUs run one movable pod of 2 GPUs each. A gang of one pod with 4 GPUs
//! waits. One of the two pods moves to the other node, and the gang gets the emptied node.
//!
//! Test: `tests/evictions_moves.rs`.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::NoEvictions;
use super::candidates::{EvictionUnit, VictimKey};
use super::move_sets::{MovablePod, MoveSet};
use super::reserved_places::ReservedPlace;
use super::search::{MinimumDemand, VictimSet};
use super::transaction::EvictionTransaction;
use crate::gang::GangKey;
use crate::node::NodeIx;
use crate::place::Placement;
use crate::plan::EvictionReason;
use crate::pod::{PodKey, PodStage};
use crate::resource::{GPU, PODS, whole_gpus};
use crate::state::Scheduler;

/// The most members that move for one gang.
const MOVED_MAX: usize = 512;
/// The most sets of members that are tried for one gang.
const TRIES_MAX: usize = 24;
/// How many further steps of a set are tried where the first do not suffice.
pub(super) const MORE_MAX: usize = 4;
/// Up to this many moving members, each is tested for whether it may stay.
const STAY_TESTS_MAX: usize = 16;
/// The most nodes that are cleared as a whole, where moving the fewest members does not suffice.
const WHOLE_NODES_MAX: usize = 16;

/// The result of placing a gang and finding new places for the moving members.
struct Rearranged {
    /// Which of the members move.
    moves: Vec<bool>,
    placed: Vec<Placement>,
    places: Vec<(GangKey, ReservedPlace)>,
}

/// The sets of moving members that are tested for whether they may stay, the last first: each
/// member alone, then all members of a gang.
fn stay_candidates(movers: &[EvictionUnit]) -> Vec<Vec<PodKey>> {
    let mut gangs: BTreeMap<&GangKey, Vec<PodKey>> = BTreeMap::new();
    for mover in movers {
        let all = gangs.entry(&mover.gang).or_default();
        all.extend(mover.pods.iter().cloned());
    }
    let whole = gangs.into_values().filter(|all| all.len() > 1);
    whole
        .chain(movers.iter().map(|mover| mover.pods.clone()))
        .collect()
}

impl Scheduler {
    /// Searches members to move so that a gang fits.
    pub(super) fn consolidate(
        &mut self,
        key: &GangKey,
        ask: &MinimumDemand,
        now: Timestamp,
    ) -> Result<VictimSet, NoEvictions> {
        if !self.within_quota(ask) {
            return Err(NoEvictions::at_once(
                "moving other pods does not change the queue's limits",
            ));
        }
        let mut asked = ask.demand.0.iter().filter(|(ix, _)| *ix != PODS);
        if asked.any(|(ix, amount)| self.idle(*ix) < *amount) {
            return Err(NoEvictions::at_once(
                "the cluster has too little free room for moves of other pods to help",
            ));
        }
        let movers = self.movers(key, now);
        let tries = self.move_sets(key, ask, &movers);
        for MoveSet { first, more } in tries.into_iter().take(TRIES_MAX) {
            if let Some(found) = self.try_move_set(key, ask, first, more, now) {
                return Ok(found);
            }
        }
        let mut nodes = 2;
        while nodes <= WHOLE_NODES_MAX {
            let first = self.whole_nodes(ask, &movers, nodes);
            let pods = first.len();
            if let Some(found) = self.try_move_set(key, ask, first, Vec::new(), now) {
                return Ok(found);
            }
            if pods >= MOVED_MAX || nodes >= movers.len() {
                break;
            }
            nodes *= 2;
        }
        Err(NoEvictions {
            why: "moving other pods would not make room".into(),
            searched: true,
            again: None,
            not_worth: false,
        })
    }

    /// The members that may move, by node, in the order in which they would be evicted.
    pub(super) fn movers(
        &self,
        key: &GangKey,
        now: Timestamp,
    ) -> BTreeMap<NodeIx, Vec<MovablePod>> {
        let mut gangs: Vec<&VictimKey> =
            self.victims.values().flat_map(|gangs| &gangs.all).collect();
        gangs.sort_unstable();
        let mut movers: BTreeMap<NodeIx, Vec<MovablePod>> = BTreeMap::new();
        let mut turn = 0;
        for victim in gangs {
            let name = &victim.gang.0;
            let Some(gang) = self.gangs.get(name) else {
                continue;
            };
            if name.lone
                || name == key
                || self.protection(gang, now).is_some()
                || self.terms_of(gang).movable == Some(false)
            {
                continue;
            }
            let rank = |pod: &PodKey| self.pods.get(pod).and_then(|pod| pod.rank());
            let mut members: Vec<(u64, (usize, PodKey))> = gang
                .members
                .iter()
                .map(|pod| (rank(pod).unwrap_or(u64::MAX), pod.ranked()))
                .collect();
            members.sort_unstable();
            for (_, (_, pod)) in members.into_iter().rev() {
                let Some(known) = self.pods.get(&pod) else {
                    continue;
                };
                let there = matches!(known.stage, PodStage::Bound | PodStage::Running);
                let Some(at) = known.node.filter(|_| there) else {
                    continue;
                };
                turn += 1;
                movers.entry(at).or_default().push(MovablePod {
                    gpus: whole_gpus(self.classes.get(known.class).demand().get(GPU)),
                    pod,
                    gang: name.clone(),
                    turn,
                    gang_gpus: whole_gpus(gang.allocated.get(GPU)),
                    spare: gang.total.have().saturating_sub(gang.minimum(name)),
                });
            }
        }
        movers
    }

    /// Takes members off their nodes, and further ones while that does not suffice, until the gang
    /// fits and each of them has a new place.
    fn try_move_set(
        &mut self,
        key: &GangKey,
        ask: &MinimumDemand,
        first: Vec<MovablePod>,
        more: Vec<Vec<MovablePod>>,
        now: Timestamp,
    ) -> Option<VictimSet> {
        let mut transaction = self.begin();
        let mut units: Vec<EvictionUnit> = Vec::new();
        let mut seen = BTreeSet::new();
        let steps = std::iter::once(first).chain(more.into_iter().take(MORE_MAX));
        for step in steps {
            if units.len() + step.len() > MOVED_MAX {
                break;
            }
            for mover in step {
                if !seen.insert(mover.turn) {
                    continue;
                }
                let mut unit = EvictionUnit {
                    gang: mover.gang,
                    pods: vec![mover.pod],
                    shrinks: true,
                    before: Vec::new(),
                    why: EvictionReason::Consolidated,
                };
                if let Some(budget) = self.broken_budget(&unit) {
                    self.note_budget(budget);
                    continue;
                }
                self.take(&mut transaction, &mut unit);
                units.push(unit);
            }
            if !self.might_fit(ask) {
                continue;
            }
            let mark = transaction.len();
            if let Some(mut done) = self.rearrange(key, &mut transaction, &units, now) {
                let count = done.moves.iter().filter(|moves| **moves).count();
                if (2..=STAY_TESTS_MAX).contains(&count) {
                    self.undo_to(&mut transaction, mark);
                    let moves = done.moves;
                    match self.with_fewer(key, ask, &mut transaction, (&mut units, moves), now) {
                        Some(fewer) => done = fewer,
                        None => break,
                    }
                }
                let units = units.into_iter().zip(done.moves);
                return Some(VictimSet {
                    first: false,
                    units: units.filter(|(_, moves)| *moves).map(|(b, _)| b).collect(),
                    placed: done.placed,
                    places: done.places,
                    transaction,
                });
            }
            self.undo_to(&mut transaction, mark);
        }
        self.undo(transaction);
        None
    }

    /// Lets moving members stay if the gang fits without their move, possibly on other nodes.
    fn with_fewer(
        &mut self,
        key: &GangKey,
        ask: &MinimumDemand,
        transaction: &mut EvictionTransaction,
        (units, moves): (&mut Vec<EvictionUnit>, Vec<bool>),
        now: Timestamp,
    ) -> Option<Rearranged> {
        let begun = transaction.len();
        let mut movers = self.put_back_the_rest(transaction, units.clone(), &moves);
        let mut untried = stay_candidates(&movers);
        while let Some(stay) = untried.pop() {
            let stays = |mover: &EvictionUnit| mover.pods.iter().any(|pod| stay.contains(pod));
            let moves: Vec<bool> = movers.iter().map(|mover| !stays(mover)).collect();
            if !moves.contains(&false) || !moves.contains(&true) {
                continue;
            }
            let mark = transaction.len();
            let others = self.put_back_the_rest(transaction, movers.clone(), &moves);
            let without = transaction.len();
            let fits = self.might_fit(ask);
            let done = fits.then(|| self.rearrange(key, transaction, &others, now));
            match done.flatten() {
                Some(done) => {
                    self.undo_to(transaction, without);
                    movers = self.put_back_the_rest(transaction, others, &done.moves);
                }
                None => self.undo_to(transaction, mark),
            }
        }
        if let Some(done) = self.rearrange(key, transaction, &movers, now) {
            *units = movers;
            return Some(done);
        }
        self.undo_to(transaction, begun);
        self.rearrange(key, transaction, units, now)
    }

    /// Puts back the members that need not move, and returns the others.
    fn put_back_the_rest(
        &mut self,
        transaction: &mut EvictionTransaction,
        units: Vec<EvictionUnit>,
        moves: &[bool],
    ) -> Vec<EvictionUnit> {
        let mut movers = Vec::new();
        for (unit, moves) in units.into_iter().zip(moves) {
            if *moves {
                movers.push(unit);
            } else {
                self.put_back(transaction, &unit);
            }
        }
        movers
    }

    /// Places the gang, lets the members stay that fit beside it, and finds places for the rest, so
    /// that as few as possible move. Leaves the moving members in stage `Leaving`.
    fn rearrange(
        &mut self,
        key: &GangKey,
        transaction: &mut EvictionTransaction,
        units: &[EvictionUnit],
        now: Timestamp,
    ) -> Option<Rearranged> {
        let placed = transaction.attempt(self, key, now)?;
        let size = |unit: &EvictionUnit| {
            let pods = unit.pods.iter().filter_map(|pod| self.pods.get(pod));
            pods.map(|pod| self.classes.get(pod.class).demand().get(GPU))
                .sum::<i64>()
        };
        let sizes: Vec<i64> = units.iter().map(size).collect();
        // The members are tested for staying in two orders: the largest first, the smallest first.
        let mut largest: Vec<usize> = (0..units.len()).rev().collect();
        largest.sort_by_key(|at| -sizes[*at]);
        let mut smallest: Vec<usize> = (0..units.len()).rev().collect();
        smallest.sort_by_key(|at| sizes[*at]);
        let mut best: Option<(usize, Rearranged)> = None;
        for order in [largest, smallest] {
            let mark = transaction.len();
            let moves = self.put_back_where_possible(transaction, units, &order);
            let count = moves.iter().filter(|moves| **moves).count();
            let better = best.as_ref().is_none_or(|(fewest, _)| count < *fewest);
            if better
                && let Some(places) = self.find_new_places(transaction, units, &moves, now)
                && self.holds_its_quota(key, &placed)
            {
                let done = Rearranged {
                    moves,
                    placed: placed.clone(),
                    places,
                };
                best = Some((count, done));
            }
            self.undo_to(transaction, mark);
        }
        let (_, best) = best?;
        for (unit, moves) in units.iter().zip(&best.moves) {
            if !moves {
                self.put_back(transaction, unit);
            }
        }
        Some(best)
    }

    /// Puts back, in the given order, the members that fit where they were. Returns which of them
    /// move.
    fn put_back_where_possible(
        &mut self,
        transaction: &mut EvictionTransaction,
        units: &[EvictionUnit],
        order: &[usize],
    ) -> Vec<bool> {
        let mut moves = vec![true; units.len()];
        for at in order {
            let mark = transaction.len();
            self.put_back(transaction, &units[*at]);
            if self.all_fit_with(&units[*at]) {
                moves[*at] = false;
            } else {
                self.undo_to(transaction, mark);
            }
        }
        moves
    }

    /// Finds places for the moving members, gang by gang, the largest first.
    fn find_new_places(
        &mut self,
        transaction: &mut EvictionTransaction,
        units: &[EvictionUnit],
        moves: &[bool],
        now: Timestamp,
    ) -> Option<Vec<(GangKey, ReservedPlace)>> {
        let mut gangs: BTreeMap<&GangKey, Vec<PodKey>> = BTreeMap::new();
        for (unit, _) in units.iter().zip(moves).filter(|(_, moves)| **moves) {
            gangs
                .entry(&unit.gang)
                .or_default()
                .extend(unit.pods.clone());
        }
        let mut gangs: Vec<(&GangKey, Vec<PodKey>)> = gangs.into_iter().collect();
        gangs.sort_by_cached_key(|(_, pods)| {
            let demand = |pod: &PodKey| {
                let pod = self.pods.get(pod)?;
                Some(self.classes.get(pod.class).demand().get(GPU))
            };
            -pods.iter().filter_map(demand).sum::<i64>()
        });
        let mut all = Vec::new();
        for (gang, pods) in gangs {
            let places = self.other_places(transaction, gang, &pods, true, now)?;
            if places.len() < pods.len() {
                return None;
            }
            all.extend(places.into_iter().map(|place| (gang.clone(), place)));
        }
        Some(all)
    }

    /// Whether the gang, as placed, is within its queue's bounds.
    fn holds_its_quota(&mut self, key: &GangKey, placed: &[Placement]) -> bool {
        let payer = self.gangs.get(key).and_then(|gang| gang.payer);
        payer.is_some_and(|payer| self.stays_within_quota(payer, placed, |_| true))
    }
}
