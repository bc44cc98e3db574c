//! What the workload kinds decide: given what is observed of a job and the time, which
//! actions to take and what its status is. Pure: no clock, no I/O, no randomness; the
//! control loops in `controllers` observe, ask and apply.

mod action;
pub mod job;
mod ownership;
mod pod_facts;
pub mod pytorch;
mod terms;

pub use action::{Action, EventNote, NoteKind, Outcome};
