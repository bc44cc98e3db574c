//! The lifecycle of a pod on its node as a pure state machine: from a pod's spec and the observed
//! state of its containers to actions and the pod's status. No clock, no I/O: time is a parameter,
//! and the worker does the actions.

pub mod machine;
pub mod plan;
pub mod record;
pub mod status;

pub use machine::{Action, Gates, Hold, Machine, ProbeVerdict, Step, StopCause, Verdict};
pub use plan::{ContainerPlan, PodPlan, RestartPolicy};
pub use record::{End, Record, Run, Seen};

#[cfg(test)]
mod tests;
