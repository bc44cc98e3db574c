//! Consolidation: running members are moved so that a gang fits, as few as can be, and only if each
//! of them has a new place in the same plan. A pod cannot be carried over: it is evicted, and its
//! new place is kept for whoever comes in its stead. Pods without a PodGroup are not moved: nobody
//! may bring them back. Who would have to go where is worked out by `clearing`.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::Refusal;
use super::candidates::{Bite, VictimKey};
use super::clearing::{Clearing, Mover};
use super::kept::Kept;
use super::search::{Ask, Found};
use super::txn::Txn;
use crate::gang::GangKey;
use crate::node::NodeIx;
use crate::place::Placement;
use crate::plan::EvictionReason;
use crate::pod::{PodKey, Stage};
use crate::resource::{GPU, PODS, whole_gpus};
use crate::state::Scheduler;

/// How many members may be on the move for one gang that wants room.
const MOVED_MAX: usize = 512;
/// How many sets of members are tried for one gang.
const TRIES_MAX: usize = 24;
/// How many clearings more are tried where the first do not do.
pub(super) const MORE_MAX: usize = 4;
/// Of so many on the move at most each is asked whether the others would do.
const SINGLED_OUT_MAX: usize = 16;
/// So many nodes are cleared as a whole at most, where moving the fewest does not do.
const WHOLE_NODES_MAX: usize = 16;

/// What came of placing a gang among members on the move.
struct Rearranged {
    /// Which of them move.
    moves: Vec<bool>,
    placed: Vec<Placement>,
    places: Vec<(GangKey, Kept)>,
}

