//! Defragmentation: the scheduler moves running work that permits it so that whole nodes become
//! free for future gangs. It runs only in plans that move and bind nothing else. It needs three
//! opt-ins: the configuration, the work's annotation, and a budget of moves an hour.
//! [`WhatIf::defragmentation`] says what it would gain and what it would cost without changing
//! anything; a plan carries out the same proposal.
//!
//! Method: nodes on which every pod may move are tried in the order of the GPUs that the moves
//! interrupt. A node is emptied if each of its pods finds a place on a node that is neither whole
//! nor the node itself; otherwise it is left as it was. At most `TRIES_MAX` nodes are tried and
//! `NODES_MAX` emptied.
//!
//! Example: three nodes of 4 GPUs run movable pods of 1, 1 and 2 GPUs, one pod on each node. Two
//! moves put all three on one node and make two nodes whole.
//!
//! Test: `tests/evictions_defragmentation.rs`.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::candidates::EvictionUnit;
use super::move_sets::{MovablePod, standing_still};
use super::reserved_places::ReservedPlace;
use super::transaction::EvictionTransaction;
use crate::config::PlacementStrategy;
use crate::gang::GangKey;
use crate::node::NodeIx;
use crate::plan::{EvictionReason, GroupRef, Plan, PodRef};
use crate::pod::PodKey;
use crate::resource::{GPU, GPU_UNIT, whole_gpus};
use crate::state::Scheduler;
use crate::what_if::WhatIf;

/// The most nodes that one proposal empties.
const NODES_MAX: usize = 32;
/// The most nodes that one proposal tries, those with the fewest interrupted GPUs first.
const TRIES_MAX: usize = 128;

/// How much work defragmentation may move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DefragmentationBudget {
    /// The most members that move in any hour.
    pub moves_an_hour: usize,
    /// A node is emptied only if the interrupted work holds at most this many GPUs for each GPU of
    /// the node.
    pub gpus_interrupted_each: i64,
}

impl Default for DefragmentationBudget {
    fn default() -> DefragmentationBudget {
        DefragmentationBudget {
            moves_an_hour: 8,
            gpus_interrupted_each: 2,
        }
    }
}

/// A member that defragmentation would move.
#[derive(Clone, Debug, PartialEq)]
pub struct Move {
    /// The pod.
    pub pod: PodRef,
    /// Its gang.
    pub group: GroupRef,
    /// The node that the pod leaves.
    pub from: String,
    /// The node that the pod moves to.
    pub to: String,
}

/// What defragmentation would do now, what it gains and what it costs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DefragmentationProposal {
    /// The members that would move, node by node.
    pub moves: Vec<Move>,
    /// Nodes that would become whole.
    pub nodes: Vec<String>,
    /// Whole nodes now: nodes with GPUs, all of them free.
    pub whole_before: usize,
    /// Whole nodes afterwards.
    pub whole_after: usize,
    /// GPUs of the nodes that become whole.
    pub gpus_gained: i64,
    /// GPU-hours of work since its last checkpoint that would be lost, as far as checkpoints are
    /// declared.
    pub gpu_hours_lost: f64,
}

/// The moves that empty one node.
struct Emptying {
    node: NodeIx,
    units: Vec<EvictionUnit>,
    places: Vec<(GangKey, ReservedPlace)>,
}

impl WhatIf {
    /// What defragmentation would do now if it were switched on, within the moves that are left
    /// this hour.
    #[must_use]
    pub fn defragmentation(mut self, now: Timestamp) -> DefragmentationProposal {
        let state = &mut self.0;
        let budget = state.moves_left(now);
        state.rank_nodes();
        state.update_queues();
        let mut transaction = state.begin();
        let emptied = state.empty_nodes(&mut transaction, budget, now);
        let proposal = state.propose(&emptied, now);
        state.undo(transaction);
        proposal
    }
}

