//! The vocabulary of reconciliation results. It carries out nothing.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ControllerRevision, ReplicaSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{
    ConfigMap, PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount,
};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use resources::kinds::{JobSet, PodGroup, RayCluster};
use serde_json::Value;

use crate::pod_facts;

/// One change in the job's namespace. Each is idempotent: creating an existing object and deleting
/// an absent one count as done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Create this pod; its name is fixed, so a repetition cannot create a second one.
    CreatePod(Box<Pod>),
    /// Delete the pod of this name if it still has this uid.
    DeletePod {
        /// The pod's name.
        name: String,
        /// The uid it was observed with.
        uid: String,
        /// The grace period in seconds; the pod's own if absent.
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
    /// Apply this pod group: replace it if it carries a resourceVersion, else create it.
    ApplyPodGroup(Box<PodGroup>),
    /// Delete the pod group of this name if it still has this uid.
    DeletePodGroup {
        /// The group's name.
        name: String,
        /// The uid it was observed with.
        uid: String,
    },
    /// Create this dependent.
    Create(Dependent),
    /// Change the dependent of this name by a merge patch if it still has this uid.
    Change {
        /// Its kind.
        kind: DependentKind,
        /// Its name.
        name: String,
        /// The uid it was observed with.
        uid: String,
        /// The patch.
        patch: Value,
    },
    /// Become the controller of an object that has none, by a merge patch, if it still has this uid. The job itself is
    /// read again before: an object must not get an owner that is being deleted.
    Adopt {
        /// Its kind.
        kind: DependentKind,
        /// Its name.
        name: String,
        /// The uid it was observed with.
        uid: String,
        /// The patch.
        patch: Value,
    },
    /// Delete the dependent of this name, and with it all of its own dependents, if it still has this uid.
    Delete {
        /// Its kind.
        kind: DependentKind,
        /// Its name.
        name: String,
        /// The uid it was observed with.
        uid: String,
    },
    /// Delete the job itself, and with it all its dependents.
    DeleteJob {
        /// The job's name.
        name: String,
        /// The uid it was observed with.
        uid: String,
    },
}

/// Deletes exactly this pod, with its own grace period.
pub(crate) fn delete_pod(pod: &Pod) -> Action {
    Action::DeletePod {
        name: pod_facts::name(pod).to_owned(),
        uid: pod_facts::uid(pod).to_owned(),
        grace: None,
    }
}

/// An object of another kind than pods that a workload creates.
#[derive(Clone, Debug, PartialEq)]
pub enum Dependent {
    /// A CronJob's Job, one of a JobSet, or the one that submits a RayJob's program.
    Job(Box<Job>),
    /// A RayJob's or RayService's cluster.
    RayCluster(Box<RayCluster>),
    /// A TrainJob's JobSet.
    JobSet(Box<JobSet>),
    /// A Deployment's ReplicaSet.
    ReplicaSet(Box<ReplicaSet>),
    /// An earlier template of a StatefulSet or DaemonSet, or a TrainJob's runtime.
    Revision(Box<ControllerRevision>),
    /// A claim of a StatefulSet's pod.
    Claim(Box<PersistentVolumeClaim>),
    /// Files that a job's pods mount. The status is written only once they exist.
    ConfigMap(Box<ConfigMap>),
    /// A Secret with keys for SSH.
    SshKeys(Box<SshKeys>),
    /// The identity of a pod that runs `mpirun`, or of Ray's autoscaler.
    ServiceAccount(Box<ServiceAccount>),
    /// What that identity may do.
    Role(Box<Role>),
    /// Gives that role to the identity.
    RoleBinding(Box<RoleBinding>),
}

/// A Secret that gets a new pair of keys for SSH, unless it has one.
#[derive(Clone, Debug, PartialEq)]
pub struct SshKeys {
    /// The Secret, with the data that is known.
    pub secret: Secret,
    /// The key of its data with the private key. If the data has it, no pair is made.
    pub private: &'static str,
    /// The keys of its data that get the public key, as one line of `authorized_keys`.
    pub public: &'static [&'static str],
}

/// The kinds of [`Dependent`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DependentKind {
    /// `batch/v1` Job.
    Job,
    /// `ray.io/v1` RayCluster.
    RayCluster,
    /// `jobset.x-k8s.io/v1alpha2` JobSet.
    JobSet,
    /// `apps/v1` ReplicaSet.
    ReplicaSet,
    /// `apps/v1` ControllerRevision.
    Revision,
    /// `v1` PersistentVolumeClaim.
    Claim,
    /// `v1` ConfigMap.
    ConfigMap,
    /// `v1` Secret.
    Secret,
    /// `v1` ServiceAccount.
    ServiceAccount,
    /// `rbac.authorization.k8s.io/v1` Role.
    Role,
    /// `rbac.authorization.k8s.io/v1` RoleBinding.
    RoleBinding,
    /// `v1` Pod, which is changed only: other actions create and delete pods.
    Pod,
    /// `v1` Service, which is changed only: other actions create and delete Services.
    Service,
    /// `bus.volcano.sh/v1alpha1` Command, which is deleted only.
    Command,
}

impl DependentKind {
    /// The kind in messages.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            DependentKind::Job => "job",
            DependentKind::RayCluster => "RayCluster",
            DependentKind::JobSet => "JobSet",
            DependentKind::ReplicaSet => "replica set",
            DependentKind::Revision => "controller revision",
            DependentKind::Claim => "claim",
            DependentKind::ConfigMap => "config map",
            DependentKind::Secret => "secret",
            DependentKind::ServiceAccount => "service account",
            DependentKind::Role => "role",
            DependentKind::RoleBinding => "role binding",
            DependentKind::Pod => "pod",
            DependentKind::Service => "service",
            DependentKind::Command => "command",
        }
    }
}

/// Whether an event reports normal operation or a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoteKind {
    /// Normal operation.
    Normal,
    /// A problem.
    Warning,
}

/// An event to record about the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventNote {
    /// How serious it is.
    pub kind: NoteKind,
    /// The reason in CamelCase.
    pub reason: String,
    /// A message of one sentence.
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

/// The result of one reconciliation. Annotations are to be written before the actions are taken
/// (they hold the counts that make actions happen once), the status after them.
#[derive(Clone, Debug, PartialEq)]
pub struct ReconcileOutcome<Status> {
    /// The changes to make.
    pub actions: Vec<Action>,
    /// The job's complete new status.
    pub status: Status,
    /// The job's annotations to set, or to remove if the value is `None`.
    pub annotations: BTreeMap<String, Option<String>>,
    /// When to reconcile again even if nothing changes.
    pub requeue_at: Option<Timestamp>,
    /// The events to record.
    pub events: Vec<EventNote>,
}

impl<Status> ReconcileOutcome<Status> {
    /// A result without changes, with this status.
    pub(crate) fn keep(status: Status) -> ReconcileOutcome<Status> {
        ReconcileOutcome {
            actions: Vec::new(),
            status,
            annotations: BTreeMap::new(),
            requeue_at: None,
            events: Vec::new(),
        }
    }

    /// Requests the next reconciliation at this time, unless an earlier one was requested.
    pub(crate) fn requeue(&mut self, at: Timestamp) {
        self.requeue_at = Some(self.requeue_at.map_or(at, |known| known.min(at)));
    }
}
