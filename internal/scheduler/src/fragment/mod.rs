//! Fragmentation-aware placement: on which node, and on which GPU of it, a pod leaves room that
//! future pods can use. Nodes are scored by the fall of a potential: the GPU of a node that future
//! pods are not expected to use. The module is pure: no clock, no input or output, one fixed seed;
//! the same calls give the same places. It does not know the scheduler's state.
//!
//! `NodeChooser` is the entry point: it holds the nodes and keeps the scores. The expected pods are a
//! [`Mix`], given in advance or taken from the known pods (`Window`).
//!
//! The problem and the measure of fragmentation are those of Weng et al., "Beware of Fragmentation:
//! Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent", USENIX ATC 2023; their
//! policy descends [`fragmentation`]. The potential used here has more terms: what a stream of
//! expected pods would leave idle (module `rollout`), the waste of started GPUs by the dual prices
//! of packing them (`piece`), the worth of scarce kinds of nodes (`scarcity`), and the price of the
//! last places for large pods (`reserve`).
//!
//! Cost: one look at the kept score of each node for a choice, and new potentials only for nodes
//! that changed. `make bench-openb` measures the result.
//!
//! Example: the mix is pods of 600/1000 and 400/1000 of a GPU. On a node of two GPUs a pod of 600
//! starts one GPU, and the next pod of 400 fills that GPU: the other one stays free
//! (`a_share_goes_to_the_gpu_that_it_fills`).
//!
//! Tests: `tests.rs` in this module by table and property, `tests/fragmentation.rs` in the
//! scheduler.
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

pub(crate) use chooser::{ChooserNode, NodeChooser};
pub use fgd::fragmentation;
pub use mix::Mix;
pub use node::{ANY_MODEL, MAX_GPUS, NodeRoom, NodeShape, PodDemand, WHOLE};
pub(crate) use potential::Tuning;
pub(crate) use window::Window;
