//! A stand-in for the NVIDIA driver's library, `libnvidia-ml.so.1`, for tests and demos: it
//! answers from a machine description (`hardware::description`), so that code for real GPUs runs
//! on machines without any. No package contains it.
//!
//! The description is the file in `MUSTER_NVML_MACHINE`, or else `machine.toml` beside the
//! library. It is checked before every answer and read again if it has changed: a test edits it to
//! let a GPU fall off the bus, report an XID, or change its slices. An unreadable description
//! leaves the state as it was, with a message on stderr.
//!
//! Owns the answers to the driver's calls, by NVML's own protocol. Must not decide a machine's
//! hardware, which the description does. A call without an implementation here is one that the
//! driver lacks.

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
