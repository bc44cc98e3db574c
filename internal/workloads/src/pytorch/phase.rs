//! Owns the job's phases and the one function that says which follows which.

use resources::kinds::{JobConditionType, PyTorchJobStatus};

use super::conditions::is_true;

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Accepted; its pods wait or are not there yet.
    Created,
    Running,
    /// A replica failed and gets a new pod.
    Restarting,
    Suspended,
    Succeeded,
    Failed,
}

/// What bears on the next phase.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Signals {
    /// The user wants the job held.
    pub(crate) suspend: bool,
    /// The replicas whose success is the job's have succeeded.
    pub(crate) succeeded: bool,
    /// A failure that nothing answers: for good, out of time, out of restarts.
    pub(crate) failed: bool,
    /// A failed replica is to be replaced.
    pub(crate) restarting: bool,
    /// The replica whose running is the job's runs.
    pub(crate) running: bool,
}

impl Phase {
    /// The phase that the stored conditions tell.
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

    /// Nothing follows.
    pub(crate) fn is_terminal(self) -> bool {
        matches!(self, Phase::Succeeded | Phase::Failed)
    }

    /// The phase that follows this one. A success that is there outweighs a failure: the
    /// work is done.
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
