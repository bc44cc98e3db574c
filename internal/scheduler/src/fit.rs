//! For one class: how many of its pods each node holds, which node to take next, and how many nodes
//! are infeasible for which reason.
//!
//! Method: a view is kept across plans and updated from the nodes that changed since it was last
//! used, so a query costs those changes. Sums are kept by topology domain, and an ordered set of
//! nodes with room is built on first use.
//!
//! Example: 1,000 nodes, 3 of which changed since the last plan: refreshing costs 3 nodes.
//!
//! Tests: `tests/nodes.rs`, `tests/properties.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use crate::class::{Class, RuntimeNeed};
use crate::filter::{self, InfeasibleReason};
use crate::node::{Node, NodeAttributes, NodeIx};
use crate::resource::{GPU, GPU_UNIT, Ix, NAMES_MAX, ResourceSet};
use crate::score::{self, NodeRank};
use crate::share::FreeGpus;
use crate::topology::{DomainIx, DomainTree};

/// The state of one node for the class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum NodeFit {
    /// There is no such node.
    Absent,
    Refused(InfeasibleReason),
    /// It holds `key.count` pods; `limits` are the resources that allow no more.
    Holds {
        key: NodeRank,
        limits: ResourceSet,
    },
    /// It holds none; `limits` are the resources that are short.
    Short {
        limits: ResourceSet,
        /// True if it would hold one, were its GPUs not limited to one for each container.
        apart: bool,
    },
}

impl NodeFit {
    /// Its key, if it has room.
    fn key(self) -> Option<NodeRank> {
        match self {
            NodeFit::Holds { key, .. } => Some(key),
            _ => None,
        }
    }

    /// How many pods of the class it holds.
    fn count(self) -> u32 {
        self.key().map_or(0, |key| key.count)
    }
}

/// What stays true while the node's offer does not change.
#[derive(Clone, Copy, Debug)]
struct OfferFacts {
    offered: u64,
    refusal: Option<InfeasibleReason>,
    tier: i64,
    /// How many pods of the class the empty node holds.
    empty: u32,
    /// True if it can run the class's images; false for a class without images.
    runs: bool,
}

/// What is kept for one node, in one place because it is read together.
#[derive(Clone, Copy, Debug)]
struct NodeSlot {
    node_fit: NodeFit,
    fixed: Option<OfferFacts>,
    /// The domain in whose sums it is counted.
    own_domain: Option<DomainIx>,
}

impl Default for NodeSlot {
    fn default() -> NodeSlot {
        NodeSlot {
            node_fit: NodeFit::Absent,
            fixed: None,
            own_domain: None,
        }
    }
}

/// How many nodes are infeasible, by reason; nodes with room count under the resource that limits
/// them.
#[derive(Clone, Debug)]
pub(crate) struct InfeasibleTally {
    refused: [usize; InfeasibleReason::ALL.len()],
    short: Vec<usize>,
    /// Nodes short of GPUs that would have enough, were they not limited to one for each container.
    pub(crate) apart: usize,
    pub(crate) nodes: usize,
}

impl Default for InfeasibleTally {
    fn default() -> InfeasibleTally {
        InfeasibleTally {
            refused: [0; InfeasibleReason::ALL.len()],
            short: vec![0; NAMES_MAX],
            apart: 0,
            nodes: 0,
        }
    }
}

impl InfeasibleTally {
    fn count(&mut self, node_fit: NodeFit, up: bool) {
        let change = |n: &mut usize| if up { *n += 1 } else { *n -= 1 };
        match node_fit {
            NodeFit::Absent => return,
            NodeFit::Refused(refusal) => change(&mut self.refused[refusal as usize]),
            NodeFit::Holds { limits, .. } | NodeFit::Short { limits, .. } => {
                let mut rest = limits;
                while rest != 0 {
                    change(&mut self.short[rest.trailing_zeros() as usize]);
                    rest &= rest - 1;
                }
            }
        }
        if let NodeFit::Short { apart: true, .. } = node_fit {
            change(&mut self.apart);
        }
        change(&mut self.nodes);
    }

