//! Picks the node and the GPUs for a pod by the fall of the potential. Keeps every score it has
//! worked out and only works out again what the change of a node has made stale. What a node is
//! worth is `potential`'s to say.

use std::collections::BTreeMap;

use super::learn::Learner;
use super::memo::Memo;
use super::mix::Mix;
use super::node::{Demand, Room, Shape};
use super::potential::{Potential, Tuning};
use super::reserve::Prices;

/// Scales of best fit, for when nothing is known of the pods to come: CPU (1/1000 core) and GPU
/// (1/1000 GPU) of a large node.
const LARGE: (f64, f64) = (128_000.0, 8_000.0);

/// Classes of pods whose scores are kept; one costs 16 bytes a node. With one more all are
/// forgotten.
const CLASSES_MAX: usize = 1024;

/// Where a pod goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Index of the node.
    pub node: usize,
    /// Bit i is set if the pod takes GPU i.
    pub mask: u16,
}

/// Score of a class of pods on a node, good while the node's version is this.
#[derive(Clone, Copy, Debug)]
struct Cell {
    version: u32,
    /// Fall of the potential in 1/1000 GPU, the price of large places not yet taken off.
    gain: f32,
    gpu: u8,
    /// Number of the large places that would go, for `Prices`.
    lost: u8,
    fits: bool,
}

/// A cell that was never worked out: nodes' versions begin at 1.
const BLANK: Cell = Cell {
    version: 0,
    gain: 0.0,
    gpu: 0,
    lost: 0,
    fits: false,
};

/// The best so far: score, rank, node, GPU.
type Best = Option<(i32, u32, usize, u8)>;

/// The nodes of a cluster and where the next pod is best put.
///
/// Choosing costs a look at the kept score of each node, and the potential of the nodes that
/// changed since the last pod of the class. Prices of the last large places are looked at again
/// every few placements, not at each; so which GPU of a node a kept score stands for may come from
/// prices a few placements old.
#[derive(Clone, Debug)]
pub struct Chooser {
    potential: Potential,
    counts: BTreeMap<Shape, u32>,
    shapes: Vec<Shape>,
    kind: Vec<u16>,
    rank: Vec<u32>,
    rooms: Vec<Room>,
    version: Vec<u32>,
    value: Vec<f64>,
    floor: Vec<f64>,
    classes: BTreeMap<Demand, usize>,
    cells: Vec<Vec<Cell>>,
    stale: Vec<usize>,
    memo: Memo,
    prices: Prices,
    learner: Option<Learner>,
}

impl Chooser {
    /// For empty nodes of these shapes; among equals the node with the lowest rank wins. An empty
    /// mix means best fit. A node without a rank comes last.
    #[must_use]
    pub fn new(mix: &Mix, shapes: &[Shape], rank: &[u32], tuning: Tuning) -> Chooser {
        let mut counts = BTreeMap::new();
        for shape in shapes {
            *counts.entry(*shape).or_insert(0) += 1;
        }
        let mut rank = rank.to_vec();
        rank.resize(shapes.len(), u32::MAX);
        let mut chooser = Chooser {
            potential: Potential::new(mix, &counts, tuning),
            counts,
            shapes: shapes.to_vec(),
            kind: Vec::new(),
            rank,
            rooms: shapes.iter().map(Room::empty).collect(),
            version: vec![1; shapes.len()],
            value: vec![0.0; shapes.len()],
            floor: vec![0.0; shapes.len()],
            classes: BTreeMap::new(),
            cells: Vec::new(),
            stale: Vec::new(),
            memo: Memo::default(),
            prices: Prices::default(),
            learner: None,
        };
        chooser.refresh();
        chooser
    }

    /// Learns the mix from the pods told to [`Chooser::arrived`] instead of knowing it.
    #[must_use]
    pub fn learning(mut self) -> Chooser {
        self.learner = Some(Learner::default());
        self
    }

    /// Uses another mix from now on. Costs the potential of every node.
    pub fn relearn(&mut self, mix: &Mix) {
        self.potential = Potential::new(mix, &self.counts, *self.potential.tuning());
        self.refresh();
    }

    /// Tells of an arrival, placed or not; matters only when learning.
    pub fn arrived(&mut self, demand: &Demand) {
        if let Some(mix) = self.learner.as_mut().and_then(|l| l.arrived(demand)) {
            self.relearn(&mix);
        }
    }

    /// Tells what a node has left after a change of any sort. A node that isn't there is ignored.
    pub fn set_room(&mut self, node: usize, room: &Room) {
        let Some(old) = self.rooms.get_mut(node) else {
            return;
        };
        let old = std::mem::replace(old, *room);
        self.prices.uncount(&old);
        self.prices.count(room);
        self.renew(node);
        self.prices.moved();
    }

    /// What a node has left, as last told; none if it isn't there.
    #[must_use]
    pub fn room(&self, node: usize) -> Option<&Room> {
        self.rooms.get(node)
    }

