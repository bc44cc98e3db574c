//! The kinds that Muster stores but does not run yet, on one or both of its engines, and the status that their objects get, in each kind's own terms.
//! Owns the texts; a controller writes them.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::json;
use crate::registry::{self, Kind};
use crate::times::seconds;

/// The label of all CustomResourceDefinitions of Muster's, of these kinds and of those that it runs, whether `muster
/// crds`, helm or kubectl installed them. A definition with another value or without the label belongs to another
/// operator.
pub const LABEL: (&str, &str) = ("app.kubernetes.io/managed-by", "muster");
/// The reason in conditions and events.
pub const REASON: &str = "NotRunByMuster";

/// A kind that Muster does not run.
#[derive(Clone, Copy, Debug)]
pub struct InertKind {
    /// The group, the version that objects are stored under, and the plural.
    pub resource: (&'static str, &'static str, &'static str),
    /// What Muster does not do for the kind, and the alternative.
    pub message: &'static str,
    /// True if the embedded engine runs the kind, so that it is inert in a Kubernetes cluster only.
    pub embedded_runs: bool,
    form: StatusForm,
}

/// How the status of a kind reports an object's state.
#[derive(Clone, Copy, Debug)]
enum StatusForm {
    /// Volcano's `status.state`.
    State,
    /// A condition of this type with status `False`.
    Condition(&'static str),
    /// The kind has no status.
    Nothing,
}

/// All these kinds.
pub const ALL: [InertKind; 11] = [
    InertKind {
        resource: ("ray.io", "v1", "rayclusters"),
        message: "Muster keeps RayClusters and does not run them in a Kubernetes cluster yet: no head and no worker is made",
        embedded_runs: true,
        form: StatusForm::Condition("RayClusterProvisioned"),
    },
    InertKind {
        resource: ("ray.io", "v1", "rayjobs"),
        message: "Muster keeps RayJobs and does not run them in a Kubernetes cluster yet: no cluster is made and nothing is submitted",
        embedded_runs: true,
        form: StatusForm::Condition("Running"),
    },
    InertKind {
        resource: ("ray.io", "v1", "rayservices"),
        message: "Muster keeps RayServices and does not run them in a Kubernetes cluster yet: no cluster is made and no application is deployed",
        embedded_runs: true,
        form: StatusForm::Condition("Ready"),
    },
    InertKind {
        resource: ("batch.volcano.sh", "v1alpha1", "jobs"),
        message: "Muster keeps Volcano Jobs in a Kubernetes cluster and does not run them yet: no pod is made. PyTorchJobs, and pods of a PodGroup, start as gangs now",
        embedded_runs: true,
        form: StatusForm::State,
    },
    InertKind {
        resource: ("jobset.x-k8s.io", "v1alpha2", "jobsets"),
        message: "Muster keeps JobSets in a Kubernetes cluster and does not run them yet: no Job is made",
        embedded_runs: true,
        form: StatusForm::Condition("Running"),
    },
    InertKind {
        resource: ("leaderworkerset.x-k8s.io", "v1", "leaderworkersets"),
        message: "Muster keeps LeaderWorkerSets in a Kubernetes cluster and does not run them yet: no pod is made",
        embedded_runs: true,
        form: StatusForm::Condition("Available"),
    },
    InertKind {
        resource: ("trainer.kubeflow.org", "v1alpha1", "trainjobs"),
        message: "Muster keeps TrainJobs in a Kubernetes cluster and does not run them yet: no JobSet is made. PyTorchJobs run there",
        embedded_runs: true,
        form: StatusForm::Condition("Running"),
    },
    InertKind {
        resource: ("trainer.kubeflow.org", "v1alpha1", "trainingruntimes"),
        message: "Muster keeps TrainingRuntimes in a Kubernetes cluster and does not run TrainJobs there yet",
        embedded_runs: true,
        form: StatusForm::Nothing,
    },
    InertKind {
        resource: (
            "trainer.kubeflow.org",
            "v1alpha1",
            "clustertrainingruntimes",
        ),
        message: "Muster keeps ClusterTrainingRuntimes in a Kubernetes cluster and does not run TrainJobs there yet",
        embedded_runs: true,
        form: StatusForm::Nothing,
    },
    InertKind {
        resource: ("keda.sh", "v1alpha1", "scaledobjects"),
        message: "Muster keeps ScaledObjects and does not scale by them yet: the target keeps the replicas that it has",
        embedded_runs: false,
        form: StatusForm::Condition("Ready"),
    },
    InertKind {
        resource: ("serving.knative.dev", "v1", "services"),
        message: "Muster keeps Knative Services and does not serve them yet: no revision, no route and no pod is made",
        embedded_runs: false,
        form: StatusForm::Condition("Ready"),
    },
];

impl InertKind {
    /// The kind's registration.
    pub fn kind(&self) -> Option<&'static Kind> {
        let (group, version, plural) = self.resource;
        registry::find(group, version, plural)
    }

    /// The name of its CustomResourceDefinition: `rayclusters.ray.io`.
    pub fn definition(&self) -> String {
        let (group, _, plural) = self.resource;
        format!("{plural}.{group}")
    }

