//! The paper's FGD and BestFit, exact to the benchmark's description (its section 4): scores cut
//! to integers, ties to the lowest rank.

use std::collections::BTreeMap;

use scheduler::fragment::{Mix, NodeRoom, NodeShape, PodDemand, fragmentation};

use super::policy::{OpenbPlacement, PlacementPolicy};

/// Tightest packing by CPU and GPU.
#[derive(Clone, Debug, Default)]
pub struct BestFit;

impl PlacementPolicy for BestFit {
    fn choose(
        &mut self,
        nodes: &[NodeRoom],
        rank: &[u32],
        demand: &PodDemand,
    ) -> Option<OpenbPlacement> {
        let mut best: Option<(i64, u32, usize)> = None;
        let fitting = nodes.iter().zip(rank).enumerate();
        for (i, (room, rank)) in fitting.filter(|(_, (room, _))| room.fits(demand)) {
            let cpu = f64::from(room.cpu - demand.cpu) / 128_000.0;
            let gpu = (f64::from(room.idle()) - f64::from(demand.gpu_total())) / 8000.0;
            let score = (100.0 * (1.0 - (cpu + gpu) / 2.0)).floor() as i64;
            if best.is_none_or(|(s, r, _)| score > s || (score == s && *rank < r)) {
                best = Some((score, *rank, i));
            }
        }
        let (_, _, node) = best?;
        let room = nodes.get(node)?;
        let gpu = if demand.is_share() {
            room.tightest(demand.milli)?
        } else {
            0
        };
        Some(OpenbPlacement {
            node,
            mask: room.mask(demand, gpu),
        })
    }
}

/// A cached score: below 0 if the pod does not fit.
#[derive(Clone, Copy, Debug)]
struct CachedScore {
    version: u32,
    score: i16,
    gpu: u8,
}

const BLANK: CachedScore = CachedScore {
    version: 0,
    score: -1,
    gpu: 0,
};

/// Fragmentation gradient descent.
#[derive(Clone, Debug)]
pub struct Fgd {
    mix: Mix,
    classes: BTreeMap<PodDemand, usize>,
    cells: Vec<Vec<CachedScore>>,
    version: Vec<u32>,
    value: Vec<f64>,
}

impl Fgd {
    /// For the expected classes and empty nodes.
    #[must_use]
    pub fn new(mix: Mix, shapes: &[NodeShape]) -> Fgd {
        let value = |shape| fragmentation(&mix, &NodeRoom::empty(shape));
        Fgd {
            value: shapes.iter().map(value).collect(),
            mix,
            classes: BTreeMap::new(),
            cells: Vec::new(),
            version: vec![1; shapes.len()],
        }
    }

    /// Computes the score: for a share of a GPU it tries every GPU that fits; the lowest index wins
    /// ties.
    fn score(
        mix: &Mix,
        before: f64,
        room: &NodeRoom,
        demand: &PodDemand,
        version: u32,
    ) -> CachedScore {
        let mut best = CachedScore { version, ..BLANK };
        if !room.fits(demand) {
            return best;
        }
        let one = |mask: u16| {
            let after = fragmentation(mix, &room.after(demand, mask));
            ((1.0 / (1.0 + (-(before - after) / 1000.0).exp())) * 100.0).floor() as i16
        };
        if !demand.is_share() {
            best.score = one(room.mask(demand, 0));
            return best;
        }
        for (gpu, &free) in room.gpu_slice().iter().enumerate() {
            if free >= demand.milli {
                let score = one(1 << gpu);
                if score > best.score {
                    (best.score, best.gpu) = (score, gpu as u8);
                }
            }
        }
        best
    }
}

impl PlacementPolicy for Fgd {
    fn choose(
        &mut self,
        nodes: &[NodeRoom],
        rank: &[u32],
        demand: &PodDemand,
    ) -> Option<OpenbPlacement> {
        let next = self.classes.len();
        let class = *self.classes.entry(*demand).or_insert(next);
        if class == self.cells.len() {
            self.cells.push(vec![BLANK; nodes.len()]);
        }
        let mut best: Option<(i16, u32, usize, u8)> = None;
        for (i, cell) in self.cells.get_mut(class)?.iter_mut().enumerate() {
            if cell.version != self.version[i] {
                let (value, version) = (self.value[i], self.version[i]);
                *cell = Fgd::score(&self.mix, value, &nodes[i], demand, version);
            }
            let (score, rank) = (cell.score, rank[i]);
            if score >= 0 && best.is_none_or(|(s, r, ..)| score > s || (score == s && rank < r)) {
                best = Some((score, rank, i, cell.gpu));
            }
        }
        let (_, _, node, gpu) = best?;
        Some(OpenbPlacement {
            node,
            mask: nodes.get(node)?.mask(demand, gpu),
        })
    }

    fn placed(&mut self, node: usize, room: &NodeRoom) {
        self.version[node] += 1;
        self.value[node] = fragmentation(&self.mix, room);
    }
}
