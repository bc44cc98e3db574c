//! The potential of a node: the GPU in its room that the expected pods will not use. Lower is
//! better. A pod goes where the potential falls most.
//!
//! The potential has three terms, all in 1/1000 GPU: what a roll-out of pods of the mix leaves
//! idle, plus the waste of started GPUs by their dual prices, less the price of scarce node shapes.
//! The price of the last large places does not belong to one node, so `chooser` adds it.

use std::collections::BTreeMap;

use super::memo::Memo;
use super::mix::Mix;
use super::node::{NodeRoom, NodeShape};
use super::piece::PieceWorth;
use super::rollout::Rollout;
use super::scarcity::scarcity;

/// Constants of the policy. The defaults were tuned on arrival lists of the openb benchmark that
/// are not among the lists that it is measured by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Tuning {
    /// Number of roll-out sequences.
    pub(crate) sequences: usize,
    /// Pods in the shortest sequence. Short sequences show how soon room is used, long ones whether
    /// it ever is.
    pub(crate) shortest: usize,
    /// Pods in the longest sequence; at most 32.
    pub(crate) longest: usize,
    /// Weight of the waste of free pieces of GPUs.
    pub(crate) piece: f64,
    /// Weight of the price of scarce shapes.
    pub(crate) scarce: f64,
    /// Price (1/1000 GPU) of a place for 8 GPUs when the need for such places equals the open
    /// places.
    pub(crate) reserve: f64,
    /// A further price (1/1000 GPU), with the fourth power of need / open: effective when the last
    /// places are taken.
    pub(crate) reserve_late: f64,
    /// The number of GPUs from which a class of pods has reserved places.
    pub(crate) reserve_from: u8,
    /// Differences are rounded to multiples of this (1/1000 GPU); among equals the lowest rank
    /// wins, which fills one node before the next.
    pub(crate) quantum: f64,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            sequences: 36,
            shortest: 4,
            longest: 24,
            piece: 1.0,
            scarce: 1.0,
            reserve: 1000.0,
            reserve_late: 8000.0,
            reserve_from: 8,
            quantum: 10.0,
        }
    }
}

/// The potential for a mix and a cluster.
#[derive(Clone, Debug)]
pub(super) struct Potential {
    tuning: Tuning,
    mix: Mix,
    piece: PieceWorth,
    roll: Rollout,
    kinds: Vec<(NodeShape, f64)>,
}

impl Potential {
    /// Computes what depends only on the mix (all its classes) and on the cluster's number of nodes
    /// of each shape.
    pub(super) fn new(mix: &Mix, shapes: &BTreeMap<NodeShape, u32>, tuning: Tuning) -> Potential {
        Potential {
            tuning,
            mix: mix.clone(),
            piece: PieceWorth::of(mix),
            roll: Rollout::new(mix, tuning.sequences, tuning.shortest, tuning.longest),
            kinds: kinds(mix, shapes, tuning.scarce),
        }
    }

    /// Takes new numbers of nodes for the same mix. Returns whether any price changed.
    pub(super) fn reshape(&mut self, shapes: &BTreeMap<NodeShape, u32>) -> bool {
        let kinds = kinds(&self.mix, shapes, self.tuning.scarce);
        let changed = self.kinds != kinds;
        self.kinds = kinds;
        changed
    }

    /// The number of a shape for the calls below; unknown shapes count as the first.
    pub(super) fn kind(&self, shape: &NodeShape) -> u16 {
        self.kinds.binary_search_by(|k| k.0.cmp(shape)).unwrap_or(0) as u16
    }

    /// The potential of a node of a kind with that room (1/1000 GPU).
    pub(super) fn of(&self, kind: u16, room: &NodeRoom, memo: &mut Memo) -> f64 {
        let waste: f64 = room.gpu_slice().iter().map(|&g| self.piece.waste(g)).sum();
        self.roll.idle(room, memo) + self.tuning.piece * waste - self.price(kind, room)
    }

    /// The price of the node's idle GPUs by its shape.
    fn price(&self, kind: u16, room: &NodeRoom) -> f64 {
        let scarce = self.kinds.get(usize::from(kind)).map_or(0.0, |k| k.1);
        scarce * f64::from(room.idle())
    }
}

/// The shapes in their order, each with the price of one of its idle GPUs.
fn kinds(mix: &Mix, shapes: &BTreeMap<NodeShape, u32>, weight: f64) -> Vec<(NodeShape, f64)> {
    let prices = scarcity(mix, shapes).into_iter();
    prices
        .map(|(shape, price)| (shape, price * weight))
        .collect()
}
