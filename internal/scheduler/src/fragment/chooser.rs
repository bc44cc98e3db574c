//! Picks, among nodes that the caller allows, the one where a pod leaves most that pods to come
//! can use, and the GPU of it. Keeps every score it has worked out and only works out again what
//! the change of a node has made stale. What is kept only saves time: every answer follows from
//! the rooms, the mix and the call alone. What a node is worth is `potential`'s to say.

use std::collections::BTreeMap;

use super::memo::Memo;
use super::mix::Mix;
use super::node::{Demand, Room, Shape, WHOLE};
use super::potential::{Potential, Tuning};
use super::reserve::Reserve;

/// Scores that are kept: one for each class of pods and node, 24 bytes each. With more all are
/// forgotten.
const CELLS_MAX: usize = 1 << 21;

/// A node as the chooser is told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    /// What it has in all.
    pub(crate) shape: Shape,
    /// What it has left, GPUs in falling order.
    pub(crate) room: Room,
    /// Its place by name: among equals the lowest is taken.
    pub(crate) rank: u32,
}

/// What placing a pod in one way does.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// Fall of the potential in quanta, the price of large places not yet taken off; `i32::MIN`
    /// where there is no such way.
    score: i32,
    /// The large places that go with it, for `Reserve`.
    lost: u32,
}

const NO_WAY: Way = Way {
    score: i32::MIN,
    lost: 0,
};

/// The scores of a class of pods on a node, good while the node's version is this: on a started
/// GPU (or whatever a pod takes that shares none), and on a free one.
#[derive(Clone, Copy, Debug)]
struct Cell {
    version: u32,
    ways: [Way; 2],
}

/// The version of a node that is not there. Those of others begin at 1.
const GONE: u32 = 0;

/// A cell that was never worked out.
const BLANK: Cell = Cell {
    version: GONE,
    ways: [NO_WAY; 2],
};

/// What is kept of one node.
#[derive(Clone, Debug)]
struct Kept {
    site: Site,
    kind: u16,
    /// Potential as it is, and the least that it can fall to; none until somebody asks.
    worth: Option<(f64, f64)>,
}

/// The nodes of a cluster and where the next pod is best put.
///
/// Choosing costs a look at the kept score of each node, and the potential of the nodes that
/// changed since the class was last asked for and could win.
#[derive(Clone, Debug)]
pub(crate) struct Chooser {
    tuning: Tuning,
    mix: Mix,
    potential: Potential,
    counts: BTreeMap<Shape, u32>,
    /// The mix is another, or shapes have come or gone, since the potential was made.
    remixed: bool,
    reshaped: bool,
    nodes: Vec<Option<Kept>>,
    version: Vec<u32>,
    clock: u32,
    classes: BTreeMap<Demand, usize>,
    cells: Vec<Vec<Cell>>,
    stale: Vec<usize>,
    memo: Memo,
    reserve: Reserve,
}

impl Chooser {
    /// Of no node and no pods to come.
    pub(crate) fn new(tuning: Tuning) -> Chooser {
        let mix = Mix::default();
        let counts = BTreeMap::new();
        Chooser {
            potential: Potential::new(&mix, &counts, tuning),
            reserve: Reserve::new(&mix, &tuning),
            tuning,
            mix,
            counts,
            remixed: false,
            reshaped: false,
            nodes: Vec::new(),
            version: Vec::new(),
            clock: 0,
            classes: BTreeMap::new(),
            cells: Vec::new(),
            stale: Vec::new(),
            memo: Memo::default(),
        }
    }

    /// How many nodes there are of each shape.
    pub(crate) fn shapes(&self) -> &BTreeMap<Shape, u32> {
        &self.counts
    }

