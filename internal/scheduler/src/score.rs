//! Which of the nodes that have room a class should take. Lower keys are better among nodes that
//! hold equally many. The aim is to leave the least fragmentation: fill what is begun, keep
//! whole nodes for whole-node work, keep GPUs for those who ask for them.

use crate::class::Class;
use crate::filter::{avoided, preference};
use crate::node::{Node, Offer};
use crate::resource::{GPU, PODS};
use crate::share::fits_at_once;

/// One avoided taint weighs more than any preference, whose weights sum to a few hundreds.
const AVOIDED: i64 = 1_000_000;
/// A point of preferred node affinity weighs more than keeping GPUs free for others.
const PREFERENCE: i64 = 10;
/// GPUs of the node that the class has no use for.
const GPUS_WASTED: i64 = 1;

/// A GPU must be begun although others are. Weighs less than a point of preference.
const BEGINS: i64 = 5;

/// Room that somebody has yet to leave is taken last, but before avoided taints.
const NOT_YET: i64 = 500_000;

/// Where a node stands for a class: nodes are sought by tier, then by how many of the class they
/// hold, then by what would be left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) tier: i64,
    /// How many pods of the class fit.
    pub(crate) count: u32,
    /// GPUs free beyond what those pods take.
    spare_gpus: i64,
    /// How empty the node is, in thousandths of what it has: the fuller, the better.
    idle: i64,
    /// Place by name: the last word.
    rank: u32,
    /// What of the tier is for a GPU that must be begun.
    begins: i64,
}

impl Key {
    /// How empty the node is: the more, the emptier.
    pub(crate) fn emptiness(&self) -> (i64, i64) {
        (self.idle, self.spare_gpus)
    }

    /// How welcome the class is on the node, whether a GPU must be begun or not.
    pub(crate) fn welcome(&self) -> i64 {
        self.tier - self.begins
    }

    /// What the class's welcome on the node follows from: the tier, and what of it is for a GPU
    /// that must be begun.
    pub(crate) fn kind(&self) -> (i64, i64) {
        (self.tier, self.begins)
    }

    /// The least key of a tier and count.
    pub(crate) fn least(tier: i64, count: u32) -> Key {
        Key {
            tier,
            count,
            spare_gpus: i64::MIN,
            idle: i64::MIN,
            rank: 0,
            begins: 0,
        }
    }
}

/// What does not depend on usage: how welcome the class is on the node.
pub(crate) fn tier(class: &Class, node: &Node, offer: &Offer) -> i64 {
    let wasted = class.demand().get(GPU) == 0 && offer.capacity(GPU) > 0;
    avoided(&class.tolerations, &offer.taints) * AVOIDED + offer.health.unwelcome()
        - preference(class.affinity.as_ref(), node, offer) * PREFERENCE
        + if wasted { GPUS_WASTED } else { 0 }
}

/// The node's key as it is now.
pub(crate) fn key(class: &Class, node: &Node, offer: &Offer, tier: i64, count: u32) -> Key {
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
    Key {
        tier: tier + strain + begins + if waits { NOT_YET } else { 0 },
        count,
        spare_gpus,
        idle: node.idle,
        rank: node.rank,
        begins,
    }
}

/// Would one of the class have to wait for those who are leaving the node?
pub(crate) fn awaits(class: &Class, node: &Node) -> bool {
    let others = class.demand().0.iter().filter(|(ix, _)| *ix != GPU);
    let mut others = others.into_iter();
    node.leavers > 0
        && (others.any(|(ix, amount)| node.free_now(*ix) < *amount)
            || (class.demand().get(GPU) > 0 && !fits_at_once(node, class)))
}

/// How empty a node is, in thousandths of what it has. The same for every class: worked out once
/// for each change of the node.
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
