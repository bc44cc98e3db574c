//! The potential of a node: GPU that what is left of it can't be expected to give. Lower is better.
//! A pod goes where the potential falls most.
//!
//! Three terms, all in 1/1000 GPU: what a roll-out of pods like the mix leaves idle, the waste of
//! started GPUs by their dual prices, and less the price of scarce shapes of nodes. The price of
//! the last large places is not of one node, so it is added by `chooser`.

use std::collections::BTreeMap;

use super::mix::Mix;
use super::node::{Room, Shape};
use super::piece::PieceWorth;
use super::rollout::Rollout;
use super::scarcity::scarcity;

/// Constants of the policy. The defaults were tuned on arrival lists of the openb benchmark that
/// are not among those it is measured by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tuning {
    /// Number of roll-out sequences.
    pub sequences: usize,
    /// Pods in the shortest sequence. Short ones tell how soon room is used, long ones whether it
    /// ever is.
    pub shortest: usize,
    /// Pods in the longest sequence; at most 64.
    pub longest: usize,
    /// Weight of the waste of pieces.
    pub piece: f64,
    /// Weight of the price of scarce shapes.
    pub scarce: f64,
    /// Price (1/1000 GPU) of a place for 8 GPUs when the need for such places equals what is
    /// open.
    pub reserve: f64,
    /// More of it (1/1000 GPU), with the fourth power of need / open: bites when the last places
    /// go.
    pub reserve_late: f64,
    /// GPUs from which a class of pods has places.
    pub reserve_from: u8,
    /// Differences are cut to multiples of this (1/1000 GPU); among equals the lowest rank wins,
    /// which fills one node before the next.
    pub quantum: f64,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            sequences: 48,
            shortest: 4,
            longest: 32,
            piece: 1.0,
            scarce: 1.0,
            reserve: 1000.0,
            reserve_late: 8000.0,
            reserve_from: 8,
            quantum: 10.0,
        }
    }
}

/// Potential for a mix and a cluster.
#[derive(Clone, Debug)]
pub struct Potential {
    tuning: Tuning,
    mix: Mix,
    piece: PieceWorth,
    roll: Rollout,
    kinds: Vec<(Shape, f64)>,
}

impl Potential {
    /// Works out what depends only on the mix (all its classes) and the cluster: so many nodes of
    /// each shape.
    #[must_use]
    pub fn new(mix: &Mix, shapes: &BTreeMap<Shape, u32>, tuning: Tuning) -> Potential {
        Potential {
            tuning,
            mix: mix.clone(),
            piece: PieceWorth::of(mix),
            roll: Rollout::new(mix, tuning.sequences, tuning.shortest, tuning.longest),
            kinds: scarcity(mix, shapes)
                .into_iter()
                .map(|(s, p)| (s, p * tuning.scarce))
                .collect(),
        }
    }

    /// The constants in use.
    #[must_use]
    pub fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// The mix it was made for.
    #[must_use]
    pub fn mix(&self) -> &Mix {
        &self.mix
    }

    /// Nothing is known of the pods to come; the potential then tells nothing.
    #[must_use]
    pub fn is_blind(&self) -> bool {
        self.mix.is_empty()
    }

    /// Number of a shape for the calls below; shapes that were not given count as the first.
    #[must_use]
    pub fn kind(&self, shape: &Shape) -> u16 {
        self.kinds.binary_search_by(|k| k.0.cmp(shape)).unwrap_or(0) as u16
    }

    /// Potential of a node of a kind with that room (1/1000 GPU).
    #[must_use]
    pub fn of(&self, kind: u16, room: &Room) -> f64 {
        let waste: f64 = room.gpu_slice().iter().map(|&g| self.piece.waste(g)).sum();
        self.roll.idle(room) + self.tuning.piece * waste - self.price(kind, room)
    }

    /// A bound that [`Potential::of`] never falls under, whatever else is placed in that room.
    #[must_use]
    pub fn least(&self, kind: u16, room: &Room) -> f64 {
        let gpus = room.gpu_slice().iter();
        let waste: f64 = gpus.map(|&g| self.piece.lowest(g)).sum();
        self.tuning.piece * waste - self.price(kind, room)
    }

    /// The price of the node's idle GPUs by its shape.
    fn price(&self, kind: u16, room: &Room) -> f64 {
        let scarce = self.kinds.get(usize::from(kind)).map_or(0.0, |k| k.1);
        scarce * f64::from(room.idle())
    }
}
