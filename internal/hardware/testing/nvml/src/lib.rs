//! A stand-in for the NVIDIA driver's library, `libnvidia-ml.so.1`, for tests and demos: it
//! answers from a machine description (`hardware::description`), so that what reads real GPUs
//! can be run where there are none. It is in no package.
//!
//! The description is the file that `MUSTER_NVML_MACHINE` names or else `machine.toml` beside
//! the library. It is looked at before every answer and read again when it has changed: a test
//! edits it to let a GPU fall off the bus, report an XID, or be cut anew. One that can't be read
//! leaves things as they were, and is complained of on stderr.
//!
//! Owns what the driver's calls answer, by NVML's own protocol; must not: decide what a machine
//! has, which is the description's to say. A call that isn't here is one the driver lacks.

#![allow(non_snake_case, reason = "the driver's own names")]
#![allow(
    clippy::missing_safety_doc,
    reason = "each is what NVML's reference says of it: handles from the library, pointers that may be written"
)]

mod affinity;
mod answer;
mod cut;
mod device;
mod events;
mod fields;
mod gpm;
mod links;
mod load;
mod memory;
mod mig;
mod processes;
mod system;
mod vgpu;
mod world;
