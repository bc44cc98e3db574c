//! The price of places for pods with many GPUs: the places that are still open compared with the
//! expected need. Without it, small pods fill the last such places although other nodes have room
//! for them.
//!
//! Example, with the default tuning and an expected need of 2 places for 8 GPUs: while 8 places are
//! open, losing one costs 0.25 * 1000 + 0.25^4 * 8000 = 281 thousandths of a GPU; while 2 are open,
//! 9000 (`the_last_large_places_cost_more_than_the_first`).

use super::mix::Mix;
use super::node::{NodeRoom, PodDemand, WHOLE};
use super::potential::Tuning;

/// The most classes of large pods; a set of them is the bits of a word.
const CLASSES_MAX: usize = 32;

/// The number of GPUs of the pod that the tuning's prices refer to.
const LARGE: f64 = 8.0;

/// Classes of large pods, the places open to each, and the price of losing one. A set of places
/// is a word: bit c is set if one of class c is in it.
#[derive(Clone, Debug)]
pub(super) struct Reserve {
    classes: Vec<(PodDemand, f64)>,
    open: Vec<i64>,
    idle: i64,
    mean: f64,
    price: Vec<f64>,
    slope: f64,
    late: f64,
    /// The fewest GPUs that any of the classes asks for.
    from: u8,
    /// Whether rooms have changed since the prices were computed.
    moved: bool,
}

impl Reserve {
    /// For the heaviest classes of large pods in a mix; no node is counted yet.
    pub(super) fn new(mix: &Mix, tuning: &Tuning) -> Reserve {
        let mut classes: Vec<(PodDemand, f64)> = mix
            .classes()
            .iter()
            .filter(|(demand, _)| demand.gpus >= tuning.reserve_from && demand.milli == WHOLE)
            .copied()
            .collect();
        let size = |c: &(PodDemand, f64)| c.1 * f64::from(c.0.gpus);
        classes.sort_by(|a, b| size(b).total_cmp(&size(a)).then(a.0.cmp(&b.0)));
        classes.truncate(CLASSES_MAX);
        Reserve {
            open: vec![0; classes.len()],
            price: vec![0.0; classes.len()],
            from: classes.iter().map(|c| c.0.gpus).min().unwrap_or(u8::MAX),
            classes,
            idle: 0,
            mean: mix.mean_gpu().max(1.0),
            slope: tuning.reserve,
            late: tuning.reserve_late,
            moved: true,
        }
    }

    /// How many pods of a class a room with `whole` free GPUs takes.
    fn places(demand: &PodDemand, room: &NodeRoom, whole: u8) -> u32 {
        if whole < demand.gpus || !room.admits(demand) {
            return 0;
        }
        let by = |have: u32, ask: u32| have.checked_div(ask).unwrap_or(u32::MAX);
        u32::from(whole / demand.gpus.max(1))
            .min(by(room.cpu, demand.cpu))
            .min(by(room.mem, demand.mem))
    }

    /// Counts a node's room in (`sign` 1) or out (-1).
    pub(super) fn count(&mut self, room: &NodeRoom, sign: i64) {
        let whole = room.whole();
        self.moved = true;
        self.idle += sign * i64::from(room.idle());
        for (open, (demand, _)) in self.open.iter_mut().zip(&self.classes) {
            *open += sign * i64::from(Reserve::places(demand, room, whole));
        }
    }

    /// The places that are lost when a room changes from `before` to `after`.
    pub(super) fn lost(&self, before: &NodeRoom, after: &NodeRoom) -> u32 {
        let whole_before = before.whole();
        if whole_before < self.from {
            return 0;
        }
        let whole_after = after.whole();
        let mut lost = 0;
        for (c, (demand, _)) in self.classes.iter().enumerate() {
            let had = Reserve::places(demand, before, whole_before);
            if had > 0 && Reserve::places(demand, after, whole_after) < had {
                lost |= 1 << c;
            }
        }
        lost
    }

    /// Sets each class's price to its expected need, if the mix filled the idle GPUs, divided by
    /// the places open to it.
    pub(super) fn reprice(&mut self) {
        if !std::mem::take(&mut self.moved) {
            return;
        }
        let pods = self.idle.max(0) as f64 / self.mean;
        for ((price, open), (demand, weight)) in
            self.price.iter_mut().zip(&self.open).zip(&self.classes)
        {
            *price = f64::from(demand.gpus) / LARGE * (weight * pods / (*open).max(1) as f64);
        }
    }

    /// The price, in 1/1000 GPU, of losing a set of places: the tuning's slope times the sum of
    /// need / open, and more of it with the fourth power.
    pub(super) fn price(&self, lost: u32) -> f64 {
        let (mut sum, mut left) = (0.0f64, lost);
        while left != 0 {
            let c = left.trailing_zeros() as usize;
            left &= left - 1;
            sum += self.price.get(c).copied().unwrap_or(0.0);
        }
        let sum = sum.min(1.0);
        self.slope * sum + self.late * sum.powi(4)
    }
}
