//! Chooses which of the free GPUs to allocate together. Pure; reads tables that are computed once
//! for a machine, so that no admission waits for a driver.
//!
//! Sets are ordered by the bandwidth of a ring over them ([`crate::ring`]), then the bandwidth of
//! the network cards near them, then the number of NUMA nodes that they span, then the rest: the
//! ring over the remaining GPUs, and the sum of the bandwidths of the remaining pairs. Of equal
//! sets the first in the machine's order wins. On machines of up to
//! [`ring::MOST`](crate::ring::MOST) GPUs every set is evaluated; on larger ones, sets are grown
//! greedily from each GPU along the best links.

use std::cmp::Reverse;
use std::sync::OnceLock;

use crate::graph::PathGraph;
use crate::inventory::LinkKind;
use crate::ring::{MOST, Rings};
use crate::wiring::Bandwidth;

/// The most network cards that are considered; a machine has fewer.
const NICS: usize = 64;
/// GPUs up to which a grown set's ring is found exactly.
const EXACT: usize = 8;

/// The quality of a set of GPUs; greater is better, and fields compare in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quality {
    /// Bandwidth of a ring over the set.
    pub ring: Bandwidth,
    /// Bandwidth of the network cards that a GPU of the set reaches over PCIe switches alone.
    pub nics: Bandwidth,
    /// Number of NUMA nodes that the set spans.
    pub spread: Reverse<u32>,
    /// Bandwidth of a ring over the remaining GPUs.
    pub left: Bandwidth,
    /// Sum of the bandwidths of the remaining pairs.
    pub pairs_left: u64,
}

/// Chooses among a machine's GPUs. Two choosers are equal if their machines' paths are.
#[derive(Clone, Debug, Default)]
pub struct GpuChooser {
    graph: PathGraph,
    tables: OnceLock<Tables>,
}

impl PartialEq for GpuChooser {
    fn eq(&self, other: &GpuChooser) -> bool {
        self.graph == other.graph
    }
}

impl Eq for GpuChooser {}

/// Facts about the GPUs that are computed beforehand.
#[derive(Clone, Debug)]
struct Tables {
    rings: Option<Rings>,
    /// The sum of pairs' bandwidths in each set; indexed by set, like `rings`.
    pairs: Vec<u64>,
    /// The cards near each GPU, as bits.
    near: Vec<u64>,
    /// The best bandwidth of each card to a GPU near it.
    cards: Vec<Bandwidth>,
    /// The NUMA node of each GPU, as a bit; none if unknown.
    nodes: Vec<u64>,
}

impl GpuChooser {
    /// A chooser for a machine; computes no tables yet.
    pub fn new(graph: PathGraph) -> GpuChooser {
        GpuChooser {
            graph,
            tables: OnceLock::new(),
        }
    }

    /// The machine's paths.
    pub fn graph(&self) -> &PathGraph {
        &self.graph
    }

    /// Computes the tables unless they exist: milliseconds for sixteen GPUs that are all
    /// different.
    pub fn prepare(&self) {
        self.tables();
    }

    fn tables(&self) -> &Tables {
        self.tables.get_or_init(|| Tables::of(&self.graph))
    }

    /// The best `size` of the `free` GPUs that include all of `must`, as places in the graph,
    /// ascending; none if there are too few, or if `must` has more than `size`.
    pub fn choose(&self, free: &[usize], must: &[usize], size: usize) -> Vec<usize> {
        let gpus = self.graph.gpus.len();
        let mut free: Vec<usize> = (free.iter().chain(must))
            .copied()
            .filter(|gpu| *gpu < gpus)
            .collect();
        free.sort_unstable();
        free.dedup();
        let mut must: Vec<usize> = must.iter().copied().filter(|gpu| *gpu < gpus).collect();
        must.sort_unstable();
        must.dedup();
        if size == 0 || free.len() < size || must.len() > size {
            return Vec::new();
        }
        match &self.tables().rings {
            Some(rings) => self.weigh_all(rings, &free, &must, size),
            None => self.grow(&free, &must, size),
        }
    }

