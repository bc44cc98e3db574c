//! The same candidates, node by node: where victims taken by rank alone would leave a little room
//! on every node and enough on none. The nodes come first on which the least must go for each
//! member that then fits; or, where those who lose have too little to lose for that, on which the
//! least of it must go. The search gives back whoever is not needed, as always.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::candidates::Bite;
use super::search::{Ask, Candidates};
use crate::class::ClassIx;
use crate::fit::headroom;
use crate::gang::GangKey;
use crate::node::NodeIx;
use crate::pod::PodKey;
use crate::resource::{GPU, GPU_UNIT, Room};
use crate::share::FreeGpus;
use crate::state::Scheduler;

/// How many that are on one node are weighed against each other.
const WEIGHED_MAX: usize = 32;

/// A bite and those that must go before it.
struct Whole {
    bites: Vec<usize>,
    pods: Vec<PodKey>,
    /// What all of them hold.
    gpus: i64,
    /// What the last of them holds.
    last: i64,
}

/// Candidates in another order, on the grounds of those that they come from.
pub(super) struct ByNode<'a> {
    pub(super) bites: VecDeque<Bite>,
    pub(super) grounds: &'a dyn Candidates,
}

impl Candidates for ByNode<'_> {
    fn next(&mut self, state: &mut Scheduler) -> Option<Bite> {
        while let Some(bite) = self.bites.pop_front() {
            if self.grounds.may_take(state, &bite) {
                return Some(bite);
            }
        }
        None
    }

    fn admits(&self, state: &Scheduler) -> bool {
        self.grounds.admits(state)
    }
}

impl Scheduler {
    /// Orders bites by the nodes that they clear. None of them may be taken yet.
    pub(super) fn by_node(&mut self, ask: &Ask, bites: Vec<Bite>) -> VecDeque<Bite> {
        let Some(class) = self.largest(ask) else {
            return bites.into();
        };
        let mut on: BTreeMap<NodeIx, Vec<usize>> = BTreeMap::new();
        for (at, bite) in bites.iter().enumerate() {
            let nodes: BTreeSet<NodeIx> = bite
                .pods
                .iter()
                .filter_map(|pod| self.pods.get(pod)?.node)
                .collect();
            for node in nodes {
                on.entry(node).or_default().push(at);
            }
        }
        // For each node: how many go for each member that fits, in thousandths, then its rank.
        let mut order: Vec<(usize, u32, NodeIx)> = Vec::new();
        for (node, list) in &on {
            let pods = list.iter().flat_map(|at| &bites[*at].pods);
            let fits = self.holds_without(*node, pods, class);
            let pods: usize = list.iter().map(|at| bites[*at].pods.len()).sum();
            if let Some(price) = (pods * 1000).checked_div(fits) {
                order.push((price, self.nodes[*node].rank, *node));
            }
        }
        order.sort_unstable();
        let mut surplus: BTreeMap<&GangKey, Vec<usize>> = BTreeMap::new();
        for (at, bite) in bites.iter().enumerate().filter(|(_, bite)| bite.shrinks) {
            surplus.entry(&bite.gang).or_default().push(at);
        }
        let mut taken = vec![false; bites.len()];
        let mut all = VecDeque::new();
        let none = Vec::new();
        for at in order.iter().flat_map(|(_, _, node)| &on[node]) {
            // A gang is lost whole: what it does not need goes before it.
            let own = match bites[*at].shrinks {
                true => &none,
                false => surplus.get(&bites[*at].gang).unwrap_or(&none),
            };
            for at in own.iter().chain([at]) {
                if !std::mem::replace(&mut taken[*at], true) {
                    all.push_back(bites[*at].clone());
                }
            }
        }
        all
    }

    /// Orders bites by how little goes of what they are beyond their share before the last of them
    /// does: for each node as few as make room for one member, the largest last. None of them may
    /// be taken yet. For where the other orders come to nothing, because those who lose have no
    /// more to lose before there is room.
    pub(super) fn by_excess(&mut self, ask: &Ask, bites: &[Bite]) -> VecDeque<Bite> {
        let Some(class) = self.largest(ask) else {
            return VecDeque::new();
        };
        let wholes = self.wholes(bites);
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
        let order = order.flat_map(|at| &wholes[*at].bites);
        let order = order.filter(|at| taken.insert(**at));
        order.map(|at| bites[*at].clone()).collect()
    }

    /// Each bite with those that must go before it: a gang is lost whole, after what it does not
    /// need.
    fn wholes(&self, bites: &[Bite]) -> Vec<Whole> {
        let mut surplus: BTreeMap<&GangKey, Vec<usize>> = BTreeMap::new();
        let mut wholes = Vec::with_capacity(bites.len());
        for (at, bite) in bites.iter().enumerate() {
            let own = surplus.entry(&bite.gang).or_default();
            let mut all = Vec::new();
            if bite.shrinks {
                own.push(at);
            } else {
                all.clone_from(own);
            }
            all.push(at);
            let pods = all.iter().flat_map(|at| &bites[*at].pods);
            let gpus = |pods: &[PodKey]| -> i64 {
                let known = pods.iter().filter_map(|pod| self.pods.get(pod));
                known
                    .map(|pod| self.classes.get(pod.class).demand().get(GPU))
                    .sum()
            };
            wholes.push(Whole {
                pods: pods.cloned().collect(),
                gpus: all.iter().map(|at| gpus(&bites[*at].pods)).sum(),
                last: gpus(&bite.pods),
                bites: all,
            });
        }
        wholes
    }

    /// The least that must go before the last one so that a node has room for one of a class; the
    /// last one comes last. All of them together are enough.
    fn least_before(
        &self,
        node: NodeIx,
        last: usize,
        list: &[usize],
        wholes: &[Whole],
        class: ClassIx,
    ) -> Vec<usize> {
        let suffices = |set: &[usize]| {
            let all = set.iter().chain([&last]);
            let pods: BTreeSet<&PodKey> = all.flat_map(|at| &wholes[*at].pods).collect();
            self.holds_without(node, pods.into_iter(), class) > 0
        };
        let mut others: Vec<usize> = list.iter().copied().filter(|at| *at != last).collect();
        others.sort_by_key(|at| (wholes[*at].gpus, *at));
        // The more go, the more there is room for.
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
    pub(super) fn largest(&self, ask: &Ask) -> Option<ClassIx> {
        let classes = ask.classes();
        let classes = classes.iter().map(|(class, ..)| *class);
        classes.max_by_key(|class| self.classes.get(*class).demand().get(GPU))
    }

    /// How many of a class fit on a node if these pods, where they are on it, are gone.
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
