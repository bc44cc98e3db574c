//! Owns a Job's phases and the one function that says which follows which.

use k8s_openapi::api::batch::v1::JobStatus;

/// Where a Job stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Active,
    Suspended,
    /// It has succeeded; the rest of its pods are stopping.
    Succeeding(Verdict),
    /// It has failed; the rest of its pods are stopping.
    Failing(Verdict),
    Complete(Verdict),
    Failed(Verdict),
}

/// Why a Job ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// In a word.
    pub(crate) reason: String,
    /// In a sentence.
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

/// What bears on the next phase.
#[derive(Clone, Debug, Default)]
pub(crate) struct Signals {
    pub(crate) suspend: bool,
    pub(crate) failure: Option<Verdict>,
    pub(crate) success: Option<Verdict>,
    /// Pods that run, wait or stop.
    pub(crate) remaining: usize,
}

impl Phase {
    /// The phase that the stored conditions tell.
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

    /// The phase that follows this one. A verdict, once given, stands.
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