    pub(crate) fn refused(&self) -> impl Iterator<Item = (InfeasibleReason, usize)> + '_ {
        let all = InfeasibleReason::ALL
            .into_iter()
            .map(|refusal| (refusal, self.refused[refusal as usize]));
        all.filter(|(_, nodes)| *nodes > 0)
    }

    pub(crate) fn short(&self) -> impl Iterator<Item = (Ix, usize)> + '_ {
        let all = self
            .short
            .iter()
            .enumerate()
            .map(|(ix, nodes)| (ix as Ix, *nodes));
        all.filter(|(_, nodes)| *nodes > 0)
    }
}

/// One class's view of all nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClassView {
    /// The last node change that was applied.
    pub(crate) seen: u64,
    /// The last plan that used it.
    pub(crate) asked: u64,
    sites: Vec<NodeSlot>,
    /// Nodes with room, the best first. Built on first use; most views never need it.
    order: OnceLock<BTreeSet<(NodeRank, NodeIx)>>,
    /// The number of nodes with room, by tier and by the part of it that is for starting to share a
    /// GPU.
    tiers: BTreeMap<(i64, i64), usize>,
    /// For pods with images: the number of nodes that can run images.
    runners: usize,
    /// How many pods of the class all nodes together hold now.
    pub(crate) room: u64,
    /// How many they would hold when empty.
    pub(crate) empty: u64,
    pub(crate) tally: InfeasibleTally,
    /// The last change that gave some node more room.
    pub(crate) gained: u64,
    /// The last change of any node's state.
    pub(crate) changed: u64,
    /// The topology's numbering that the sums refer to.
    pub(crate) epoch: u64,
    /// What each domain holds now, and would hold when empty.
    sums: Vec<u64>,
    empty_sums: Vec<u64>,
}

impl ClassView {
    /// Grows the table to so many nodes at once.
    pub(crate) fn widen(&mut self, nodes: usize) {
        if self.sites.len() < nodes {
            self.sites.resize(nodes, NodeSlot::default());
        }
    }

    /// Updates one node.
    pub(crate) fn refresh(&mut self, class: &Class, at: NodeIx, node: &Node, tree: &DomainTree) {
        self.widen(at + 1);
        if self.sums.len() < tree.len() {
            self.sums.resize(tree.len(), 0);
            self.empty_sums.resize(tree.len(), 0);
        }
        let old = self.sites[at];
        let old_count = old.node_fit.count();
        let old_empty = old.fixed.map_or(0, |fixed| fixed.empty);
        let fixed = node.offer.as_ref().map(|offer| match old.fixed {
            Some(fixed) if fixed.offered == node.offered => fixed,
            _ => judge(class, node, offer),
        });
        let new_empty = fixed.map_or(0, |fixed| fixed.empty);
        self.empty = self.empty - u64::from(old_empty) + u64::from(new_empty);
        let runs = |fixed: Option<OfferFacts>| usize::from(fixed.is_some_and(|fixed| fixed.runs));
        self.runners = self.runners - runs(old.fixed) + runs(fixed);

        let node_fit = match (&node.offer, fixed) {
            (Some(offer), Some(fixed)) => stand(class, node, offer, fixed),
            _ => NodeFit::Absent,
        };
        let count = node_fit.count();
        let own_domain = tree.narrowest_domain(at);
        self.sites[at] = NodeSlot {
            node_fit,
            fixed,
            own_domain,
        };
        if old.own_domain != own_domain || old_count != count || old_empty != new_empty {
            self.shift(
                tree,
                old.own_domain,
                -i64::from(old_count),
                -i64::from(old_empty),
            );
            self.shift(tree, own_domain, i64::from(count), i64::from(new_empty));
        }
        if count > old_count || (old.own_domain != own_domain && count > 0) {
            self.gained = self.gained.max(node.touched);
        }
        if old.node_fit == node_fit {
            return;
        }
        self.changed = self.changed.max(node.touched);
        self.tally.count(old.node_fit, false);
        self.tally.count(node_fit, true);
        self.reorder(at, old.node_fit.key(), node_fit.key());
    }