    /// Takes in a node as it is now; none: it is gone, or has no GPUs to be careful with.
    pub(crate) fn set(&mut self, at: usize, site: Option<Site>) {
        if self.nodes.len() <= at {
            self.nodes.resize(at + 1, None);
            self.version.resize(at + 1, GONE);
        }
        let old = self.nodes[at].as_ref().map(|kept| kept.site);
        if old == site {
            return;
        }
        if let (Some(old), Some(new)) = (&old, &site)
            && old.room == new.room
            && old.shape == new.shape
        {
            if let Some(kept) = &mut self.nodes[at] {
                kept.site = *new;
            }
            return;
        }
        if let Some(old) = &old {
            self.reserve.count(&old.room, -1);
        }
        if let Some(new) = &site {
            self.reserve.count(&new.room, 1);
        }
        if old.map(|site| site.shape) != site.map(|site| site.shape) {
            self.recount(old.map(|s| s.shape), site.map(|s| s.shape));
        }
        self.nodes[at] = site.map(|site| Kept {
            kind: self.potential.kind(&site.shape),
            site,
            worth: None,
        });
        self.outdate(at);
    }

    fn recount(&mut self, old: Option<Shape>, new: Option<Shape>) {
        self.reshaped = true;
        if let Some(old) = old
            && let Some(count) = self.counts.get_mut(&old)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&old);
            }
        }
        if let Some(new) = new {
            *self.counts.entry(new).or_insert(0) += 1;
        }
    }

    /// Makes what is kept of a node's scores stale.
    fn outdate(&mut self, at: usize) {
        self.clock = self.clock.wrapping_add(1).max(1);
        self.version[at] = if self.nodes[at].is_some() {
            self.clock
        } else {
            GONE
        };
    }

    /// Expects pods of this mix from now on.
    pub(crate) fn expect(&mut self, mix: Mix) {
        if self.mix != mix {
            self.mix = mix;
            self.remixed = true;
        }
    }

    /// Works out what follows from the mix and the nodes told so far: before anything is chosen.
    pub(crate) fn settle(&mut self) {
        let (remixed, reshaped) = (self.remixed, self.reshaped);
        (self.remixed, self.reshaped) = (false, false);
        if remixed {
            self.potential = Potential::new(&self.mix, &self.counts, self.tuning);
            self.reserve = Reserve::new(&self.mix, &self.tuning);
        } else if !reshaped || !self.potential.reshape(&self.counts) {
            return;
        }
        self.memo.clear();
        for at in 0..self.nodes.len() {
            if let Some(kept) = &mut self.nodes[at] {
                kept.kind = self.potential.kind(&kept.site.shape);
                kept.worth = None;
                if remixed {
                    self.reserve.count(&kept.site.room, 1);
                }
            }
            self.outdate(at);
        }
    }

    /// The node for a pod among those that are open to it, or none if it fits none of them.
    pub(crate) fn choose(
        &mut self,
        demand: &Demand,
        open: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        self.reserve.reprice();
        let class = self.class(demand);
        let mut cells = std::mem::take(&mut self.cells[class]);
        cells.resize(self.nodes.len(), BLANK);
        let mut stale = std::mem::take(&mut self.stale);
        stale.clear();
        let mut best = Best::default();
        for (at, cell) in cells.iter().enumerate() {
            if cell.version != self.version[at] {
                stale.push(at);
            } else if cell.version != GONE {
                self.better(&mut best, at, cell, &open);
            }
        }
        for &at in &stale {
            let Some(kept) = &self.nodes[at] else {
                continue;
            };
            if !kept.site.room.fits(demand) {
                cells[at] = Cell {
                    version: self.version[at],
                    ..BLANK
                };
                continue;
            }
            if best.found.is_some() {
                // No pod can lower a potential by more than it is above its floor: skip nodes
                // that can't win.
                let rank = kept.site.rank;
                let (worth, least) = self.worth(at);
                if !best.is_beaten_by(self.quanta(worth - least), rank) {
                    continue;
                }
            }
            if !open(at) {
                continue;
            }
            cells[at] = self.score(at, demand);
            self.better(&mut best, at, &cells[at], &open);
        }
        self.cells[class] = cells;
        self.stale = stale;
        best.found.map(|(_, _, at)| at)
    }

    /// What is free, in 1/1000, of the GPU of a node that a pod takes a part of best; none if it
    /// fits on none.
    pub(crate) fn piece(&mut self, at: usize, demand: &Demand) -> Option<u16> {
        self.reserve.reprice();
        let mut best: Option<(f64, u16)> = None;
        for (piece, value, lost) in self.outcomes(at, demand) {
            let total = value + self.reserve.price(lost);
            if best.is_none_or(|(least, _)| total <= least) {
                best = Some((total, piece));
            }
        }
        best.map(|(_, piece)| piece)
    }

    /// The number of a class of pods, with a row of cells for it.
    fn class(&mut self, demand: &Demand) -> usize {
        if let Some(class) = self.classes.get(demand) {
            return *class;
        }
        if self.classes.len() * self.nodes.len() >= CELLS_MAX {
            self.classes.clear();
            self.cells.clear();
        }
        let class = self.cells.len();
        self.classes.insert(*demand, class);
        self.cells.push(Vec::new());
        class
    }

    fn quanta(&self, milli: f64) -> i32 {
        (milli / self.tuning.quantum).floor() as i32
    }

    /// The potential of a node as it is, and the least that it can fall to.
    fn worth(&mut self, at: usize) -> (f64, f64) {
        let Some(kept) = &self.nodes[at] else {
            return (0.0, 0.0);
        };
        if let Some(worth) = kept.worth {
            return worth;
        }
        let (kind, room) = (kept.kind, kept.site.room);
        let worth = (
            self.potential_of(kind, &room),
            self.potential.least(kind, &room),
        );
        if let Some(kept) = &mut self.nodes[at] {
            kept.worth = Some(worth);
        }
        worth
    }

    fn potential_of(&mut self, kind: u16, room: &Room) -> f64 {
        let potential = &self.potential;
        self.memo.get(kind, room, |room| potential.of(kind, room))
    }

    /// What a node's potential would be for each different GPU that a pod could take, by what is
    /// free of it, and the large places that would go: the largest piece first.
    fn outcomes(&mut self, at: usize, demand: &Demand) -> Vec<(u16, f64, u32)> {
        let Some(kept) = &self.nodes[at] else {
            return Vec::new();
        };
        let (kind, room) = (kept.kind, kept.site.room);
        if !room.fits(demand) {
            return Vec::new();
        }
        let mut out = Vec::new();
        let mut last = None;
        // Whoever shares none has but one way, also where there are no GPUs.
        let seats = if demand.is_share() {
            room.gpu_slice()
        } else {
            &room.free[..1]
        };
        for (gpu, &free) in seats.iter().enumerate() {
            if demand.is_share() && (free < demand.milli || last == Some(free)) {
                continue;
            }
            last = Some(free);
            let after = room.after(demand, room.mask(demand, gpu as u8));
            let lost = self.reserve.lost(&room, &after);
            out.push((free, self.potential_of(kind, &after.canonical()), lost));
        }
        out
    }

    /// Works a cell out.
    fn score(&mut self, at: usize, demand: &Demand) -> Cell {
        let (now, _) = self.worth(at);
        let mut cell = Cell {
            version: self.version[at],
            ..BLANK
        };
        for (piece, value, lost) in self.outcomes(at, demand) {
            let free = demand.is_share() && piece == WHOLE;
            let way = &mut cell.ways[usize::from(free)];
            let score = self.quanta(now - value);
            if score > way.score {
                *way = Way { score, lost };
            }
        }
        cell
    }

    fn better(&self, best: &mut Best, at: usize, cell: &Cell, open: &impl Fn(usize) -> bool) {
        let Some(kept) = &self.nodes[at] else { return };
        let price = |way: &Way| {
            if way.lost == 0 {
                way.score
            } else {
                let price = self.reserve.price(way.lost);
                way.score.saturating_sub(self.quanta(price))
            }
        };
        let ways = cell.ways.iter().filter(|way| way.score > i32::MIN);
        let Some(score) = ways.map(price).max() else {
            return;
        };
        let rank = kept.site.rank;
        if best.is_beaten_by(score, rank) && open(at) {
            best.found = Some((score, rank, at));
        }
    }
}

/// The best so far: score, rank, node.
#[derive(Clone, Copy, Default)]
struct Best {
    found: Option<(i32, u32, usize)>,
}

impl Best {
    fn is_beaten_by(&self, score: i32, rank: u32) -> bool {
        self.found
            .is_none_or(|(s, r, _)| score > s || (score == s && rank < r))
    }
}
