//! The job's phases and the transition function between them.

use resources::kinds::{JobConditionType, PyTorchJobStatus};

use super::conditions::is_true;

/// The phase of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
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
pub(crate) struct Signals {
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

impl Phase {
    /// The phase according to the stored conditions.
    pub(crate) fn of(status: &PyTorchJobStatus) -> Phase {
        let holds = |condition| is_true(status, condition);
        if holds(JobConditionType::Failed) {
            Phase::Failed
        } else if holds(JobConditionType::Succeeded) {
            Phase::Succeeded
        } else if holds(JobConditionType::Suspended) {
            Phase::Suspended
        } else if holds(JobConditionType::Restarting) {
            Phase::Restarting
        } else if holds(JobConditionType::Running) {
            Phase::Running
        } else {
            Phase::Created
        }
    }

    /// Whether no phase follows.
    pub(crate) fn is_terminal(self) -> bool {
        matches!(self, Phase::Succeeded | Phase::Failed)
    }

    /// The phase that follows this one. A success takes precedence over a failure: the work is
    /// done.
    pub(crate) fn next(self, signals: Signals) -> Phase {
        match self {
            Phase::Succeeded | Phase::Failed => self,
            _ if signals.suspend => Phase::Suspended,
            _ if signals.succeeded => Phase::Succeeded,
            _ if signals.failed => Phase::Failed,
            _ if signals.restarting => Phase::Restarting,
            _ if signals.running => Phase::Running,
            Phase::Suspended => Phase::Created,
            Phase::Created | Phase::Running | Phase::Restarting => self,
        }
    }
}