    /// Moves a node with room to its new position.
    fn reorder(&mut self, at: NodeIx, old: Option<NodeRank>, new: Option<NodeRank>) {
        let count = |key: Option<NodeRank>| key.map_or(0, |key| u64::from(key.count));
        self.room = self.room - count(old) + count(new);
        let (out, into) = (old.map(|key| key.kind()), new.map(|key| key.kind()));
        if out != into {
            if let Some(out) = out
                && let Some(nodes) = self.tiers.get_mut(&out)
            {
                *nodes -= 1;
                if *nodes == 0 {
                    self.tiers.remove(&out);
                }
            }
            if let Some(into) = into {
                *self.tiers.entry(into).or_insert(0) += 1;
            }
        }
        if let Some(order) = self.order.get_mut() {
            if let Some(old) = old {
                order.remove(&(old, at));
            }
            if let Some(new) = new {
                order.insert((new, at));
            }
        }
    }

    /// Nodes with room, the best first.
    fn order(&self) -> &BTreeSet<(NodeRank, NodeIx)> {
        self.order.get_or_init(|| {
            let sites = self.sites.iter().enumerate();
            let held = sites.filter_map(|(at, site)| Some((site.node_fit.key()?, at)));
            held.collect()
        })
    }

    fn shift(&mut self, tree: &DomainTree, own_domain: Option<DomainIx>, now: i64, empty: i64) {
        let Some(own_domain) = own_domain else { return };
        for at in tree.above(own_domain) {
            let at = at as usize;
            self.sums[at] = self.sums[at].saturating_add_signed(now);
            self.empty_sums[at] = self.empty_sums[at].saturating_add_signed(empty);
        }
    }

    /// How many pods of the class a domain holds now.
    pub(crate) fn sum(&self, at: DomainIx) -> u64 {
        self.sums.get(at as usize).copied().unwrap_or(0)
    }

    /// How many it would hold when empty.
    pub(crate) fn sum_empty(&self, at: DomainIx) -> u64 {
        self.empty_sums.get(at as usize).copied().unwrap_or(0)
    }

    /// How many a node would hold when empty.
    pub(crate) fn empty_at(&self, at: NodeIx) -> u64 {
        let fixed = self.sites.get(at).and_then(|site| site.fixed);
        fixed.map_or(0, |fixed| u64::from(fixed.empty))
    }

    /// The key of a node with room.
    pub(crate) fn key(&self, at: NodeIx) -> Option<NodeRank> {
        self.sites.get(at)?.node_fit.key()
    }

    /// Nodes without room for one pod, by the resource that is short.
    pub(crate) fn full(&self) -> impl Iterator<Item = (Ix, usize)> {
        let mut short = std::collections::BTreeMap::new();
        for site in &self.sites {
            let NodeFit::Short { limits, .. } = site.node_fit else {
                continue;
            };
            let mut rest = limits;
            while rest != 0 {
                *short.entry(rest.trailing_zeros() as Ix).or_insert(0) += 1;
                rest &= rest - 1;
            }
        }
        short.into_iter()
    }