    fn weigh_all(&self, rings: &Rings, free: &[usize], must: &[usize], size: usize) -> Vec<usize> {
        let bits = |gpus: &[usize]| gpus.iter().fold(0u16, |set, gpu| set | 1 << gpu);
        let mut search = Search {
            weights: Weights::of(self.tables(), rings, bits(free)),
            open: (free.iter().copied())
                .filter(|gpu| !must.contains(gpu))
                .collect(),
            best: None,
        };
        search.extend(bits(must), 0, size - must.len());
        let best = search.best.map_or(0, |(_, set)| set);
        (0..MOST).filter(|gpu| best >> gpu & 1 == 1).collect()
    }

    /// Grows a set from each free GPU, or from the required ones.
    fn grow(&self, free: &[usize], must: &[usize], size: usize) -> Vec<usize> {
        let starts: Vec<Vec<usize>> = if must.is_empty() {
            free.iter().map(|gpu| vec![*gpu]).collect()
        } else {
            vec![must.to_vec()]
        };
        let grown = starts.into_iter().map(|mut set| {
            while set.len() < size {
                let joins = |gpu: usize| -> u64 {
                    let each = set.iter().map(|other| self.graph.between(gpu, *other));
                    each.map(|bandwidth| u64::from(bandwidth.0)).sum()
                };
                let open = free.iter().copied().filter(|gpu| !set.contains(gpu));
                // Of equal GPUs the first.
                match open.max_by_key(|gpu| (joins(*gpu), Reverse(*gpu))) {
                    Some(next) => set.push(next),
                    None => break,
                }
            }
            set.sort_unstable();
            set
        });
        let best = grown.max_by_key(|set| (self.quality(set, free), Reverse(set.clone())));
        best.unwrap_or_default()
    }

    /// The quality of a set of the free GPUs. Exact for up to eight GPUs on any machine, and on
    /// machines of up to sixteen; otherwise its ring always goes on to the nearest GPU.
    pub fn quality(&self, set: &[usize], free: &[usize]) -> Quality {
        let tables = self.tables();
        let left: Vec<usize> = free
            .iter()
            .copied()
            .filter(|gpu| !set.contains(gpu))
            .collect();
        let all = |of: &[u64]| {
            let known = set.iter().filter_map(|gpu| of.get(*gpu));
            known.fold(0, |all, bits| all | bits)
        };
        let pairs = left.iter().enumerate().flat_map(|(at, one)| {
            let after = left[at + 1..].iter();
            after.map(|other| u64::from(self.graph.between(*one, *other).0))
        });
        Quality {
            ring: self.ring(set),
            nics: tables.carried(all(&tables.near)),
            spread: Reverse(all(&tables.nodes).count_ones()),
            left: self.ring(&left),
            pairs_left: pairs.sum(),
        }
    }

    fn ring(&self, set: &[usize]) -> Bandwidth {
        if set.len() <= EXACT {
            let between = |one: usize, other: usize| self.graph.between(set[one], set[other]);
            let all = (1u16 << set.len()) - 1;
            return Rings::of(set.len(), between).map_or(Bandwidth(0), |rings| rings.carries(all));
        }
        let (first, mut open) = (set[0], set[1..].to_vec());
        let (mut at, mut worst) = (first, Bandwidth::UNLIMITED);
        while let Some(place) = (0..open.len())
            .max_by_key(|place| (self.graph.between(at, open[*place]), Reverse(*place)))
        {
            let next = open.swap_remove(place);
            worst = worst.min(self.graph.between(at, next));
            at = next;
        }
        worst.min(self.graph.between(at, first))
    }
}

impl Tables {
    fn of(graph: &PathGraph) -> Tables {
        let size = graph.gpus.len();
        let nics = graph.nics.len().min(NICS);
        let mut near = vec![0u64; size];
        let mut cards = vec![Bandwidth(0); nics];
        for (gpu, near) in near.iter_mut().enumerate() {
            for (nic, card) in cards.iter_mut().enumerate() {
                let edge = graph.edge(gpu, size + nic);
                if let Some(edge) = edge.filter(|edge| edge.kind <= LinkKind::Pxb) {
                    *near |= 1 << nic;
                    *card = (*card).max(edge.bandwidth);
                }
            }
        }
        let mut known: Vec<u32> = graph.gpus.iter().filter_map(|gpu| gpu.numa).collect();
        known.sort_unstable();
        known.dedup();
        let node = |numa: u32| known.iter().position(|node| *node == numa);
        let rings = Rings::of(size, |one, other| graph.between(one, other));
        Tables {
            pairs: rings.as_ref().map_or_else(Vec::new, |_| pairs(graph)),
            rings,
            near,
            cards,
            nodes: (graph.gpus.iter())
                .map(|gpu| gpu.numa.and_then(node).map_or(0, |node| 1 << node.min(63)))
                .collect(),
        }
    }

