//! GPUs from a driver's library, replaced by the stand-in (`testing/nvml`): the wrapper, the calls
//! and the reading are those for real GPUs.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod calls;
mod events;
mod exports;
mod faults;
mod inventory;
mod meter;
mod mig;
mod mig_partitioner;
mod standin;
mod tree;
