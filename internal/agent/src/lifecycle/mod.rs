//! The life of a pod on its node, as a pure state machine: what is wanted and what was seen of
//! its containers in, actions and the pod's status out. No clock, no I/O: time is a parameter,
//! and what acts is the worker.

pub mod machine;
pub mod plan;
pub mod record;
pub mod status;

pub use machine::{Action, Gates, Hold, Machine, ProbeVerdict, Step, StopCause, Verdict};
pub use plan::{ContainerPlan, PodPlan, RestartPolicy};
pub use record::{End, Record, Run, Seen};

#[cfg(test)]
mod tests;
