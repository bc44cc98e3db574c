//! The lifecycle of a pod on its node as a pure state machine: from a pod's spec and the observed
//! state of its containers to actions and the pod's status. No clock, no I/O: time is a parameter,
//! and the worker does the actions.

pub mod machine;
pub mod plan;
pub mod record;
pub mod status;

pub use machine::{
    Gates, LifecycleStep, PodLifecycle, PodVerdict, ProbeVerdict, StartBlock, StopCause,
    WorkerAction,
};
pub use plan::{ContainerPlan, PodPlan, PodRestartPolicy};
pub use record::{ContainerRecord, RunEnd, RunObservation, RunState};

#[cfg(test)]
mod tests;
