//! Candidates ordered by the nodes that they clear.
//!
//! Problem: victims taken by rank alone may leave a little room on every node and enough on none.
//! Two orders help. `by_node` puts first the nodes on which the fewest victims make room for each
//! member of the preemptor. `by_excess` puts first the nodes on which the victims before the last
//! one hold the least, for queues that hold too little above their share for the first order. The
//! search releases the victims that it does not need, in either order.
//!
//! Cost: for each node with candidates one count of the members that fit without them; `by_excess`
//! also a bisection for each of at most `WEIGHED_MAX` candidates of a node.
//!
//! Example: 16 gangs of one GPU fill four nodes of 4 GPUs, and the eight youngest run two on each
//! node. A gang of two members of 4 GPUs reclaims eight GPUs: by rank the eight victims leave 2
//! GPUs free on every node, by node they clear two nodes.
//!
//! Test: `victims_are_taken_node_by_node_where_their_order_clears_no_node` in
//! `tests/evictions.rs`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::candidates::EvictionUnit;
use super::search::{Candidates, MinimumDemand};
use crate::class::ClassIx;
use crate::fit::headroom;
use crate::gang::GangKey;
use crate::node::NodeIx;
use crate::pod::PodKey;
use crate::resource::{GPU, GPU_UNIT, Room};
use crate::share::FreeGpus;
use crate::state::Scheduler;

/// The most candidates of one node that are compared.
const WEIGHED_MAX: usize = 32;

/// A candidate and the candidates that must be evicted before it.
struct CandidateSet {
    units: Vec<usize>,
    pods: Vec<PodKey>,
    /// The GPUs that all of them hold.
    gpus: i64,
    /// The GPUs that the last of them holds.
    last: i64,
}

/// Candidates in another order; `grounds` decides which of them may be taken.
pub(super) struct VictimsByNode<'a> {
    pub(super) units: VecDeque<EvictionUnit>,
    pub(super) grounds: &'a dyn Candidates,
}

impl Candidates for VictimsByNode<'_> {
    fn next(&mut self, state: &mut Scheduler) -> Option<EvictionUnit> {
        while let Some(unit) = self.units.pop_front() {
            if self.grounds.may_take(state, &unit) {
                return Some(unit);
            }
        }
        None
    }

    fn admits(&self, state: &Scheduler) -> bool {
        self.grounds.admits(state)
    }
}

impl Scheduler {
    /// Orders candidates by the nodes that they clear. None of them may be taken yet.
    pub(super) fn by_node(
        &mut self,
        ask: &MinimumDemand,
        units: Vec<EvictionUnit>,
    ) -> VecDeque<EvictionUnit> {
        let Some(class) = self.largest(ask) else {
            return units.into();
        };
        let mut on: BTreeMap<NodeIx, Vec<usize>> = BTreeMap::new();
        for (at, unit) in units.iter().enumerate() {
            let nodes: BTreeSet<NodeIx> = unit
                .pods
                .iter()
                .filter_map(|pod| self.pods.get(pod)?.node)
                .collect();
            for node in nodes {
                on.entry(node).or_default().push(at);
            }
        }
        // For each node: thousandths of a victim for each member that fits, then the node's rank.
        let mut order: Vec<(usize, u32, NodeIx)> = Vec::new();
        for (node, list) in &on {
            let pods = list.iter().flat_map(|at| &units[*at].pods);
            let fits = self.holds_without(*node, pods, class);
            let pods: usize = list.iter().map(|at| units[*at].pods.len()).sum();
            if let Some(price) = (pods * 1000).checked_div(fits) {
                order.push((price, self.nodes[*node].rank, *node));
            }
        }
        order.sort_unstable();
        let mut surplus: BTreeMap<&GangKey, Vec<usize>> = BTreeMap::new();
        for (at, unit) in units.iter().enumerate().filter(|(_, unit)| unit.shrinks) {
            surplus.entry(&unit.gang).or_default().push(at);
        }
        let mut taken = vec![false; units.len()];
        let mut all = VecDeque::new();
        let none = Vec::new();
        for at in order.iter().flat_map(|(_, _, node)| &on[node]) {
            // A gang is evicted whole, after its surplus members.
            let own = match units[*at].shrinks {
                true => &none,
                false => surplus.get(&units[*at].gang).unwrap_or(&none),
            };
            for at in own.iter().chain([at]) {
                if !std::mem::replace(&mut taken[*at], true) {
                    all.push_back(units[*at].clone());
                }
            }
        }
        all
    }