    /// The place for a pod, or none if it fits nowhere. The nodes stay as they are until
    /// [`Chooser::set_room`].
    #[must_use]
    pub fn choose(&mut self, demand: &Demand) -> Option<Placement> {
        let class = self.class(demand);
        let mut cells = std::mem::take(&mut self.cells[class]);
        let mut stale = std::mem::take(&mut self.stale);
        stale.clear();
        let per = (1.0 / self.potential.tuning().quantum) as f32;
        let mut best: Best = None;
        for (node, cell) in cells.iter().enumerate() {
            if cell.version == self.version[node] {
                self.better(&mut best, node, cell, per);
            } else {
                stale.push(node);
            }
        }
        for &node in &stale {
            if let Some((score, rank, _, _)) = best
                && !self.potential.is_blind()
            {
                // No pod can lower a potential by more than it is above its floor: skip nodes
                // that can't win.
                let top = ((self.value[node] - self.floor[node]) as f32 * per).floor() as i32;
                if top < score || (top == score && self.rank[node] > rank) {
                    continue;
                }
            }
            let cell = self.score(node, demand);
            cells[node] = cell;
            self.better(&mut best, node, &cell, per);
        }
        self.cells[class] = cells;
        self.stale = stale;
        best.map(|(_, _, node, gpu)| Placement {
            node,
            mask: self.rooms[node].mask(demand, gpu),
        })
    }

    /// The number of a class of pods, with a row of cells for it.
    fn class(&mut self, demand: &Demand) -> usize {
        if let Some(class) = self.classes.get(demand) {
            return *class;
        }
        if self.classes.len() >= CLASSES_MAX {
            self.classes.clear();
            self.cells.clear();
        }
        let class = self.cells.len();
        self.classes.insert(*demand, class);
        self.cells.push(vec![BLANK; self.rooms.len()]);
        class
    }

    /// Works all out anew that depends on the potential.
    fn refresh(&mut self) {
        self.memo.clear();
        self.kind = self.shapes.iter().map(|s| self.potential.kind(s)).collect();
        self.prices = Prices::new(self.potential.mix(), self.potential.tuning());
        for node in 0..self.rooms.len() {
            self.prices.count(&self.rooms[node]);
            self.renew(node);
        }
        self.prices.reprice();
    }

    fn renew(&mut self, node: usize) {
        let room = self.rooms[node];
        self.version[node] = self.version[node].wrapping_add(1);
        self.value[node] = self.potential_of(node, &room);
        self.floor[node] = self.potential.least(self.kind[node], &room);
    }

    fn potential_of(&mut self, node: usize, room: &Room) -> f64 {
        if self.potential.is_blind() {
            return 0.0;
        }
        let (kind, potential) = (self.kind[node], &self.potential);
        self.memo
            .get(kind, &room.canonical(), |room| potential.of(kind, room))
    }

    /// Works a cell out: of the GPUs of the node the one that leaves it with the lowest potential,
    /// prices of large places included.
    fn score(&mut self, node: usize, demand: &Demand) -> Cell {
        let (room, version) = (self.rooms[node], self.version[node]);
        let blank = Cell { version, ..BLANK };
        if !room.fits(demand) {
            return blank;
        }
        if self.potential.is_blind() {
            return Cell {
                gain: best_fit(&room, demand),
                gpu: room.tightest(demand.milli).unwrap_or(0),
                fits: true,
                ..blank
            };
        }
        let mut least = f64::INFINITY;
        let mut best = Cell {
            fits: true,
            ..blank
        };
        for (gpu, &free) in room.gpu_slice().iter().enumerate() {
            if demand.is_share() && (free < demand.milli || room.free[..gpu].contains(&free)) {
                continue;
            }
            let after = room.after(demand, room.mask(demand, gpu as u8));
            let value = self.potential_of(node, &after);
            let lost = self.prices.lost(&room, &after);
            let total = value + f64::from(self.prices.of(lost));
            if total < least {
                least = total;
                best = Cell {
                    gain: (self.value[node] - value) as f32,
                    gpu: gpu as u8,
                    lost,
                    ..best
                };
            }
            if !demand.is_share() {
                break;
            }
        }
        best
    }

    fn better(&self, best: &mut Best, node: usize, cell: &Cell, per: f32) {
        if !cell.fits {
            return;
        }
        let score = ((cell.gain - self.prices.of(cell.lost)) * per).floor() as i32;
        let rank = self.rank[node];
        if best.is_none_or(|(s, r, _, _)| score > s || (score == s && rank < r)) {
            *best = Some((score, rank, node, cell.gpu));
        }
    }
}

/// How tightly a pod that fits fills a node, by CPU and GPU.
fn best_fit(room: &Room, demand: &Demand) -> f32 {
    let cpu = f64::from(room.cpu - demand.cpu) / LARGE.0;
    let gpu = (f64::from(room.idle()) - f64::from(demand.gpu_total())) / LARGE.1;
    (-1000.0 * (cpu + gpu)) as f32
}
