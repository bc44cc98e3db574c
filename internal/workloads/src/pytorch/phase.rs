//! The job's phases and the transition function between them.

use resources::kinds::{JobConditionType, PyTorchJobStatus};

use super::conditions::is_true;

/// The phase of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PyTorchPhase {
    /// Accepted; its pods wait or do not exist yet.
    Created,
    Running,
    /// A replica failed and gets a new pod.
    Restarting,
    Suspended,
    Succeeded,
    Failed,
}

/// The inputs of the transition function.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PyTorchSignals {
    /// The job's spec requests suspension.
    pub(crate) suspend: bool,
    /// The replicas that determine the job's success have succeeded.
    pub(crate) succeeded: bool,
    /// The job has failed: permanently, by its deadline, or by its backoff limit.
    pub(crate) failed: bool,
    /// A failed replica is to be replaced.
    pub(crate) restarting: bool,
    /// The replica that determines whether the job runs is running.
    pub(crate) running: bool,
}

impl PyTorchPhase {
    /// The phase according to the stored conditions.
    pub(crate) fn of(status: &PyTorchJobStatus) -> PyTorchPhase {
        let holds = |condition| is_true(status, condition);
        if holds(JobConditionType::Failed) {
            PyTorchPhase::Failed
        } else if holds(JobConditionType::Succeeded) {
            PyTorchPhase::Succeeded
        } else if holds(JobConditionType::Suspended) {
            PyTorchPhase::Suspended
        } else if holds(JobConditionType::Restarting) {
            PyTorchPhase::Restarting
        } else if holds(JobConditionType::Running) {
            PyTorchPhase::Running
        } else {
            PyTorchPhase::Created
        }
    }

    /// Whether no phase follows.
    pub(crate) fn is_terminal(self) -> bool {
        matches!(self, PyTorchPhase::Succeeded | PyTorchPhase::Failed)
    }

    /// The phase that follows this one. A success takes precedence over a failure: the work is
    /// done.
    pub(crate) fn next(self, signals: PyTorchSignals) -> PyTorchPhase {
        match self {
            PyTorchPhase::Succeeded | PyTorchPhase::Failed => self,
            _ if signals.suspend => PyTorchPhase::Suspended,
            _ if signals.succeeded => PyTorchPhase::Succeeded,
            _ if signals.failed => PyTorchPhase::Failed,
            _ if signals.restarting => PyTorchPhase::Restarting,
            _ if signals.running => PyTorchPhase::Running,
            PyTorchPhase::Suspended => PyTorchPhase::Created,
            PyTorchPhase::Created | PyTorchPhase::Running | PyTorchPhase::Restarting => self,
        }
    }
}