impl Scheduler {
    /// Carries out what `defragmentation` proposes: the last step of a plan that decided nothing
    /// else.
    pub(crate) fn defragment(&mut self, now: Timestamp, plan: &mut Plan) {
        // A strategy that spreads pods evenly would undo the moves.
        if !self.config.actions.defragment || self.config.placement == PlacementStrategy::Spread {
            return;
        }
        let busy = !self.nominated.is_empty() || !self.gangs_with_reserved_places.is_empty();
        if busy || !plan.evictions.is_empty() || !plan.binds.is_empty() {
            return;
        }
        let budget = self.moves_left(now);
        let mut transaction = self.begin();
        let emptied = self.empty_nodes(&mut transaction, budget, now);
        if emptied.is_empty() {
            self.undo(transaction);
            return;
        }
        self.keep(transaction);
        for Emptying { units, places, .. } in emptied {
            for pod in units.iter().flat_map(|unit| &unit.pods) {
                self.moved.push_back(now);
                let why = EvictionReason::Defragmented;
                plan.evictions.extend(self.eviction(pod, why, None));
            }
            self.keep_places(places, now);
        }
        self.version += 1;
    }

    /// How many more members may move in the hour up to now.
    fn moves_left(&mut self, now: Timestamp) -> usize {
        let hour = SignedDuration::from_hours(1);
        let from = now.checked_sub(hour).unwrap_or(Timestamp::MIN);
        while self.moved.front().is_some_and(|at| *at <= from) {
            self.moved.pop_front();
        }
        let budget = self.config.defragmentation.moves_an_hour;
        budget.saturating_sub(self.moved.len())
    }

    /// Empties nodes while that is worth its cost: takes all pods off a node and finds each of them
    /// a place on a node that is not whole, or leaves the node as it was. The moving pods are left
    /// in stage `Leaving`.
    fn empty_nodes(
        &mut self,
        transaction: &mut EvictionTransaction,
        budget: usize,
        now: Timestamp,
    ) -> Vec<Emptying> {
        let no_gang = GangKey::lone(&PodKey::new("", ""));
        let movers = self.movers(&no_gang, now);
        let mut order: Vec<(i64, usize, u32, NodeIx)> = Vec::new();
        for (at, on) in &movers {
            let node = &self.nodes[*at];
            let gpus = node.offer.as_ref().map_or(0, |offer| offer.capacity(GPU));
            let gpus = whole_gpus(gpus);
            let willing = |mover: &MovablePod| self.allows_defragmentation(&mover.gang);
            let whole = on.len() == node.pods && on.iter().all(willing);
            if gpus > 0 && node.usable() && whole && on.len() <= budget {
                let interrupted = standing_still(on.iter());
                if interrupted
                    <= gpus.saturating_mul(self.config.defragmentation.gpus_interrupted_each)
                {
                    order.push((interrupted, on.len(), node.rank, *at));
                }
            }
        }
        order.sort_unstable();
        let mut left = budget;
        let mut emptied: Vec<Emptying> = Vec::new();
        let mut filled: BTreeSet<NodeIx> = BTreeSet::new();
        for (.., at) in order.into_iter().take(TRIES_MAX) {
            if emptied.len() == NODES_MAX || filled.contains(&at) || movers[&at].len() > left {
                continue;
            }
            let mark = transaction.len();
            let Some(done) = self.empty_node(transaction, at, &movers[&at], now) else {
                self.undo_to(transaction, mark);
                continue;
            };
            left -= done.units.len();
            filled.extend(done.places.iter().map(|(_, place)| place.node));
            emptied.push(done);
        }
        // The pods were placed only to find their places; the caller reserves these.
        for done in &emptied {
            for unit in &done.units {
                for (pod, placement) in unit.pods.iter().zip(&unit.before) {
                    transaction.set_placement(self, pod, placement.clone());
                    transaction.evict(self, pod);
                }
            }
        }
        emptied
    }

