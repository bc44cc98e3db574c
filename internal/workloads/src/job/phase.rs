//! A Job's phases and the transition function between them.

use k8s_openapi::api::batch::v1::JobStatus;

/// The phase of a Job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Active,
    Suspended,
    /// The job has succeeded; its remaining pods are terminating.
    Succeeding(Verdict),
    /// The job has failed; its remaining pods are terminating.
    Failing(Verdict),
    Complete(Verdict),
    Failed(Verdict),
}

/// Why a Job ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// The reason in CamelCase.
    pub(crate) reason: String,
    /// The message.
    pub(crate) message: String,
}

impl Verdict {
    pub(crate) fn new(reason: &str, message: impl Into<String>) -> Verdict {
        Verdict {
            reason: reason.to_owned(),
            message: message.into(),
        }
    }
}

/// The inputs of the transition function.
#[derive(Clone, Debug, Default)]
pub(crate) struct Signals {
    pub(crate) suspend: bool,
    pub(crate) failure: Option<Verdict>,
    pub(crate) success: Option<Verdict>,
    /// Pods that run, wait or terminate.
    pub(crate) remaining: usize,
}

impl Phase {
    /// The phase according to the stored conditions.
    pub(crate) fn of(status: &JobStatus) -> Phase {
        let holding = |type_: &str| {
            let conditions = status.conditions.iter().flatten();
            let mut holding =
                conditions.filter(|known| known.type_ == type_ && known.status == "True");
            holding.next().map(|known| Verdict {
                reason: known.reason.clone().unwrap_or_default(),
                message: known.message.clone().unwrap_or_default(),
            })
        };
        if let Some(verdict) = holding("Failed") {
            Phase::Failed(verdict)
        } else if let Some(verdict) = holding("Complete") {
            Phase::Complete(verdict)
        } else if let Some(verdict) = holding("FailureTarget") {
            Phase::Failing(verdict)
        } else if let Some(verdict) = holding("SuccessCriteriaMet") {
            Phase::Succeeding(verdict)
        } else if holding("Suspended").is_some() {
            Phase::Suspended
        } else {
            Phase::Active
        }
    }

    /// The phase that follows this one. A verdict is final.
    pub(crate) fn next(self, signals: Signals) -> Phase {
        let decided = match self {
            Phase::Complete(_) | Phase::Failed(_) => return self,
            Phase::Failing(verdict) => Phase::Failing(verdict),
            Phase::Succeeding(verdict) => Phase::Succeeding(verdict),
            Phase::Active | Phase::Suspended => match (signals.failure, signals.success) {
                (Some(verdict), _) => Phase::Failing(verdict),
                (None, Some(verdict)) => Phase::Succeeding(verdict),
                (None, None) if signals.suspend => Phase::Suspended,
                (None, None) => Phase::Active,
            },
        };
        match decided {
            Phase::Failing(verdict) if signals.remaining == 0 => Phase::Failed(verdict),
            Phase::Succeeding(verdict) if signals.remaining == 0 => Phase::Complete(verdict),
            other => other,
        }
    }

    pub(crate) fn is_terminal(&self) -> bool {
        matches!(self, Phase::Complete(_) | Phase::Failed(_))
    }
}