    /// Orders candidates so that the victims before the last one of a node hold as little as
    /// possible: for each node a smallest set that makes room for one member, its largest candidate
    /// last. None of them may be taken yet. This order is for queues that hold so little above
    /// their share that the other orders fail.
    pub(super) fn by_excess(
        &mut self,
        ask: &MinimumDemand,
        units: &[EvictionUnit],
    ) -> VecDeque<EvictionUnit> {
        let Some(class) = self.largest(ask) else {
            return VecDeque::new();
        };
        let wholes = self.wholes(units);
        let mut on: BTreeMap<NodeIx, Vec<usize>> = BTreeMap::new();
        for (at, whole) in wholes.iter().enumerate() {
            let pods = whole.pods.iter().filter_map(|pod| self.pods.get(pod)?.node);
            for node in pods.collect::<BTreeSet<NodeIx>>() {
                on.entry(node).or_default().push(at);
            }
        }
        let mut sets: Vec<(i64, u32, Vec<usize>)> = Vec::new();
        for (node, list) in &on {
            let list = &list[..list.len().min(WEIGHED_MAX)];
            let all = list.iter().flat_map(|at| &wholes[*at].pods);
            let all: BTreeSet<&PodKey> = all.collect();
            if self.holds_without(*node, all.into_iter(), class) == 0 {
                continue;
            }
            let each = list.iter().map(|last| {
                let set = self.least_before(*node, *last, list, &wholes, class);
                let before: i64 = set.iter().map(|at| wholes[*at].gpus).sum();
                (before - wholes[*last].last, self.nodes[*node].rank, set)
            });
            sets.extend(each.min());
        }
        sets.sort_unstable();
        let mut taken = BTreeSet::new();
        let order = sets.iter().flat_map(|(.., set)| set);
        let order = order.flat_map(|at| &wholes[*at].units);
        let order = order.filter(|at| taken.insert(**at));
        order.map(|at| units[*at].clone()).collect()
    }

    /// Each candidate with those that must be evicted before it: a gang is evicted whole, after its
    /// surplus members.
    fn wholes(&self, units: &[EvictionUnit]) -> Vec<CandidateSet> {
        let mut surplus: BTreeMap<&GangKey, Vec<usize>> = BTreeMap::new();
        let mut wholes = Vec::with_capacity(units.len());
        for (at, unit) in units.iter().enumerate() {
            let own = surplus.entry(&unit.gang).or_default();
            let mut all = Vec::new();
            if unit.shrinks {
                own.push(at);
            } else {
                all.clone_from(own);
            }
            all.push(at);
            let pods = all.iter().flat_map(|at| &units[*at].pods);
            let gpus = |pods: &[PodKey]| -> i64 {
                let known = pods.iter().filter_map(|pod| self.pods.get(pod));
                known
                    .map(|pod| self.classes.get(pod.class).demand().get(GPU))
                    .sum()
            };
            wholes.push(CandidateSet {
                pods: pods.cloned().collect(),
                gpus: all.iter().map(|at| gpus(&units[*at].pods)).sum(),
                last: gpus(&unit.pods),
                units: all,
            });
        }
        wholes
    }

    /// The least that must be evicted before candidate `last` so that the node has room for one
    /// member of the class; `last` comes last. The whole list must be enough.
    fn least_before(
        &self,
        node: NodeIx,
        last: usize,
        list: &[usize],
        wholes: &[CandidateSet],
        class: ClassIx,
    ) -> Vec<usize> {
        let suffices = |set: &[usize]| {
            let all = set.iter().chain([&last]);
            let pods: BTreeSet<&PodKey> = all.flat_map(|at| &wholes[*at].pods).collect();
            self.holds_without(node, pods.into_iter(), class) > 0
        };
        let mut others: Vec<usize> = list.iter().copied().filter(|at| *at != last).collect();
        others.sort_by_key(|at| (wholes[*at].gpus, *at));
        // More victims never make less room.
        let (mut enough, mut few) = (others.len(), 0);
        while few < enough {
            let middle = few + (enough - few) / 2;
            if suffices(&others[..middle]) {
                enough = middle;
            } else {
                few = middle + 1;
            }
        }
        others.truncate(enough);
        let mut at = 0;
        while at < others.len() {
            let one = others.remove(at);
            if !suffices(&others) {
                others.insert(at, one);
                at += 1;
            }
        }
        others.push(last);
        others
    }

    /// The class of the largest member that is certain to be placed.
    pub(super) fn largest(&self, ask: &MinimumDemand) -> Option<ClassIx> {
        let classes = ask.classes();
        let classes = classes.iter().map(|(class, ..)| *class);
        classes.max_by_key(|class| self.classes.get(*class).demand().get(GPU))
    }

    /// How many members of a class fit on a node without those of the given pods that are on it.
    pub(super) fn holds_without<'a>(
        &self,
        at: NodeIx,
        pods: impl Iterator<Item = &'a PodKey>,
        class: ClassIx,
    ) -> usize {
        let mut freed = Room::default();
        let mut held = self.nodes[at].held.clone();
        for pod in pods {
            if let Some(pod) = self.pods.get(pod)
                && pod.node == Some(at)
            {
                let take = self.take_on(pod.class, at);
                freed.add(&take.demand, 1);
                held.release(&take, &pod.devices);
            }
        }
        let node = &self.nodes[at];
        let Some(offer) = &node.offer else { return 0 };
        let class = self.classes.get(class);
        let gpus = FreeGpus::for_class(class, offer, &held);
        let free = |ix: u8| match ix {
            GPU => gpus.whole * GPU_UNIT,
            _ => node.free(ix) + freed.get(ix),
        };
        headroom(class, node, &gpus, free).0 as usize
    }
}