    fn empty_node(
        &mut self,
        transaction: &mut EvictionTransaction,
        at: NodeIx,
        on: &[MovablePod],
        now: Timestamp,
    ) -> Option<Emptying> {
        let mut units = Vec::new();
        let mut gangs: BTreeMap<&GangKey, Vec<PodKey>> = BTreeMap::new();
        for mover in on {
            let mut unit = EvictionUnit {
                gang: mover.gang.clone(),
                pods: vec![mover.pod.clone()],
                shrinks: true,
                before: Vec::new(),
                why: EvictionReason::Defragmented,
            };
            if self.broken_budget(&unit).is_some() {
                return None;
            }
            self.take(transaction, &mut unit);
            units.push(unit);
            gangs
                .entry(&mover.gang)
                .or_default()
                .push(mover.pod.clone());
        }
        let mut places = Vec::new();
        for (gang, pods) in gangs {
            let found = self.other_places(transaction, gang, &pods, true, now)?;
            if found.len() < pods.len() {
                return None;
            }
            places.extend(found.into_iter().map(|place| (gang.clone(), place)));
        }
        // A move gains nothing if the pod lands on a node that was whole, or stays on its node.
        let mut coming: BTreeMap<NodeIx, usize> = BTreeMap::new();
        for (_, place) in &places {
            *coming.entry(place.node).or_default() += 1;
        }
        let only_them = |(node, n): (&NodeIx, &usize)| self.nodes[*node].pods == *n;
        let good = !coming.contains_key(&at) && !coming.iter().any(only_them);
        good.then_some(Emptying {
            node: at,
            units,
            places,
        })
    }

    /// Whether the gang permits moves while no gang waits for its room.
    fn allows_defragmentation(&self, key: &GangKey) -> bool {
        let terms = self.gangs.get(key).map(|gang| self.terms_of(gang));
        terms.is_some_and(|terms| match terms.movable {
            Some(movable) => movable,
            None => terms.checkpoint.is_some(),
        })
    }

    fn propose(&self, emptied: &[Emptying], now: Timestamp) -> DefragmentationProposal {
        let mut proposal = DefragmentationProposal::default();
        for node in self.nodes.iter().filter(|node| node.usable()) {
            let gpus = node.offer.as_ref().map_or(0, |offer| offer.capacity(GPU));
            let empty = gpus > 0 && node.free(GPU) >= gpus;
            proposal.whole_after += usize::from(empty);
        }
        proposal.whole_before = proposal.whole_after.saturating_sub(emptied.len());
        let mut gangs: BTreeSet<&GangKey> = BTreeSet::new();
        for Emptying {
            node,
            units,
            places,
        } in emptied
        {
            let from = &self.nodes[*node];
            proposal.nodes.push(from.name.to_string());
            let gpus = from.offer.as_ref().map_or(0, |offer| offer.capacity(GPU));
            proposal.gpus_gained += gpus / GPU_UNIT;
            gangs.extend(units.iter().map(|unit| &unit.gang));
            for (gang, place) in places {
                proposal.moves.push(Move {
                    pod: place.pod_ref(),
                    group: GroupRef::of(gang),
                    from: from.name.to_string(),
                    to: self.nodes[place.node].name.to_string(),
                });
            }
        }
        for key in gangs {
            let Some(gang) = self.gangs.get(key) else {
                continue;
            };
            let members = gang.members.iter().filter_map(|pod| self.pods.get(pod));
            let Some(started) = members.filter_map(|pod| pod.started).min() else {
                continue;
            };
            let ran = now.duration_since(started).as_secs().max(0);
            // The work up to its last checkpoint is not lost.
            let checkpoint = self.terms_of(gang).checkpoint;
            let lost = checkpoint.map_or(ran, |every| ran.min(every));
            let gpus = gang.requested.get(GPU) as f64 / GPU_UNIT as f64;
            proposal.gpu_hours_lost += gpus * lost as f64 / 3600.0;
        }
        proposal
    }
}