    /// Nodes with room, the best first.
    pub(crate) fn with_room(&self) -> impl Iterator<Item = (NodeRank, NodeIx)> + '_ {
        self.order().iter().copied()
    }

    /// The tier of the best node with room, apart from the cost of starting to share a GPU.
    pub(crate) fn rank_without_sharing_cost(&self) -> Option<i64> {
        let ((tier, begins), _) = self.tiers.first_key_value()?;
        let alike = self.tiers.range((*tier, i64::MIN)..=(*tier, i64::MAX));
        if alike.count() == 1 {
            return Some(tier - begins);
        }
        self.order()
            .first()
            .map(|(key, _)| key.rank_without_sharing_cost())
    }

    /// The best tier of any node with room.
    pub(crate) fn first_tier(&self) -> i64 {
        self.tiers.keys().next().map_or(0, |(tier, _)| *tier)
    }

    /// True if nodes with room have different tiers.
    pub(crate) fn is_mixed(&self) -> bool {
        let last = self.tiers.keys().next_back();
        last.is_some_and(|(tier, _)| *tier != self.first_tier())
    }

    /// Adds nodes for `n` pods, apart from those in `used`: of the best tier, as few as possible,
    /// the last one as tight as possible. `None` if there is not enough room.
    pub(crate) fn best_nodes(
        &self,
        n: u64,
        used: &BTreeSet<NodeIx>,
        picks: &mut Vec<(NodeIx, u64)>,
    ) -> Option<()> {
        let mut left = n;
        let mut tier = self.first_tier();
        // Nodes that hold this many or more are used up.
        let mut below = u32::MAX;
        let mut here: BTreeSet<NodeIx> = BTreeSet::new();
        while left > 0 {
            let want = u32::try_from(left).unwrap_or(u32::MAX);
            let mut fits = self
                .order()
                .range((NodeRank::least(tier, want), 0)..(NodeRank::least(tier + 1, 0), 0));
            if let Some((_, at)) = fits.find(|(_, at)| !used.contains(at) && !here.contains(at)) {
                picks.push((*at, left));
                return Some(());
            }
            let end = if below == u32::MAX {
                NodeRank::least(tier + 1, 0)
            } else {
                NodeRank::least(tier, below)
            };
            let last = self
                .order()
                .range((NodeRank::least(tier, 0), 0)..(end, 0))
                .next_back();
            let Some((most, _)) = last else {
                // The next tier.
                let (next, _) = self
                    .order()
                    .range((NodeRank::least(tier + 1, 0), 0)..)
                    .next()?;
                (tier, below) = (next.tier, u32::MAX);
                continue;
            };
            for (key, at) in self
                .order()
                .range((NodeRank::least(tier, most.count), 0)..(end, 0))
            {
                if used.contains(at) || here.contains(at) {
                    continue;
                }
                if left < u64::from(key.count) {
                    break;
                }
                picks.push((*at, u64::from(key.count)));
                here.insert(*at);
                left -= u64::from(key.count);
                if left == 0 {
                    return Some(());
                }
            }
            below = most.count;
        }
        Some(())
    }

    /// The node to take for `want` pods: of the best tier, the tightest that holds all, else the
    /// one that holds the most.
    pub(crate) fn choose(&self, want: u32) -> Option<NodeIx> {
        let (tier, _) = *self.tiers.keys().next()?;
        let at_least = |count| {
            self.order()
                .range((NodeRank::least(tier, count), 0)..)
                .next()
        };
        if let Some((key, at)) = at_least(want)
            && key.tier == tier
        {
            return Some(*at);
        }
        let (most, _) = self
            .order()
            .range(..(NodeRank::least(tier + 1, 0), 0))
            .next_back()?;
        at_least(most.count).map(|(_, at)| *at)
    }

    /// Among the given nodes, the one for `want` pods by the same rule.
    pub(crate) fn choose_among(&self, nodes: &[NodeIx], want: u32) -> Option<NodeIx> {
        let held = nodes.iter().filter_map(|at| Some((self.key(*at)?, *at)));
        // Nodes that hold all come first; of the others, the largest.
        held.min_by_key(|(key, at)| {
            let shy = want.saturating_sub(key.count);
            (shy, *key, *at)
        })
        .map(|(_, at)| at)
    }

    /// For pods with images: the number of nodes that can run images.
    pub(crate) fn runners(&self) -> usize {
        self.runners
    }

    /// The first of those nodes, each with a short reason why it takes no pod.
    pub(crate) fn first_runners(
        &self,
        count: usize,
    ) -> impl Iterator<Item = (NodeIx, &'static str)> + '_ {
        let sites = self.sites.iter().enumerate();
        let runs = sites.filter(|(_, site)| site.fixed.is_some_and(|fixed| fixed.runs));
        runs.take(count).map(|(at, site)| {
            let why = match site.node_fit {
                NodeFit::Refused(refusal) => refusal.of_one(),
                NodeFit::Holds { .. } => "room for some",
                NodeFit::Short { .. } => "full",
                NodeFit::Absent => "gone",
            };
            (at, why)
        })
    }

    /// The state of a node for the class.
    pub(crate) fn node_fit(&self, at: NodeIx) -> NodeFit {
        self.sites
            .get(at)
            .map_or(NodeFit::Absent, |site| site.node_fit)
    }

    /// How many pods of the class the node holds now.
    pub(crate) fn holds(&self, at: NodeIx) -> u32 {
        self.sites.get(at).map_or(0, |site| site.node_fit.count())
    }
}

