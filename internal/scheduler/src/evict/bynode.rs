//! The same candidates, node by node: where victims taken by rank alone would leave a little room
//! on every node and enough on none. The nodes come first on which the least must go for each
//! member that then fits; the search gives back whoever is not needed, as always.

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
        let (class, gpus) = (self.classes.get(class), FreeGpus::of(offer, &held));
        let free = |ix: u8| match ix {
            GPU => gpus.whole * GPU_UNIT,
            _ => node.free(ix) + freed.get(ix),
        };
        headroom(class, node, &gpus, free).0 as usize
    }
}