/// Who of those that move are asked whether the others would do, the last first: each by himself, then all of a gang.
fn singled_out(movers: &[Bite]) -> Vec<Vec<PodKey>> {
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
    /// Seeks members to move so that a gang fits.
    pub(super) fn consolidate(
        &mut self,
        key: &GangKey,
        ask: &Ask,
        now: Timestamp,
    ) -> Result<Found, Refusal> {
        if !self.within_quota(ask) {
            return Err(Refusal::at_once(
                "moving others does not change what its queue may use",
            ));
        }
        let mut asked = ask.demand.0.iter().filter(|(ix, _)| *ix != PODS);
        if asked.any(|(ix, amount)| self.idle(*ix) < *amount) {
            return Err(Refusal::at_once(
                "too little is free in all for moving others to help",
            ));
        }
        let movers = self.movers(key, now);
        let tries = self.clearings(key, ask, &movers);
        for Clearing { first, more } in tries.into_iter().take(TRIES_MAX) {
            if let Some(found) = self.try_clearing(key, ask, first, more, now) {
                return Ok(found);
            }
        }
        let mut nodes = 2;
        while nodes <= WHOLE_NODES_MAX {
            let first = self.whole_nodes(ask, &movers, nodes);
            let pods = first.len();
            if let Some(found) = self.try_clearing(key, ask, first, Vec::new(), now) {
                return Ok(found);
            }
            if pods >= MOVED_MAX || nodes >= movers.len() {
                break;
            }
            nodes *= 2;
        }
        Err(Refusal {
            why: "moving others would not make room".into(),
            searched: true,
            again: None,
            not_worth: false,
        })
    }

    /// Members that may be moved, by node; those who would be evicted first come first.
    pub(super) fn movers(&self, key: &GangKey, now: Timestamp) -> BTreeMap<NodeIx, Vec<Mover>> {
        let mut gangs: Vec<&VictimKey> =
            self.victims.values().flat_map(|gangs| &gangs.all).collect();
        gangs.sort_unstable();
        let mut movers: BTreeMap<NodeIx, Vec<Mover>> = BTreeMap::new();
        let mut turn = 0;
        for victim in gangs {
            let name = &victim.gang.0;
            let Some(gang) = self.gangs.get(name) else {
                continue;
            };
            if name.lone
                || name == key
                || self.spared(gang, now).is_some()
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
                let there = matches!(known.stage, Stage::Bound | Stage::Running);
                let Some(at) = known.node.filter(|_| there) else {
                    continue;
                };
                turn += 1;
                movers.entry(at).or_default().push(Mover {
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

    /// Takes members off their nodes, then more while that does not do, until the gang fits and
    /// each of them has a place.
    fn try_clearing(
        &mut self,
        key: &GangKey,
        ask: &Ask,
        first: Vec<Mover>,
        more: Vec<Vec<Mover>>,
        now: Timestamp,
    ) -> Option<Found> {
        let mut txn = self.begin();
        let mut bites: Vec<Bite> = Vec::new();
        let mut seen = BTreeSet::new();
        let steps = std::iter::once(first).chain(more.into_iter().take(MORE_MAX));
        for step in steps {
            if bites.len() + step.len() > MOVED_MAX {
                break;
            }
            for mover in step {
                if !seen.insert(mover.turn) {
                    continue;
                }
                let mut bite = Bite {
                    gang: mover.gang,
                    pods: vec![mover.pod],
                    shrinks: true,
                    before: Vec::new(),
                    why: EvictionReason::Consolidated,
                };
                if let Some(budget) = self.broken_budget(&bite) {
                    self.note_budget(budget);
                    continue;
                }
                self.take(&mut txn, &mut bite);
                bites.push(bite);
            }
            if !self.might_fit(ask) {
                continue;
            }
            let mark = txn.len();
            if let Some(mut done) = self.rearrange(key, &mut txn, &bites, now) {
                let count = done.moves.iter().filter(|moves| **moves).count();
                if (2..=SINGLED_OUT_MAX).contains(&count) {
                    self.undo_to(&mut txn, mark);
                    let moves = done.moves;
                    match self.with_fewer(key, ask, &mut txn, (&mut bites, moves), now) {
                        Some(fewer) => done = fewer,
                        None => break,
                    }
                }
                let bites = bites.into_iter().zip(done.moves);
                return Some(Found {
                    first: false,
                    bites: bites.filter(|(_, moves)| *moves).map(|(b, _)| b).collect(),
                    placed: done.placed,
                    places: done.places,
                    txn,
                });
            }
            self.undo_to(&mut txn, mark);
        }
        self.undo(txn);
        None
    }

    /// Lets whoever of those that move stay without whom the others would do, wherever the gang goes then.
    fn with_fewer(
        &mut self,
        key: &GangKey,
        ask: &Ask,
        txn: &mut Txn,
        (bites, moves): (&mut Vec<Bite>, Vec<bool>),
        now: Timestamp,
    ) -> Option<Rearranged> {
        let begun = txn.len();
        let mut movers = self.put_back_the_rest(txn, bites.clone(), &moves);
        let mut untried = singled_out(&movers);
        while let Some(stay) = untried.pop() {
            let stays = |mover: &Bite| mover.pods.iter().any(|pod| stay.contains(pod));
            let moves: Vec<bool> = movers.iter().map(|mover| !stays(mover)).collect();
            if !moves.contains(&false) || !moves.contains(&true) {
                continue;
            }
            let mark = txn.len();
            let others = self.put_back_the_rest(txn, movers.clone(), &moves);
            let without = txn.len();
            let fits = self.might_fit(ask);
            let done = fits.then(|| self.rearrange(key, txn, &others, now));
            match done.flatten() {
                Some(done) => {
                    self.undo_to(txn, without);
                    movers = self.put_back_the_rest(txn, others, &done.moves);
                }
                None => self.undo_to(txn, mark),
            }
        }
        if let Some(done) = self.rearrange(key, txn, &movers, now) {
            *bites = movers;
            return Some(done);
        }
        self.undo_to(txn, begun);
        self.rearrange(key, txn, bites, now)
    }

    /// Those who move; the others are where they were.
    fn put_back_the_rest(&mut self, txn: &mut Txn, bites: Vec<Bite>, moves: &[bool]) -> Vec<Bite> {
        let mut movers = Vec::new();
        for (bite, moves) in bites.into_iter().zip(moves) {
            if *moves {
                movers.push(bite);
            } else {
                self.put_back(txn, &bite);
            }
        }
        movers
    }

    /// Places the gang, lets those stay who fit beside it, and finds places for the rest, so that
    /// as few as can be move. Leaves these as leaving.
    fn rearrange(
        &mut self,
        key: &GangKey,
        txn: &mut Txn,
        bites: &[Bite],
        now: Timestamp,
    ) -> Option<Rearranged> {
        let placed = txn.attempt(self, key, now)?;
        let size = |bite: &Bite| {
            let pods = bite.pods.iter().filter_map(|pod| self.pods.get(pod));
            pods.map(|pod| self.classes.get(pod.class).demand().get(GPU))
                .sum::<i64>()
        };
        let sizes: Vec<i64> = bites.iter().map(size).collect();
        // Who is asked first whether he may stay: the largest, the smallest.
        let mut largest: Vec<usize> = (0..bites.len()).rev().collect();
        largest.sort_by_key(|at| -sizes[*at]);
        let mut smallest: Vec<usize> = (0..bites.len()).rev().collect();
        smallest.sort_by_key(|at| sizes[*at]);
        let mut best: Option<(usize, Rearranged)> = None;
        for order in [largest, smallest] {
            let mark = txn.len();
            let moves = self.stay_beside(txn, bites, &order);
            let count = moves.iter().filter(|moves| **moves).count();
            let better = best.as_ref().is_none_or(|(fewest, _)| count < *fewest);
            if better
                && let Some(places) = self.rehouse(txn, bites, &moves, now)
                && self.holds_its_quota(key, &placed)
            {
                let done = Rearranged {
                    moves,
                    placed: placed.clone(),
                    places,
                };
                best = Some((count, done));
            }
            self.undo_to(txn, mark);
        }
        let (_, best) = best?;
        for (bite, moves) in bites.iter().zip(&best.moves) {
            if !moves {
                self.put_back(txn, bite);
            }
        }
        Some(best)
    }

    /// Puts back, in an order, those who fit where they were; who moves?
    fn stay_beside(&mut self, txn: &mut Txn, bites: &[Bite], order: &[usize]) -> Vec<bool> {
        let mut moves = vec![true; bites.len()];
        for at in order {
            let mark = txn.len();
            self.put_back(txn, &bites[*at]);
            if self.all_fit_beside(&bites[*at]) {
                moves[*at] = false;
            } else {
                self.undo_to(txn, mark);
            }
        }
        moves
    }

    /// Finds places for those who move, gang by gang, the largest first.
    fn rehouse(
        &mut self,
        txn: &mut Txn,
        bites: &[Bite],
        moves: &[bool],
        now: Timestamp,
    ) -> Option<Vec<(GangKey, Kept)>> {
        let mut gangs: BTreeMap<&GangKey, Vec<PodKey>> = BTreeMap::new();
        for (bite, _) in bites.iter().zip(moves).filter(|(_, moves)| **moves) {
            gangs
                .entry(&bite.gang)
                .or_default()
                .extend(bite.pods.clone());
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
            let places = self.other_places(txn, gang, &pods, true, now)?;
            if places.len() < pods.len() {
                return None;
            }
            all.extend(places.into_iter().map(|place| (gang.clone(), place)));
        }
        Some(all)
    }

    /// Is the gang, as placed, within its queue's bounds?
    fn holds_its_quota(&mut self, key: &GangKey, placed: &[Placement]) -> bool {
        let payer = self.gangs.get(key).and_then(|gang| gang.payer);
        payer.is_some_and(|payer| self.stays_within_quota(payer, placed, |_| true))
    }
}
