//! Scores nodes with room for a class: lower keys are better among nodes that hold equally many
//! pods. Aims at low fragmentation: fill nodes in use, keep whole nodes for jobs that need them,
//! keep GPUs for pods that request GPUs.

use crate::class::Class;
use crate::filter::{avoided, preference};
use crate::node::{Node, NodeAttributes};
use crate::resource::{GPU, PODS};
use crate::share::fits_at_once;

/// The cost of an avoided taint: more than any sum of preferences, which is a few hundreds.
const AVOIDED: i64 = 1_000_000;
/// The worth of one point of preferred node affinity: more than keeping GPUs free for others.
const PREFERENCE: i64 = 10;
/// The cost of a node whose GPUs the class does not use.
const GPUS_WASTED: i64 = 1;

/// The cost of starting to share another GPU: less than one point of preference.
const BEGINS: i64 = 5;

/// The cost of room that terminating pods still hold: taken last, but before avoided taints.
const AWAITS_LEAVERS: i64 = 500_000;

/// A node's rank for a class: by tier, then by the number of pods that it holds, then by what would
/// be left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeRank {
    pub(crate) tier: i64,
    /// How many pods of the class fit.
    pub(crate) count: u32,
    /// Free GPUs beyond those that these pods take.
    spare_gpus: i64,
    /// How empty the node is, in thousandths: fuller is better.
    idle: i64,
    /// Position by name: the last criterion.
    rank: u32,
    /// The part of the tier that is for starting to share a GPU.
    begins: i64,
}

impl NodeRank {
    /// How empty the node is: more is emptier.
    pub(crate) fn emptiness(&self) -> (i64, i64) {
        (self.idle, self.spare_gpus)
    }

    /// The tier, apart from the cost of starting to share a GPU.
    pub(crate) fn rank_without_sharing_cost(&self) -> i64 {
        self.tier - self.begins
    }

    /// The tier, and the part of it that is for starting to share a GPU.
    pub(crate) fn kind(&self) -> (i64, i64) {
        (self.tier, self.begins)
    }

    /// The smallest key of a tier and count.
    pub(crate) fn least(tier: i64, count: u32) -> NodeRank {
        NodeRank {
            tier,
            count,
            spare_gpus: i64::MIN,
            idle: i64::MIN,
            rank: 0,
            begins: 0,
        }
    }
}

/// The part of a node's score that does not depend on its use.
pub(crate) fn tier(class: &Class, node: &Node, offer: &NodeAttributes) -> i64 {
    let wasted = class.demand().get(GPU) == 0 && offer.capacity(GPU) > 0;
    avoided(&class.tolerations, &offer.taints) * AVOIDED + offer.health.suspicion_penalty()
        - preference(class.affinity.as_ref(), node, offer) * PREFERENCE
        + if wasted { GPUS_WASTED } else { 0 }
}

/// The node's key now.
pub(crate) fn key(
    class: &Class,
    node: &Node,
    offer: &NodeAttributes,
    tier: i64,
    count: u32,
) -> NodeRank {
    let asked = class.demand().get(GPU);
    let free = if offer.allocatable.get(GPU) > 0 {
        node.free(GPU)
    } else {
        0
    };
    let spare_gpus = match class.share() {
        Some(_) => free,
        None => free - asked.saturating_mul(i64::from(count)),
    };
    let waits = awaits(class, node);
    let begins = class.packs()
        && class.share().is_some_and(|share| {
            let each = share.of(node.gpu_memory());
            share.gpus == 1 && !each.is_some_and(|each| node.gpus_for(class).fits_begun(each))
        });
    let strain = if asked > 0 {
        let held = |id: &str| node.held.of(id) > 0;
        offer.health.strain(node.pods == 0, held)
    } else {
        0
    };
    let begins = if begins { BEGINS } else { 0 };
    NodeRank {
        tier: tier + strain + begins + if waits { AWAITS_LEAVERS } else { 0 },
        count,
        spare_gpus,
        idle: node.idle,
        rank: node.rank,
        begins,
    }
}

/// True if a pod of the class would have to wait for terminating pods on the node.
pub(crate) fn awaits(class: &Class, node: &Node) -> bool {
    let others = class.demand().0.iter().filter(|(ix, _)| *ix != GPU);
    let mut others = others.into_iter();
    node.terminating_pods > 0
        && (others.any(|(ix, amount)| node.free_now(*ix) < *amount)
            || (class.demand().get(GPU) > 0 && !fits_at_once(node, class)))
}

/// How empty a node is, in thousandths of its capacity. The same for every class: computed once for
/// each change of the node.
pub(crate) fn idle(node: &Node) -> i64 {
    let Some(offer) = &node.offer else { return 0 };
    let (mut sum, mut kinds) = (0, 0);
    for (ix, amount) in offer
        .allocatable
        .iter()
        .filter(|(ix, amount)| *ix != PODS && *amount > 0)
    {
        let free = node.unused(ix).clamp(0, amount);
        sum += match free.checked_mul(1000) {
            Some(parts) => parts / amount,
            None => (i128::from(free) * 1000 / i128::from(amount)) as i64,
        };
        kinds += 1;
    }
    if kinds == 0 { 0 } else { sum / kinds }
}