fn judge(class: &Class, node: &Node, offer: &NodeAttributes) -> OfferFacts {
    let holds = match filter::refusal(class, node, offer) {
        Some(refusal) => Err(refusal),
        None => holds_empty(class, node, offer),
    };
    let tier = holds.map_or(0, |_| score::tier(class, node, offer));
    OfferFacts {
        offered: node.offered,
        refusal: holds.err(),
        tier,
        empty: holds.unwrap_or(0),
        runs: class.need() == RuntimeNeed::Image && offer.runtimes.images,
    }
}

/// How many pods of a class a node holds when empty.
fn holds_empty(
    class: &Class,
    node: &Node,
    offer: &NodeAttributes,
) -> Result<u32, InfeasibleReason> {
    let all = || {
        // Only classes with parts of GPUs need to know which are free.
        let shares = class
            .share()
            .map(|_| FreeGpus::of(offer, &Default::default()));
        let gpus = shares.unwrap_or_default();
        headroom(class, node, &gpus, |ix| offer.capacity(ix)).0
    };
    if !offer.withholds_from(class) {
        return Ok(all());
    }
    let gpus = FreeGpus::for_class(class, offer, &Default::default());
    let capacity = |ix| match ix {
        GPU => gpus.whole * GPU_UNIT,
        _ => offer.capacity(ix),
    };
    match headroom(class, node, &gpus, capacity).0 {
        0 if all() > 0 => Err(InfeasibleReason::OneAtMost),
        count => Ok(count),
    }
}

fn stand(class: &Class, node: &Node, offer: &NodeAttributes, fixed: OfferFacts) -> NodeFit {
    if let Some(refusal) = fixed.refusal {
        return NodeFit::Refused(refusal);
    }
    let gpus = node.gpus_for(class);
    let (count, limits) = headroom(class, node, gpus, |ix| node.free_for(class, ix));
    if count == 0 || node.closed_for_attempt {
        let all = || headroom(class, node, &node.gpus, |ix| node.free(ix)).0;
        let apart = count == 0 && offer.withholds_from(class) && all() > 0;
        return NodeFit::Short { limits, apart };
    }
    NodeFit::Holds {
        key: score::key(class, node, offer, fixed.tier, count),
        limits,
    }
}

/// How many pods of a class fit, and the resources that allow no more. Parts of GPUs are counted
/// GPU by GPU.
pub(crate) fn headroom(
    class: &Class,
    node: &Node,
    gpus: &FreeGpus,
    free: impl Fn(Ix) -> i64,
) -> (u32, ResourceSet) {
    let shared = |ix: Ix| class.share().filter(|_| ix == GPU);
    let times = |ix: Ix, amount: i64| match shared(ix) {
        Some(share) => share
            .of(node.gpu_memory())
            .map_or(0, |each| gpus.slots(each, share.gpus)),
        None => free(ix).max(0) / amount,
    };
    // GPUs of a model are free as GPUs.
    let asked = class.demand().0.iter();
    let asked = asked.filter(|(ix, _)| class.models() & 1 << ix == 0);
    least(asked.map(|(ix, n)| (*ix, times(*ix, *n))))
}

fn least(times: impl Iterator<Item = (Ix, i64)>) -> (u32, ResourceSet) {
    let (mut least, mut limits) = (i64::from(u32::MAX), 0);
    for (ix, times) in times {
        if times < least {
            (least, limits) = (times, 0);
        }
        if times == least {
            limits |= 1 << ix;
        }
    }
    (least as u32, limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_resource_is_named_that_allows_no_more() {
        assert_eq!(least([(0, 2), (1, 2), (3, 7)].into_iter()), (2, 0b11));
        assert_eq!(least([(0, 5), (3, 0)].into_iter()), (0, 0b1000));
    }
}
