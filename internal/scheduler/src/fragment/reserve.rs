//! The price of the places that pods of many GPUs need: what is still open for them against what
//! will be asked. Without it the last such places are filled with small pods that had others.

use super::mix::Mix;
use super::node::{Demand, Room, WHOLE};
use super::potential::Tuning;

/// Most classes of large pods that are kept apart: a set of them is the bits of a word.
const CLASSES_MAX: usize = 32;

/// Placements between two looks at the prices.
const REPRICE: u32 = 8;

/// GPUs of the pod that the tuning's prices are for.
const LARGE: f64 = 8.0;

/// Classes of large pods, the places open to each, and the price of losing one.
#[derive(Clone, Debug, Default)]
struct Reserve {
    classes: Vec<(Demand, f64)>,
    open: Vec<i64>,
    idle: i64,
    mean: f64,
    price: Vec<f64>,
}

impl Reserve {
    /// The heaviest classes with at least `least` GPUs.
    fn new(mix: &Mix, least: u8) -> Reserve {
        let mut classes: Vec<(Demand, f64)> = mix
            .classes()
            .iter()
            .filter(|(demand, _)| demand.gpus >= least && demand.milli == WHOLE)
            .copied()
            .collect();
        let size = |c: &(Demand, f64)| c.1 * f64::from(c.0.gpus);
        classes.sort_by(|a, b| size(b).total_cmp(&size(a)).then(a.0.cmp(&b.0)));
        classes.truncate(CLASSES_MAX);
        Reserve {
            open: vec![0; classes.len()],
            price: vec![0.0; classes.len()],
            classes,
            idle: 0,
            mean: mix.mean_gpu().max(1.0),
        }
    }

    /// How many pods of a class a room with so many wholly free GPUs takes.
    fn places(demand: &Demand, room: &Room, whole: u8) -> u32 {
        if whole < demand.gpus || !room.admits(demand) {
            return 0;
        }
        let by = |have: u32, ask: u32| have.checked_div(ask).unwrap_or(u32::MAX);
        u32::from(whole / demand.gpus.max(1))
            .min(by(room.cpu, demand.cpu))
            .min(by(room.mem, demand.mem))
    }

    /// Counts a node in (`sign` 1) or out (-1).
    fn count(&mut self, room: &Room, sign: i64) {
        let whole = room.whole();
        self.idle += sign * i64::from(room.idle());
        for (open, (demand, _)) in self.open.iter_mut().zip(&self.classes) {
            *open += sign * i64::from(Reserve::places(demand, room, whole));
        }
    }

    /// Bit c is set if going from one room to the other loses a place of class c.
    fn lost(&self, before: &Room, after: &Room) -> u32 {
        let (whole_before, whole_after) = (before.whole(), after.whole());
        if whole_before < 2 {
            return 0;
        }
        let mut mask = 0;
        for (c, (demand, _)) in self.classes.iter().enumerate() {
            let had = Reserve::places(demand, before, whole_before);
            if had > 0 && Reserve::places(demand, after, whole_after) < had {
                mask |= 1 << c;
            }
        }
        mask
    }

    /// Takes the need for each class, were the idle GPUs filled by the mix, against what is open
    /// for it.
    fn reprice(&mut self) {
        let pods = self.idle.max(0) as f64 / self.mean;
        for ((price, open), (demand, weight)) in
            self.price.iter_mut().zip(&self.open).zip(&self.classes)
        {
            *price = f64::from(demand.gpus) / LARGE * (weight * pods / (*open).max(1) as f64);
        }
    }

    /// Price of losing the places of a mask: `slope` times the sum of need / open, and `late`
    /// times its fourth power.
    fn price(&self, mask: u32, slope: f64, late: f64) -> f64 {
        let (mut sum, mut left) = (0.0f64, mask);
        while left != 0 {
            let c = left.trailing_zeros() as usize;
            left &= left - 1;
            sum += self.price.get(c).copied().unwrap_or(0.0);
        }
        let sum = sum.min(1.0);
        slope * sum + late * sum.powi(4)
    }
}

/// Prices of losing large places, each set of lost places by a small number that stays good; 0 is
/// the empty set.
#[derive(Clone, Debug, Default)]
pub(super) struct Prices {
    reserve: Reserve,
    slope: f64,
    late: f64,
    masks: Vec<u32>,
    prices: Vec<f32>,
    since: u32,
}

impl Prices {
    /// For a mix; no node is counted yet.
    pub(super) fn new(mix: &Mix, tuning: &Tuning) -> Prices {
        Prices {
            reserve: Reserve::new(mix, tuning.reserve_from),
            slope: tuning.reserve,
            late: tuning.reserve_late,
            masks: vec![0],
            prices: vec![0.0],
            since: 0,
        }
    }

    /// Counts a node's room in.
    pub(super) fn count(&mut self, room: &Room) {
        self.reserve.count(room, 1);
    }

    /// Counts a node's room out.
    pub(super) fn uncount(&mut self, room: &Room) {
        self.reserve.count(room, -1);
    }

    /// A node has changed: every few times the prices are worked out anew.
    pub(super) fn moved(&mut self) {
        self.since += 1;
        if self.since >= REPRICE {
            self.reprice();
        }
    }

    /// Works the prices out from what is open now.
    pub(super) fn reprice(&mut self) {
        self.since = 0;
        self.reserve.reprice();
        let Prices {
            reserve,
            slope,
            late,
            masks,
            prices,
            ..
        } = self;
        prices.clear();
        prices.extend(
            masks
                .iter()
                .map(|mask| reserve.price(*mask, *slope, *late) as f32),
        );
    }

    /// Number of what is lost by going from one room to the other. Beyond 255 different losses a
    /// new one has no price.
    pub(super) fn lost(&mut self, before: &Room, after: &Room) -> u8 {
        let mask = self.reserve.lost(before, after);
        if let Some(number) = self.masks.iter().position(|m| *m == mask) {
            return number as u8;
        }
        if self.masks.len() > usize::from(u8::MAX) {
            return 0;
        }
        self.masks.push(mask);
        let price = self.reserve.price(mask, self.slope, self.late) as f32;
        self.prices.push(price);
        (self.masks.len() - 1) as u8
    }

    /// The price of a loss, in 1/1000 GPU.
    pub(super) fn of(&self, lost: u8) -> f32 {
        self.prices.get(usize::from(lost)).copied().unwrap_or(0.0)
    }
}
