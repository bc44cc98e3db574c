//! The choice of a node and a GPU for a pod: among the nodes that the caller permits, the one where
//! the pod leaves the most room that future pods can use. The chooser keeps every score and
//! recomputes only the scores of nodes that changed. The kept scores only save time: every answer
//! follows from the rooms, the mix and the call alone (`kept_scores_never_change_a_choice`). Module
//! `potential` computes what a node's room is worth.

use std::collections::BTreeMap;

use super::memo::Memo;
use super::mix::Mix;
use super::node::{ANY_MODEL, NodeRoom, NodeShape, PodDemand, WHOLE};
use super::potential::{Potential, Tuning};
use super::reserve::Reserve;

/// The most scores that are kept: one for each class of pods and node, 24 bytes each. Beyond that
/// all are dropped.
const CELLS_MAX: usize = 1 << 21;

/// How many neighbouring nodes are skipped together, where none of them scores enough.
const BLOCK: usize = 32;

/// A node as the chooser sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChooserNode {
    /// The node's total resources.
    pub(crate) shape: NodeShape,
    /// The node's free resources, GPUs in falling order.
    pub(crate) room: NodeRoom,
    /// Its rank by name: among equals the lowest is chosen.
    pub(crate) rank: u32,
}

/// The effect of placing a pod on a started GPU, or on a free one.
#[derive(Clone, Copy, Debug)]
struct PlacementEffect {
    /// Fall of the potential in quanta, without the price of large places; `i32::MIN` where the pod
    /// can't be placed so.
    score: i32,
    /// The large places that are lost, for `Reserve`.
    lost: u32,
}

const NO_WAY: PlacementEffect = PlacementEffect {
    score: i32::MIN,
    lost: 0,
};

/// The scores of pods with the same request on a node, valid for one version of the node: on a
/// started GPU (or for a pod that shares no GPU), and on a free GPU.
#[derive(Clone, Copy, Debug)]
struct NodeScores {
    version: u32,
    ways: [PlacementEffect; 2],
}

/// The version of a node that does not exist. Versions of other nodes begin at 1.
const GONE: u32 = 0;

/// A cell that was never computed.
const BLANK: NodeScores = NodeScores {
    version: GONE,
    ways: [NO_WAY; 2],
};

/// The highest score among a block's cells, valid while none of its nodes changes.
#[derive(Clone, Copy, Debug, Default)]
struct BlockBest {
    version: u32,
    score: i32,
}

/// What is kept for one class of pods.
#[derive(Clone, Debug, Default)]
struct ClassScores {
    /// The cells of this class, shared with the classes that differ only in their GPU models.
    scores: usize,
    /// The highest scores by block of nodes.
    best_of_blocks: Vec<BlockBest>,
    /// The node chosen last. It is likely to be among the best again: trying it first lets most
    /// other nodes be skipped.
    last: usize,
}

/// What is kept for one node.
#[derive(Clone, Debug)]
struct CachedNode {
    site: ChooserNode,
    kind: u16,
    /// The potential of the present room; computed on first use.
    worth: Option<f64>,
}

/// The nodes of a cluster, and where the next pod is best placed.
///
/// A choice costs one look at the kept score of each node, and the potential of the nodes that
/// changed since the class was last asked for, unless an equal room was evaluated before.
#[derive(Clone, Debug)]
pub(crate) struct NodeChooser {
    tuning: Tuning,
    mix: Mix,
    potential: Potential,
    counts: BTreeMap<NodeShape, u32>,
    /// Whether the mix changed, or shapes appeared or disappeared, since the potential was
    /// computed.
    remixed: bool,
    reshaped: bool,
    nodes: Vec<Option<CachedNode>>,
    version: Vec<u32>,
    /// For each block, the last version of any of its nodes.
    blocks: Vec<u32>,
    clock: u32,
    classes: BTreeMap<PodDemand, usize>,
    rows: Vec<ClassScores>,
    /// Cells by node, for pods that differ only in the models that they admit: what a pod leaves on
    /// a node does not depend on where else it could run.
    scores: Vec<Vec<NodeScores>>,
    /// The index into `scores`, by a demand that admits every model.
    scored: BTreeMap<PodDemand, usize>,
    memo: Memo,
    reserve: Reserve,
}

impl NodeChooser {
    /// A chooser without nodes and without expected pods.
    pub(crate) fn new(tuning: Tuning) -> NodeChooser {
        let mix = Mix::default();
        let counts = BTreeMap::new();
        NodeChooser {
            potential: Potential::new(&mix, &counts, tuning),
            reserve: Reserve::new(&mix, &tuning),
            tuning,
            mix,
            counts,
            remixed: false,
            reshaped: false,
            nodes: Vec::new(),
            version: Vec::new(),
            blocks: Vec::new(),
            clock: 0,
            classes: BTreeMap::new(),
            rows: Vec::new(),
            scores: Vec::new(),
            scored: BTreeMap::new(),
            memo: Memo::default(),
        }
    }

