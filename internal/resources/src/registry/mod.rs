//! All kinds of the API, with one registration each: names, scope, schema, defaulting, validation, printing. To add a
//! kind, write a file in this directory and list its `KIND` in [`ALL`]. Owns no state and does no I/O.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::Value;

use crate::field::FieldError;
use crate::json;
use crate::training::TrainingKind;

mod apps;
mod columns;
mod configmap;
mod cronjob;
mod endpoints;
mod endpointslice;
mod event;
mod hang;
mod horizontalpodautoscaler;
mod idle_gpus;
mod job;
mod jobset;
mod knativeservice;
mod leaderworkerset;
mod lease;
mod limitrange;
pub mod meta;
mod namespace;
mod networkpolicy;
mod node;
mod on_failure;
mod persistentvolumeclaim;
pub mod pod;
mod poddisruptionbudget;
mod podgroup;
mod priorityclass;
mod queue;
mod raycluster;
mod rayjob;
mod rayservice;
mod rbac;
mod resourcequota;
mod runtimeclass;
mod scaledobject;
mod secret;
mod service;
mod serviceaccount;
mod training;
mod trainingruntime;
mod trainjob;
mod volcanocommand;
mod volcanojob;

pub use columns::{Source, TableColumn};
pub use networkpolicy::warnings as network_policy_warnings;
pub use priorityclass::{HIGHEST_USER_PRIORITY, SYSTEM_CLASSES};

/// A kind of resource.
#[derive(Clone, Copy)]
pub struct Kind {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// API version.
    pub version: &'static str,
    /// For an alternative version: the version that objects are stored under.
    pub stored: Option<&'static str>,
    /// `Pod`.
    pub kind: &'static str,
    /// `pods`.
    pub plural: &'static str,
    /// `pod`.
    pub singular: &'static str,
    /// `PodList`.
    pub list_kind: &'static str,
    /// The short names that kubectl accepts.
    pub short_names: &'static [&'static str],
    /// Groups of kinds for kubectl: `all`.
    pub categories: &'static [&'static str],
    /// True if objects live in namespaces.
    pub namespaced: bool,
    /// The name of its definition in the schemas: `io.k8s.api.core.v1.Pod`.
    pub schema: &'static str,
    /// True if there is a /status. A write to the object then leaves `status` alone and the reverse.
    pub status: bool,
    /// The fields of /scale, if there is a /scale.
    pub scale: Option<ScalePaths>,
    /// Other subresources: `binding`, `eviction`, `log`.
    pub extra_subresources: &'static [&'static str],
    /// For a custom kind: the definition that its Rust type generates. [`crate::crds::of`] adds what this registration
    /// says. A kind without one is built into Kubernetes.
    pub definition: Option<fn() -> CustomResourceDefinition>,
    /// True if deletion waits for a grace period (pods).
    pub graceful: bool,
    /// True if a change of the spec increments `metadata.generation`.
    pub generation: bool,
    /// Fills in absent fields. Runs after name, namespace and uid are set and before validation; a second run changes
    /// nothing.
    pub default: fn(&mut Value),
    /// Validates a new object or an update, including `metadata`.
    pub validate: fn(new: &Value, old: Option<&Value>) -> Vec<FieldError>,
    /// Validates a write to /status.
    pub validate_status: fn(new: &Value, old: &Value) -> Vec<FieldError>,
    /// Sets the fields that the writer may not choose, after defaulting: on create, the first `status`.
    pub prepare: fn(new: &mut Value, old: Option<&Value>),
    /// The columns of a table, the name first; a custom kind's definition has them, too.
    pub columns: &'static [TableColumn],
    /// The fields that a field selector may name besides `metadata.name` and `metadata.namespace`, and their values.
    pub fields: &'static [SelectableField],
}

/// The fields of a /scale, as paths of member names.
#[derive(Clone, Copy, Debug)]
pub struct ScalePaths {
    /// The desired replicas in the spec: `.spec.replicas`.
    pub spec_replicas: &'static str,
    /// Replicas in the status.
    pub status_replicas: &'static str,
    /// The selector: text in the status, or a label selector in the spec.
    pub label_selector: Option<&'static str>,
}

/// A field that a field selector may name, and its value in an object.
pub type SelectableField = (&'static str, fn(&Value) -> String);

/// Every kind, in the order of discovery.
static ALL: [Kind; 50] = [
    configmap::KIND,
    endpoints::KIND,
    event::KIND,
    limitrange::KIND,
    namespace::KIND,
    node::KIND,
    persistentvolumeclaim::KIND,
    pod::KIND,
    resourcequota::KIND,
    secret::KIND,
    serviceaccount::KIND,
    service::KIND,
    apps::CONTROLLER_REVISION,
    apps::DAEMON_SET,
    apps::DEPLOYMENT,
    apps::REPLICA_SET,
    apps::STATEFUL_SET,
    job::KIND,
    cronjob::KIND,
    horizontalpodautoscaler::KIND,
    lease::KIND,
    endpointslice::KIND,
    training::JAX,
    training::MPI,
    training::PADDLE,
    training::PYTORCH,
    training::TF,
    training::XGBOOST,
    networkpolicy::KIND,
    runtimeclass::KIND,
    poddisruptionbudget::KIND,
    rbac::CLUSTER_ROLE_BINDING,
    rbac::CLUSTER_ROLE,
    rbac::ROLE_BINDING,
    rbac::ROLE,
    priorityclass::KIND,
    podgroup::KIND,
    queue::KIND,
    volcanojob::KIND,
    volcanocommand::KIND,
    raycluster::KIND,
    rayjob::KIND,
    rayservice::KIND,
    jobset::KIND,
    leaderworkerset::KIND,
    trainingruntime::CLUSTER,
    trainingruntime::NAMESPACED,
    trainjob::KIND,
    scaledobject::KIND,
    knativeservice::KIND,
];

/// The kinds that are also served under a second version, with the same objects.
static OTHER_VERSIONS: [Kind; 2] = [volcanojob::V1BETA1, training::MPI_V1];

/// Every kind, once.
pub fn all() -> &'static [Kind] {
    &ALL
}

