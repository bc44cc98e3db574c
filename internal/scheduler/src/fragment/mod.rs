//! Where a pod goes so that what is left of the GPUs stays useful: nodes scored by the fall of a
//! potential, the GPU of a node that the pods to come can't be expected to use. Pure: no clock, no
//! input or output, one fixed seed; the same calls give the same places. What the scheduler's
//! state looks like is not known here.
//!
//! `Chooser` is the way in: it holds the nodes and keeps the scores. The pods to come are a
//! [`Mix`], known in advance or such as the pods that are known (`Window`).
//!
//! The problem and the measure of fragmentation are those of Weng et al., "Beware of
//! Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent", USENIX
//! ATC 2023; their policy descends [`fragmentation`]. The potential used here has more in it: what
//! a stream of expected pods would leave idle (module `rollout`), the waste of started GPUs by the
//! dual prices of packing them (`piece`), the worth of scarce kinds of nodes (`scarcity`), and the
//! price of the last places for large pods (`reserve`).
//!
//! Units throughout: CPU in 1/1000 core, memory in MiB, GPU in 1/1000 of one GPU.

mod chooser;
mod fgd;
mod memo;
mod mix;
mod node;
mod piece;
mod potential;
mod reserve;
mod rollout;
mod scarcity;
#[cfg(test)]
mod tests;
mod walk;
mod window;

pub(crate) use chooser::{Chooser, Site};
pub use fgd::fragmentation;
pub use mix::Mix;
pub use node::{ANY_MODEL, Demand, MAX_GPUS, Room, Shape, WHOLE};
pub(crate) use potential::Tuning;
pub(crate) use window::Window;
