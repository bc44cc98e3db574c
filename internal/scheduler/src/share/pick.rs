//! Which GPUs of its node a pod gets: the one place where that is decided for pods that take GPUs,
//! whole or in part. Packing leaves whole GPUs for those who need them: the fullest GPU that
//! has room is taken, and a free one only where none has. Spreading takes the emptiest. Which node
//! it is, is `place`'s.

use std::cmp::Reverse;
use std::sync::Arc;

use super::{FreeGpus, Take};
use crate::class::{Class, ClassIx};
use crate::node::{Node, NodeIx};
use crate::resource::{GPU, GPU_UNIT};
use crate::share::gpus::{COUNTED_MAX, is_counted};
use crate::state::Scheduler;

/// Which GPU of a node a pod that shares one gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GpuOrder {
    /// The fullest that has room for it.
    #[default]
    Pack,
    /// The emptiest.
    Spread,
}

/// A GPU that has room.
struct Seat {
    id: Arc<str>,
    index: usize,
    free: i64,
    /// It is free of those who leave, too.
    now: bool,
}

impl Scheduler {
    /// The GPUs on a node for one pod that takes so much. None are named where they are only counted
    /// and wanted whole.
    pub(crate) fn pick_gpus(&mut self, class: ClassIx, at: NodeIx, take: &Take) -> Vec<Arc<str>> {
        let best = self.best_piece(class, at, take);
        let (node, facts) = (&self.nodes[at], self.classes.get(class));
        let count = usize::try_from(take.gpus).unwrap_or(0);
        match facts.share() {
            _ if count == 0 => Vec::new(),
            Some(_) => shared(node, facts, take, self.config.gpus, best),
            None => whole(node, facts, count),
        }
    }

    /// Are GPUs that were picked before still such as the node has, and named where they must be?
    pub(crate) fn gpus_stand(&self, class: ClassIx, at: NodeIx, ids: &[Arc<str>]) -> bool {
        let Some(offer) = &self.nodes[at].offer else {
            return false;
        };
        let gpus = self.take_on(class, at).gpus;
        let share = self.classes.get(class).share();
        // What its GPUs have of memory may be another by now, or not known any more.
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

/// Whole GPUs that nobody holds; those that somebody is about to leave only where the others do
/// not suffice.
fn whole(node: &Node, class: &Class, count: usize) -> Vec<Arc<str>> {
    let Some(offer) = &node.offer else {
        return Vec::new();
    };
    let Some(devices) = &offer.devices else {
        return Vec::new();
    };
    let apart = offer.withholds_from(class);
    let idle = |id: &str| node.held.of(id) == 0 && !(apart && devices.is_alone(id));
    if node.leavers > 0 {
        let free = devices.choose(|id| idle(id) && node.leaving_held.of(id) == 0, count);
        if free.len() == count {
            return free;
        }
    }
    devices.choose(idle, count)
}

/// GPUs to share; where it is known of how much there is most use, of such a one.
fn shared(
    node: &Node,
    class: &Class,
    take: &Take,
    order: GpuOrder,
    best: Option<i64>,
) -> Vec<Arc<str>> {
    let count = usize::try_from(take.gpus).unwrap_or(0);
    let mut seats = seats(node, class, take.each);
    let begun = |seat: &Seat| seat.free < GPU_UNIT;
    if count > 1 {
        // From those that have room for most: so as many such pods fit as were counted.
        seats.sort_by_key(|seat| (Reverse(seat.free / take.each), !seat.now, seat.index));
    } else if let (Some(best), GpuOrder::Pack) = (best, order) {
        seats.sort_by_key(|seat| (!seat.now, seat.free != best, seat.free, seat.index));
    } else if order == GpuOrder::Pack {
        seats.sort_by_key(|seat| (!begun(seat), !seat.now, seat.free, seat.index));
    } else {
        seats.sort_by_key(|seat| (!seat.now, Reverse(seat.free), seat.index));
    }
    seats.into_iter().take(count).map(|seat| seat.id).collect()
}

/// Every GPU of a node that a class may have and that has so much free.
fn seats(node: &Node, class: &Class, each: i64) -> Vec<Seat> {
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
            // Of those that nobody names some are held all the same.
            idle -= 1;
            (idle >= 0).then_some(())?;
        }
        let now = free - node.leaving_held.of(&id) >= each;
        (free >= each).then_some(Seat {
            id,
            index,
            free,
            now,
        })
    });
    all.collect()
}

/// Is there room for one of a class at once, without waiting for those who leave?
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