    /// How many nodes there are of each shape.
    pub(crate) fn shapes(&self) -> &BTreeMap<NodeShape, u32> {
        &self.counts
    }

    /// Updates a node; none if it is gone or has no GPUs.
    pub(crate) fn set(&mut self, at: usize, site: Option<ChooserNode>) {
        if self.nodes.len() <= at {
            self.nodes.resize(at + 1, None);
            self.version.resize(at + 1, GONE);
            self.blocks.resize(at / BLOCK + 1, GONE);
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
        self.nodes[at] = site.map(|site| CachedNode {
            kind: self.potential.kind(&site.shape),
            site,
            worth: None,
        });
        self.outdate(at);
    }

    fn recount(&mut self, old: Option<NodeShape>, new: Option<NodeShape>) {
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

    /// Invalidates the kept scores of a node.
    fn outdate(&mut self, at: usize) {
        self.clock = self.clock.wrapping_add(1).max(1);
        self.version[at] = if self.nodes[at].is_some() {
            self.clock
        } else {
            GONE
        };
        self.blocks[at / BLOCK] = self.clock;
    }

    /// Expects pods of this mix from now on.
    pub(crate) fn expect(&mut self, mix: Mix) {
        if self.mix != mix {
            self.mix = mix;
            self.remixed = true;
        }
    }

    /// Recomputes what follows from the mix and the nodes. To be called before anything is chosen.
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

    /// The node for a pod among the nodes that are open to it, or none if it fits none of them.
    pub(crate) fn choose(
        &mut self,
        demand: &PodDemand,
        open: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        self.reserve.reprice();
        let class = self.class(demand);
        let mut row = std::mem::take(&mut self.rows[class]);
        let mut cells = std::mem::take(&mut self.scores[row.scores]);
        cells.resize(self.nodes.len(), BLANK);
        let mut best = Best::default();
        let last = row.last;
        if let Some(cell) = cells.get_mut(last) {
            self.weigh(last, cell, demand, &open, &mut best);
        }
        row.best_of_blocks
            .resize(self.blocks.len(), BlockBest::default());
        let blocks = cells.chunks_mut(BLOCK).zip(&mut row.best_of_blocks);
        for (nth, (cells, block_best)) in blocks.enumerate() {
            let version = self.blocks[nth];
            if block_best.version == version && block_best.score < best.least() {
                continue;
            }
            let mut most = Some(i32::MIN);
            for (at, cell) in cells.iter_mut().enumerate() {
                let score = self.weigh(nth * BLOCK + at, cell, demand, &open, &mut best);
                most = most.and_then(|most| Some(most.max(score?)));
            }
            if let Some(score) = most {
                *block_best = BlockBest { version, score };
            }
        }
        let found = best.found.map(|(_, _, at)| at);
        row.last = found.unwrap_or(last);
        self.scores[row.scores] = cells;
        self.rows[class] = row;
        found
    }

    /// Compares a node with the best so far. Returns the node's score without the price of large
    /// places; none if that is not known, because the node is not open.
    fn weigh(
        &mut self,
        at: usize,
        cell: &mut NodeScores,
        demand: &PodDemand,
        open: impl Fn(usize) -> bool,
        best: &mut Best,
    ) -> Option<i32> {
        let room = || self.nodes[at].as_ref().map(|kept| &kept.site.room);
        if demand.models != ANY_MODEL && !room().is_some_and(|room| room.admits(demand)) {
            return Some(i32::MIN);
        }
        if cell.version != self.version[at] {
            if room().is_some_and(|room| room.fits(demand)) && !open(at) {
                return None;
            }
            *cell = self.score(at, demand);
        }
        for way in &cell.ways {
            if way.score < best.least() {
                continue;
            }
            let (score, rank) = (self.priced(way), self.rank(at));
            if best.is_beaten_by(score, rank) && open(at) {
                best.found = Some((score, rank, at));
            }
        }
        Some(cell.ways[0].score.max(cell.ways[1].score))
    }

    /// How good a node is for a pod, by the room that it leaves there for future pods: the more the
    /// better, in quanta; none if the pod fits on none of its GPUs.
    pub(crate) fn worth(&mut self, at: usize, demand: &PodDemand) -> Option<i32> {
        self.reserve.reprice();
        self.nodes.get(at)?.as_ref()?;
        let cell = self.score(at, demand);
        let ways = cell.ways.iter().filter(|way| way.score > i32::MIN);
        ways.map(|way| self.priced(way)).max()
    }

    /// The free part, in 1/1000, of the GPU on which a pod that takes a part of a GPU is placed
    /// best; none if it fits on none.
    pub(crate) fn piece(&mut self, at: usize, demand: &PodDemand) -> Option<u16> {
        self.reserve.reprice();
        let kept = self.nodes.get(at)?.as_ref()?;
        if !kept.site.room.fits(demand) {
            return None;
        }
        let mut best: Option<(f64, u16)> = None;
        for (piece, after) in outcomes(&kept.site.room, demand) {
            let lost = self.reserve.lost(&kept.site.room, &after);
            let value = self.potential.of(kept.kind, &after, &mut self.memo);
            let total = value + self.reserve.price(lost);
            if best.is_none_or(|(least, _)| total <= least) {
                best = Some((total, piece));
            }
        }
        best.map(|(_, piece)| piece)
    }

    /// The number of a class of pods; adds a row for a new class.
    fn class(&mut self, demand: &PodDemand) -> usize {
        if let Some(class) = self.classes.get(demand) {
            return *class;
        }
        let any = PodDemand {
            models: ANY_MODEL,
            ..*demand
        };
        if self.classes.len() * self.nodes.len() >= CELLS_MAX {
            self.classes.clear();
            self.rows.clear();
            self.scored.clear();
            self.scores.clear();
        }
        let scores = *self.scored.entry(any).or_insert_with(|| {
            self.scores.push(Vec::new());
            self.scores.len() - 1
        });
        let class = self.rows.len();
        self.classes.insert(*demand, class);
        self.rows.push(ClassScores {
            scores,
            ..ClassScores::default()
        });
        class
    }

    /// An amount in quanta, rounded down.
    fn quanta(&self, milli: f64) -> i32 {
        let quanta = milli / self.tuning.quantum;
        let cut = quanta as i32;
        cut - i32::from(f64::from(cut) > quanta)
    }

    fn rank(&self, at: usize) -> u32 {
        self.nodes[at].as_ref().map_or(u32::MAX, |k| k.site.rank)
    }

    /// The score of a placement, less the price of the large places that it loses.
    fn priced(&self, way: &PlacementEffect) -> i32 {
        if way.lost == 0 {
            return way.score;
        }
        let price = self.quanta(self.reserve.price(way.lost));
        way.score.saturating_sub(price)
    }

    /// Computes a cell.
    fn score(&mut self, at: usize, demand: &PodDemand) -> NodeScores {
        let mut cell = NodeScores {
            version: self.version[at],
            ..BLANK
        };
        let Some(kept) = &mut self.nodes[at] else {
            return cell;
        };
        let (kind, room) = (kept.kind, &kept.site.room);
        if !room.fits(demand) {
            return cell;
        }
        let (potential, memo) = (&self.potential, &mut self.memo);
        let worth = &mut kept.worth;
        let now = *worth.get_or_insert_with(|| potential.of(kind, room, memo));
        let mut least = [f64::INFINITY; 2];
        for (piece, after) in outcomes(room, demand) {
            let which = way_of(demand, piece);
            least[which] = potential.of(kind, &after, memo).min(least[which]);
            // A placement on any started GPU leaves the same number of whole GPUs.
            cell.ways[which].lost = self.reserve.lost(room, &after);
        }
        for (way, least) in cell.ways.iter_mut().zip(least) {
            if least < f64::INFINITY {
                way.score = self.quanta(now - least).max(i32::MIN + 1);
            }
        }
        cell
    }
}

/// Whether a pod on a GPU with so much free is on a started GPU (0) or on a free one (1). A pod
/// that shares no GPU has only one way.
fn way_of(demand: &PodDemand, piece: u16) -> usize {
    usize::from(demand.is_share() && piece == WHOLE)
}

/// The room after the pod was placed on each different GPU, with that GPU's free part before: the
/// largest first. The pod must fit, and the GPUs must be in falling order.
fn outcomes<'a>(
    room: &'a NodeRoom,
    demand: &'a PodDemand,
) -> impl Iterator<Item = (u16, NodeRoom)> + 'a {
    // A pod that shares no GPU has only one way, also where there are no GPUs.
    let seats = if demand.is_share() {
        room.gpu_slice()
    } else {
        &room.free[..1]
    };
    let mut last = None;
    seats.iter().enumerate().filter_map(move |(gpu, &free)| {
        let another = last.replace(free) != Some(free);
        let fits = !demand.is_share() || (free >= demand.milli && another);
        fits.then(|| (free, room.after(demand, room.mask(demand, gpu as u8))))
    })
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

    /// The least score that can still win.
    fn least(&self) -> i32 {
        self.found.map_or(i32::MIN + 1, |(score, ..)| score)
    }
}
