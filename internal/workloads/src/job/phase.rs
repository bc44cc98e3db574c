//! A Job's phases and the transition function between them.

use k8s_openapi::api::batch::v1::JobStatus;

/// The phase of a Job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JobPhase {
    Active,
    Suspended,
    /// The job has succeeded; its remaining pods are terminating.
    Succeeding(JobEnd),
    /// The job has failed; its remaining pods are terminating.
    Failing(JobEnd),
    Complete(JobEnd),
    Failed(JobEnd),
}

/// Why a Job ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobEnd {
    /// The reason in CamelCase.
    pub(crate) reason: String,
    /// The message.
    pub(crate) message: String,
}

impl JobEnd {
    pub(crate) fn new(reason: &str, message: impl Into<String>) -> JobEnd {
        JobEnd {
            reason: reason.to_owned(),
            message: message.into(),
        }
    }
}

/// The inputs of the transition function.
#[derive(Clone, Debug, Default)]
pub(crate) struct JobSignals {
    pub(crate) suspend: bool,
    pub(crate) failure: Option<JobEnd>,
    pub(crate) success: Option<JobEnd>,
    /// Pods that run, wait or terminate.
    pub(crate) remaining: usize,
}

impl JobPhase {
    /// The phase according to the stored conditions.
    pub(crate) fn of(status: &JobStatus) -> JobPhase {
        let holding = |type_: &str| {
            let conditions = status.conditions.iter().flatten();
            let mut holding =
                conditions.filter(|known| known.type_ == type_ && known.status == "True");
            holding.next().map(|known| JobEnd {
                reason: known.reason.clone().unwrap_or_default(),
                message: known.message.clone().unwrap_or_default(),
            })
        };
        if let Some(verdict) = holding("Failed") {
            JobPhase::Failed(verdict)
        } else if let Some(verdict) = holding("Complete") {
            JobPhase::Complete(verdict)
        } else if let Some(verdict) = holding("FailureTarget") {
            JobPhase::Failing(verdict)
        } else if let Some(verdict) = holding("SuccessCriteriaMet") {
            JobPhase::Succeeding(verdict)
        } else if holding("Suspended").is_some() {
            JobPhase::Suspended
        } else {
            JobPhase::Active
        }
    }

    /// The phase that follows this one. A verdict is final.
    pub(crate) fn next(self, signals: JobSignals) -> JobPhase {
        let decided = match self {
            JobPhase::Complete(_) | JobPhase::Failed(_) => return self,
            JobPhase::Failing(verdict) => JobPhase::Failing(verdict),
            JobPhase::Succeeding(verdict) => JobPhase::Succeeding(verdict),
            JobPhase::Active | JobPhase::Suspended => match (signals.failure, signals.success) {
                (Some(verdict), _) => JobPhase::Failing(verdict),
                (None, Some(verdict)) => JobPhase::Succeeding(verdict),
                (None, None) if signals.suspend => JobPhase::Suspended,
                (None, None) => JobPhase::Active,
            },
        };
        match decided {
            JobPhase::Failing(verdict) if signals.remaining == 0 => JobPhase::Failed(verdict),
            JobPhase::Succeeding(verdict) if signals.remaining == 0 => JobPhase::Complete(verdict),
            other => other,
        }
    }

    pub(crate) fn is_terminal(&self) -> bool {
        matches!(self, JobPhase::Complete(_) | JobPhase::Failed(_))
    }
}