    /// True if a CustomResourceDefinition of this name, such as `rayclusters.ray.io`, is one of these kinds'.
    pub fn has_definition(name: &str) -> bool {
        ALL.iter().any(|kept| kept.definition() == name)
    }

    /// The status that an object should get; `None` if it has that status, and if another writer has set a status.
    pub fn status(&self, object: &Value, now: Timestamp) -> Option<Value> {
        let standing = |type_: &str| {
            json!([{
                "type": type_, "status": "False", "reason": REASON, "message": self.message,
                "lastTransitionTime": seconds(now),
            }])
        };
        match self.form {
            StatusForm::Nothing => None,
            StatusForm::State => {
                let state = json::at(object, &["status", "state"]);
                let phase = json::text(state, &["phase"]);
                (phase.is_empty() || self.is_stale(state)).then(|| {
                    json!({"state": {
                        "phase": "Pending", "reason": REASON, "message": self.message,
                        "lastTransitionTime": seconds(now),
                    }})
                })
            }
            StatusForm::Condition(type_) => self
                .may_set_status(object)
                .then(|| json!({"conditions": standing(type_)})),
        }
    }

    /// Whether its objects have a status that says that nothing runs them.
    pub fn has_status(&self) -> bool {
        !matches!(self.form, StatusForm::Nothing)
    }

    fn may_set_status(&self, object: &Value) -> bool {
        match json::items(object, &["status", "conditions"]) {
            [] => true,
            [only] => self.is_stale(only),
            _ => false,
        }
    }

    /// True if another version of Muster wrote this status.
    fn is_stale(&self, status: &Value) -> bool {
        json::text(status, &["reason"]) == REASON
            && json::text(status, &["message"]) != self.message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(plural: &str) -> &'static InertKind {
        ALL.iter().find(|kept| kept.resource.2 == plural).unwrap()
    }

    fn status_of(kept: &InertKind, object: &Value) -> Option<Value> {
        kept.status(object, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn every_kind_is_registered_and_the_custom_ones_have_a_definition_with_the_label() {
        for kept in &ALL {
            assert!(kept.kind().is_some(), "{kept:?}");
            let crds = crate::crds::all();
            let mut named = crds
                .iter()
                .filter(|crd| crd.metadata.name.as_deref() == Some(&kept.definition()));
            let crd = named.next();
            let custom = kept.kind().is_some_and(Kind::is_custom);
            assert_eq!(crd.is_some(), custom, "{kept:?}");
            if let Some(crd) = crd {
                let labels = crd.metadata.labels.as_ref().unwrap();
                assert_eq!(labels.get(LABEL.0).map(String::as_str), Some(LABEL.1));
            }
        }
    }

    #[test]
    fn every_definition_has_the_label_and_only_these_kinds_are_inert() {
        let mut inert = Vec::new();
        for crd in crate::crds::all() {
            let labels = crd.metadata.labels.unwrap();
            assert_eq!(labels.get(LABEL.0).map(String::as_str), Some(LABEL.1));
            let name = crd.metadata.name.unwrap();
            if InertKind::has_definition(&name) {
                inert.push(name);
            }
        }
        let expected = [
            "clustertrainingruntimes.trainer.kubeflow.org",
            "jobs.batch.volcano.sh",
            "jobsets.jobset.x-k8s.io",
            "leaderworkersets.leaderworkerset.x-k8s.io",
            "rayclusters.ray.io",
            "rayjobs.ray.io",
            "rayservices.ray.io",
            "scaledobjects.keda.sh",
            "services.serving.knative.dev",
            "trainingruntimes.trainer.kubeflow.org",
            "trainjobs.trainer.kubeflow.org",
        ];
        assert_eq!(inert, expected);
    }

    #[test]
    fn a_status_is_written_once_and_never_over_another_writers() {
        let clusters = of("rayclusters");
        let status = status_of(clusters, &json!({})).unwrap();
        let condition = &status["conditions"][0];
        assert_eq!(
            (
                &condition["type"],
                &condition["status"],
                &condition["reason"]
            ),
            (
                &json!("RayClusterProvisioned"),
                &json!("False"),
                &json!(REASON)
            )
        );
        assert_eq!(status_of(clusters, &json!({"status": status})), None);
        let other = json!({"status": {"conditions": [
            {"type": "HeadPodReady", "status": "True", "reason": "HeadPodRunningAndReady"}]}});
        assert_eq!(status_of(clusters, &other), None);
        let older =
            json!({"status": {"conditions": [{"reason": REASON, "message": "older words"}]}});
        assert!(status_of(clusters, &older).is_some());
    }

    #[test]
    fn a_volcano_job_stays_pending_and_says_why() {
        let jobs = of("jobs");
        let status = status_of(jobs, &json!({})).unwrap();
        assert_eq!(status["state"]["phase"], "Pending");
        assert_eq!(
            status["state"]["lastTransitionTime"],
            "1970-01-01T00:00:00Z"
        );
        assert_eq!(status_of(jobs, &json!({"status": status})), None);
        let run = json!({"status": {"state": {"phase": "Running"}}});
        assert_eq!(
            status_of(jobs, &run),
            None,
            "Volcano's own controller runs it"
        );
    }
}
