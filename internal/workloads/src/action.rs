//! Owns the vocabulary in which a reconciliation answers. It carries out nothing.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Service};
use resources::kinds::PodGroup;

/// One change to make in the job's namespace. Each may be repeated: creating what exists
/// and deleting what is gone count as done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Create this pod; its name is decided, so repeating it cannot make a second one.
    CreatePod(Box<Pod>),
    /// Delete the pod of this name if it still has this uid.
    DeletePod {
        /// The pod's name.
        name: String,
        /// The uid it was observed with.
        uid: String,
        /// Seconds to stop in; the pod's own grace when absent.
        grace: Option<u32>,
    },
    /// Create this service.
    CreateService(Box<Service>),
    /// Delete the service of this name if it still has this uid.
    DeleteService {
        /// The service's name.
        name: String,
        /// The uid it was observed with.
        uid: String,
    },
    /// Make the pod group be this: replace it where it carries a resourceVersion, create
    /// it where it carries none.
    ApplyPodGroup(Box<PodGroup>),
    /// Delete the pod group of this name if it still has this uid.
    DeletePodGroup {
        /// The group's name.
        name: String,
        /// The uid it was observed with.
        uid: String,
    },
    /// Delete the job itself, and with it all that it owns.
    DeleteJob {
        /// The job's name.
        name: String,
        /// The uid it was observed with.
        uid: String,
    },
}

/// Whether an event reports the ordinary course or something to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoteKind {
    /// The ordinary course.
    Normal,
    /// Something to look at.
    Warning,
}

/// An event to record about the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventNote {
    /// How serious it is.
    pub kind: NoteKind,
    /// The reason in CamelCase.
    pub reason: String,
    /// One sentence for people.
    pub message: String,
}

impl EventNote {
    pub(crate) fn normal(reason: impl Into<String>, message: impl Into<String>) -> EventNote {
        EventNote {
            kind: NoteKind::Normal,
            reason: reason.into(),
            message: message.into(),
        }
    }

    pub(crate) fn warning(reason: impl Into<String>, message: impl Into<String>) -> EventNote {
        EventNote {
            kind: NoteKind::Warning,
            reason: reason.into(),
            message: message.into(),
        }
    }
}

/// What one reconciliation answers. Annotations are to be written before the actions are
/// taken (they hold the counts that make actions happen once), the status after them.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome<Status> {
    /// The changes to make.
    pub actions: Vec<Action>,
    /// The job's whole status from now on.
    pub status: Status,
    /// The job's annotations to set, or to remove where the value is `None`.
    pub annotations: BTreeMap<String, Option<String>>,
    /// When to reconcile again though nothing changes.
    pub requeue_at: Option<Timestamp>,
    /// The events to record.
    pub events: Vec<EventNote>,
}

impl<Status> Outcome<Status> {
    /// Nothing to do, and this status.
    pub(crate) fn keep(status: Status) -> Outcome<Status> {
        Outcome {
            actions: Vec::new(),
            status,
            annotations: BTreeMap::new(),
            requeue_at: None,
            events: Vec::new(),
        }
    }

    /// Asks to be called again at this time, or earlier if that was asked for already.
    pub(crate) fn requeue(&mut self, at: Timestamp) {
        self.requeue_at = Some(self.requeue_at.map_or(at, |known| known.min(at)));
    }
}
