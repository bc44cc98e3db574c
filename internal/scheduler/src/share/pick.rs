//! Chooses the GPUs that a pod gets on its node, whole or in part; the only place where that is
//! decided. Packing takes the fullest GPU with room, and a free one only if there is none, so that
//! whole GPUs stay free. Spreading takes the emptiest. The node is chosen by `place`.
//!
//! Cost: one sort of the node's GPUs. Example: parts of 0.5 requested, GPUs with 0.5 and 1 free:
//! packing takes the first. Tests: `tests/sharing.rs`, `tests/sharing_properties.rs`.

use std::cmp::Reverse;
use std::sync::Arc;

use super::{FreeGpus, Take};
use crate::class::{Class, ClassIx};
use crate::node::{Node, NodeIx};
use crate::resource::{GPU, GPU_UNIT};
use crate::share::gpus::{COUNTED_MAX, is_counted};
use crate::state::Scheduler;

/// Which GPU of a node a pod gets that requests a part of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GpuOrder {
    /// The fullest GPU that has room.
    #[default]
    Pack,
    /// The emptiest GPU.
    Spread,
}

/// A GPU that has room.
struct FreeGpu {
    id: Arc<str>,
    index: usize,
    free: i64,
    /// True if the room is free now, without waiting for leaving pods.
    now: bool,
}

impl Scheduler {
    /// The GPUs on a node for one pod. Empty if the node only counts its GPUs and whole ones are
    /// requested.
    pub(crate) fn pick_gpus(&mut self, class: ClassIx, at: NodeIx, take: &Take) -> Vec<Arc<str>> {
        let best = self.best_gpu_amount(class, at, take);
        let (node, facts) = (&self.nodes[at], self.classes.get(class));
        let count = usize::try_from(take.gpus).unwrap_or(0);
        match facts.share() {
            _ if count == 0 => Vec::new(),
            Some(_) => shared(node, facts, take, self.config.gpus, best),
            None => whole(node, facts, count),
        }
    }

    /// True if GPUs picked earlier are still valid on the node, and named if they must be.
    pub(crate) fn gpus_stand(&self, class: ClassIx, at: NodeIx, ids: &[Arc<str>]) -> bool {
        let Some(offer) = &self.nodes[at].offer else {
            return false;
        };
        let gpus = self.take_on(class, at).gpus;
        let share = self.classes.get(class).share();
        // The node's GPU memory may have changed since, or may be unknown now.
        if share.is_some_and(|share| share.of(self.nodes[at].gpu_memory()).is_none()) {
            return false;
        }
        let shares = share.is_some();
        let several = self.classes.get(class).has_several_gpus();
        match &offer.devices {
            Some(devices) => {
                let well = |id: &Arc<str>| devices.is_healthy(id);
                let suits = |id: &Arc<str>| !(several && devices.is_alone(id));
                ids.len() as i64 == gpus && ids.iter().all(|id| well(id) && suits(id))
            }
            None if shares => {
                ids.len() as i64 == gpus && ids.iter().all(|id| is_counted(offer, id))
            }
            None => ids.is_empty(),
        }
    }

    /// What a pod of a class takes on a node.
    pub(crate) fn take_on(&self, class: ClassIx, at: NodeIx) -> Take {
        self.classes.get(class).take(Some(&self.nodes[at]))
    }
}

/// Free whole GPUs; those that leaving pods still hold only if the others do not suffice.
fn whole(node: &Node, class: &Class, count: usize) -> Vec<Arc<str>> {
    let Some(offer) = &node.offer else {
        return Vec::new();
    };
    let Some(devices) = &offer.devices else {
        return Vec::new();
    };
    let apart = offer.withholds_from(class);
    let idle = |id: &str| node.held.of(id) == 0 && !(apart && devices.is_alone(id));
    if node.terminating_pods > 0 {
        let free = devices.choose(|id| idle(id) && node.terminating_held.of(id) == 0, count);
        if free.len() == count {
            return free;
        }
    }
    devices.choose(idle, count)
}

/// GPUs with room for a part. If `best` is known, a GPU with just that much free is preferred.
fn shared(
    node: &Node,
    class: &Class,
    take: &Take,
    order: GpuOrder,
    best: Option<i64>,
) -> Vec<Arc<str>> {
    let count = usize::try_from(take.gpus).unwrap_or(0);
    let mut free_gpus = free_gpus(node, class, take.each);
    let begun = |candidate: &FreeGpu| candidate.free < GPU_UNIT;
    if count > 1 {
        // GPUs with room for the most parts first, so that as many such pods fit as were counted.
        free_gpus.sort_by_key(|candidate| {
            (
                Reverse(candidate.free / take.each),
                !candidate.now,
                candidate.index,
            )
        });
    } else if let (Some(best), GpuOrder::Pack) = (best, order) {
        free_gpus.sort_by_key(|candidate| {
            (
                !candidate.now,
                candidate.free != best,
                candidate.free,
                candidate.index,
            )
        });
    } else if order == GpuOrder::Pack {
        free_gpus.sort_by_key(|candidate| {
            (
                !begun(candidate),
                !candidate.now,
                candidate.free,
                candidate.index,
            )
        });
    } else {
        free_gpus
            .sort_by_key(|candidate| (!candidate.now, Reverse(candidate.free), candidate.index));
    }
    free_gpus
        .into_iter()
        .take(count)
        .map(|candidate| candidate.id)
        .collect()
}

/// Every GPU of a node that a class may have and that has the part free.
fn free_gpus(node: &Node, class: &Class, each: i64) -> Vec<FreeGpu> {
    let Some(offer) = &node.offer else {
        return Vec::new();
    };
    let ids: Vec<Arc<str>> = match &offer.devices {
        Some(devices) => {
            let apart = offer.withholds_from(class);
            let suits = |id: &&Arc<str>| !(apart && devices.is_alone(id));
            devices.healthy_ids().filter(suits).cloned().collect()
        }
        None => {
            let counted = (offer.allocatable.get(GPU) / GPU_UNIT).min(COUNTED_MAX);
            (0..counted).map(|at| Arc::from(at.to_string())).collect()
        }
    };
    let mut idle = node.gpus_for(class).whole;
    let all = ids.into_iter().enumerate().filter_map(|(index, id)| {
        let free = GPU_UNIT - node.held.of(&id);
        if free == GPU_UNIT {
            // Some of the GPUs without a named holder are held by pods that name none.
            idle -= 1;
            (idle >= 0).then_some(())?;
        }
        let now = free - node.terminating_held.of(&id) >= each;
        (free >= each).then_some(FreeGpu {
            id,
            index,
            free,
            now,
        })
    });
    all.collect()
}

/// True if there is room for one pod of a class at once, without waiting for leaving pods.
pub(crate) fn fits_at_once(node: &Node, class: &Class) -> bool {
    let Some(offer) = &node.offer else {
        return false;
    };
    let take = class.take(Some(node));
    let free = FreeGpus::for_class(class, offer, &node.held_now());
    if class.share().is_some() {
        free.slots(take.each, take.gpus) > 0
    } else {
        free.whole >= take.gpus
    }
}
