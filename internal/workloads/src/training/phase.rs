//! The job's phases and the transition function between them.

use resources::kinds::{JobConditionType, TrainingJobStatus};

use super::conditions::is_true;

/// The phase of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrainingPhase {
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
pub(crate) struct PhaseSignals {
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

impl TrainingPhase {
    /// The phase according to the stored conditions.
    pub(crate) fn of(status: &TrainingJobStatus) -> TrainingPhase {
        let holds = |condition| is_true(status, condition);
        if holds(JobConditionType::Failed) {
            TrainingPhase::Failed
        } else if holds(JobConditionType::Succeeded) {
            TrainingPhase::Succeeded
        } else if holds(JobConditionType::Suspended) {
            TrainingPhase::Suspended
        } else if holds(JobConditionType::Restarting) {
            TrainingPhase::Restarting
        } else if holds(JobConditionType::Running) {
            TrainingPhase::Running
        } else {
            TrainingPhase::Created
        }
    }

    /// Whether no phase follows.
    pub(crate) fn is_terminal(self) -> bool {
        matches!(self, TrainingPhase::Succeeded | TrainingPhase::Failed)
    }

    /// The phase that follows this one. A success takes precedence over a failure: the work is
    /// done.
    pub(crate) fn next(self, signals: PhaseSignals) -> TrainingPhase {
        match self {
            TrainingPhase::Succeeded | TrainingPhase::Failed => self,
            _ if signals.suspend => TrainingPhase::Suspended,
            _ if signals.succeeded => TrainingPhase::Succeeded,
            _ if signals.failed => TrainingPhase::Failed,
            _ if signals.restarting => TrainingPhase::Restarting,
            _ if signals.running => TrainingPhase::Running,
            TrainingPhase::Suspended => TrainingPhase::Created,
            TrainingPhase::Created | TrainingPhase::Running | TrainingPhase::Restarting => self,
        }
    }
}