    /// The total bandwidth of these cards.
    fn carried(&self, cards: u64) -> Bandwidth {
        let these = self.cards.iter().enumerate();
        let these = these.filter(|(nic, _)| cards >> nic & 1 == 1);
        Bandwidth(these.fold(0, |sum, (_, card)| sum.saturating_add(card.0)))
    }
}

/// The sum of pairs' bandwidths in each set, computed from a set with one device less.
fn pairs(graph: &PathGraph) -> Vec<u64> {
    let mut sums = vec![0u64; 1 << graph.gpus.len()];
    for set in 1..sums.len() {
        let first = set.trailing_zeros() as usize;
        let rest = set & (set - 1);
        let joined = (0..graph.gpus.len()).filter(|gpu| rest >> gpu & 1 == 1);
        let joined = joined.map(|gpu| u64::from(graph.between(first, gpu).0));
        sums[set] = sums[rest] + joined.sum::<u64>();
    }
    sums
}

/// Evaluates sets from the tables alone. The cards near each half of eight GPUs are stored, so
/// that a set costs a few look-ups.
struct Weights<'a> {
    rings: &'a Rings,
    pairs: &'a [u64],
    free: u16,
    near: [[u64; 256]; 2],
    nodes: [[u64; 256]; 2],
    /// The bandwidth of each byte of cards.
    carried: Vec<[u32; 256]>,
}

impl<'a> Weights<'a> {
    fn of(tables: &'a Tables, rings: &'a Rings, free: u16) -> Weights<'a> {
        let union = |bits: &[u64]| {
            let mut halves = [[0u64; 256]; 2];
            for (half, all) in halves.iter_mut().enumerate() {
                for set in 1..256usize {
                    let gpu = half * 8 + set.trailing_zeros() as usize;
                    all[set] = all[set & (set - 1)] | bits.get(gpu).copied().unwrap_or(0);
                }
            }
            halves
        };
        let bytes = tables.cards.chunks(8).map(|cards| {
            let mut sums = [0u32; 256];
            for set in 1..256usize {
                let card = cards.get(set.trailing_zeros() as usize);
                sums[set] = sums[set & (set - 1)].saturating_add(card.map_or(0, |card| card.0));
            }
            sums
        });
        Weights {
            rings,
            pairs: &tables.pairs,
            free,
            near: union(&tables.near),
            nodes: union(&tables.nodes),
            carried: bytes.collect(),
        }
    }

    fn of_set(&self, set: u16, ring: Bandwidth) -> Quality {
        let [low, high] = set.to_le_bytes().map(usize::from);
        let near = (self.near[0][low] | self.near[1][high]).to_le_bytes();
        let nics = (self.carried.iter().zip(near)).fold(0u32, |sum, (byte, cards)| {
            sum.saturating_add(byte[usize::from(cards)])
        });
        let left = self.free & !set;
        Quality {
            ring,
            nics: Bandwidth(nics),
            spread: Reverse((self.nodes[0][low] | self.nodes[1][high]).count_ones()),
            left: self.rings.carries(left),
            pairs_left: self.pairs.get(usize::from(left)).copied().unwrap_or(0),
        }
    }
}

/// The search through all sets of a size.
struct Search<'a> {
    weights: Weights<'a>,
    /// The GPUs that may be added, ascending.
    open: Vec<usize>,
    best: Option<(Quality, u16)>,
}

impl Search<'_> {
    fn extend(&mut self, set: u16, from: usize, lacking: usize) {
        if lacking == 0 {
            let ring = self.weights.rings.carries(set);
            if self.best.is_some_and(|(best, _)| best.ring > ring) {
                return;
            }
            let quality = self.weights.of_set(set, ring);
            // Sets come in the machine's order: of equal sets the first stays.
            if self.best.is_none_or(|(best, _)| quality > best) {
                self.best = Some((quality, set));
            }
            return;
        }
        // As many GPUs must remain as are still missing.
        for next in from..=self.open.len().saturating_sub(lacking) {
            let Some(gpu) = self.open.get(next) else {
                return;
            };
            self.extend(set | 1 << gpu, next + 1, lacking - 1);
        }
    }
}