/// Every kind under every version, in the order of discovery; the preferred version comes first, as in Kubernetes.
pub fn served() -> impl Iterator<Item = &'static Kind> {
    let others = |kind: &'static Kind| {
        let same = move |other: &&Kind| (other.group, other.plural) == (kind.group, kind.plural);
        OTHER_VERSIONS.iter().filter(same).chain([kind])
    };
    ALL.iter().flat_map(others)
}

/// The kind served under a group, version and plural.
pub fn find(group: &str, version: &str, plural: &str) -> Option<&'static Kind> {
    ALL.iter()
        .chain(&OTHER_VERSIONS)
        .find(|k| k.plural == plural && k.group == group && k.version == version)
}

/// The kind by its own name.
pub fn by_kind(group: &str, version: &str, kind: &str) -> Option<&'static Kind> {
    ALL.iter()
        .chain(&OTHER_VERSIONS)
        .find(|k| k.kind == kind && k.group == group && k.version == version)
}

/// The kind of an object, by its `apiVersion` and `kind`.
pub fn of(object: &Value) -> Option<&'static Kind> {
    let api_version = json::text(object, &["apiVersion"]);
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    by_kind(group, version, json::text(object, &["kind"]))
}

impl Kind {
    /// The description of a training kind; none for another kind.
    #[must_use]
    pub fn training(&self) -> Option<&'static TrainingKind> {
        crate::training::find(self.group, self.kind)
    }

    /// Whether this is Volcano's Job, whose name and plural are those of Kubernetes' Job.
    #[must_use]
    pub fn is_volcano_job(&self) -> bool {
        self.group == crate::volcano::GROUP && self.plural == "jobs"
    }

    /// Whether this is LeaderWorkerSet: each group is a gang of its own, and without groups a set has no pods, so that it
    /// needs no `suspend`.
    #[must_use]
    pub fn is_leader_worker_set(&self) -> bool {
        self.group == crate::leader_worker_set::GROUP && self.kind == crate::leader_worker_set::KIND
    }

    /// Default values for registrations.
    const BASE: Kind = Kind {
        group: "",
        version: "v1",
        stored: None,
        kind: "",
        plural: "",
        singular: "",
        list_kind: "",
        short_names: &[],
        categories: &[],
        namespaced: true,
        schema: "",
        status: false,
        scale: None,
        extra_subresources: &[],
        definition: None,
        graceful: false,
        generation: false,
        default: |_| {},
        validate: |_, _| Vec::new(),
        validate_status: |_, _| Vec::new(),
        prepare: |_, _| {},
        columns: columns::NAME_AND_AGE,
        fields: &[],
    };

    /// `v1` or `batch/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// True if it is a custom resource on a Kubernetes cluster. Such kinds take no strategic merge patch.
    pub fn is_custom(&self) -> bool {
        self.definition.is_some()
    }

    /// True if both are the same resource, under any version.
    pub fn is(&self, other: &Kind) -> bool {
        (self.group, self.plural) == (other.group, other.plural)
    }

    /// The API version that its objects are stored under.
    pub fn stored_api_version(&self) -> String {
        let stored = Kind {
            version: self.stored.unwrap_or(self.version),
            ..*self
        };
        stored.api_version()
    }

    /// The store's key of an object: `/{group or core}/{plural}/{namespace or -}/{name}`.
    pub fn key(&self, namespace: Option<&str>, name: &str) -> String {
        let mut key = self.prefix(Some(namespace.unwrap_or("-")));
        key.push_str(name);
        key
    }

    /// The prefix of the store's keys of a namespace's objects (or, without a namespace, of all objects of the kind).
    pub fn prefix(&self, namespace: Option<&str>) -> String {
        let group = if self.group.is_empty() {
            "core"
        } else {
            self.group
        };
        match namespace {
            Some(namespace) => format!("/{group}/{}/{namespace}/", self.plural),
            None => format!("/{group}/{}/", self.plural),
        }
    }

    /// The fields of an object for field selectors: the kind's own fields, its name and its namespace.
    pub fn selectable(&self, object: &Value) -> BTreeMap<String, String> {
        let mut out = BTreeMap::new();
        out.insert(
            "metadata.name".to_owned(),
            json::text(object, &["metadata", "name"]).to_owned(),
        );
        if self.namespaced {
            out.insert(
                "metadata.namespace".to_owned(),
                json::text(object, &["metadata", "namespace"]).to_owned(),
            );
        }
        for (path, value) in self.fields {
            out.insert((*path).to_owned(), value(object));
        }
        out
    }

    /// True if a field selector may name this path.
    pub fn is_selectable(&self, path: &str) -> bool {
        path == "metadata.name"
            || (self.namespaced && path == "metadata.namespace")
            || self.fields.iter().any(|(known, _)| *known == path)
    }

    /// `pods` or `jobs.batch`: the resource in error messages.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.plural.to_owned()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }
}

impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kind({} {})", self.api_version(), self.kind)
    }
}

#[cfg(test)]
mod tests;
