//! Every kind that the API serves, one registration each: names, scope, schema, defaulting, validation, printing. To
//! add a kind, write a file beside this one and name its `KIND` in [`ALL`]. Owns no state and does no I/O.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

use crate::field::FieldError;
use crate::json;

mod columns;
mod configmap;
mod cronjob;
mod endpoints;
mod endpointslice;
mod event;
mod horizontalpodautoscaler;
mod job;
mod knativeservice;
mod lease;
mod limitrange;
pub mod meta;
mod namespace;
mod node;
mod persistentvolumeclaim;
pub mod pod;
mod poddisruptionbudget;
mod podgroup;
mod priorityclass;
mod pytorchjob;
mod queue;
mod raycluster;
mod rbac;
mod resourcequota;
mod runtimeclass;
mod scaledobject;
mod secret;
mod service;
mod serviceaccount;
mod volcanojob;

/// One kind of resource.
#[derive(Clone, Copy)]
pub struct Kind {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// API version.
    pub version: &'static str,
    /// Where this is another name of a version: the one that objects are stored under.
    pub stored: Option<&'static str>,
    /// `Pod`.
    pub kind: &'static str,
    /// `pods`.
    pub plural: &'static str,
    /// `pod`.
    pub singular: &'static str,
    /// `PodList`.
    pub list_kind: &'static str,
    /// What kubectl users may type instead.
    pub short_names: &'static [&'static str],
    /// Groups of kinds that kubectl knows: `all`.
    pub categories: &'static [&'static str],
    /// Do objects live in namespaces?
    pub namespaced: bool,
    /// The definition's name in the schemas: `io.k8s.api.core.v1.Pod`.
    pub schema: &'static str,
    /// Is there a /status? Then a write to the object leaves `status` alone and the reverse.
    pub status: bool,
    /// Is there a /scale, and over which fields?
    pub scale: Option<ScalePaths>,
    /// Other subresources: `binding`, `eviction`, `log`.
    pub extra_subresources: &'static [&'static str],
    /// Built in (strategic merge patch works) or custom (it does not).
    pub strategic: bool,
    /// Does deletion wait for a grace period (pods)?
    pub graceful: bool,
    /// Does a change of spec bump `metadata.generation`?
    pub generation: bool,
    /// Fills in what was left out. Runs after name, namespace and uid are set, before validation; running it again
    /// changes nothing.
    pub default: fn(&mut Value),
    /// Says what is wrong with a new object, or with a change of one. Includes `metadata`.
    pub validate: fn(new: &Value, old: Option<&Value>) -> Vec<FieldError>,
    /// Says what is wrong with a write to /status.
    pub validate_status: fn(new: &Value, old: &Value) -> Vec<FieldError>,
    /// Settles what the writer may not choose, after defaulting: on create, the first `status`.
    pub prepare: fn(new: &mut Value, old: Option<&Value>),
    /// The columns of a table, the name first.
    pub columns: &'static [Column],
    /// The fields that a field selector may name beside `metadata.name` and `metadata.namespace`, and their values.
    pub fields: &'static [Field],
}

/// The fields of a /scale, as paths of member names.
#[derive(Clone, Copy, Debug)]
pub struct ScalePaths {
    /// Wanted replicas in the spec: `.spec.replicas`.
    pub spec_replicas: &'static str,
    /// Replicas in the status.
    pub status_replicas: &'static str,
    /// The selector as text in the status.
    pub label_selector: Option<&'static str>,
}

/// A field that a field selector may name, and its value in an object.
pub type Field = (&'static str, fn(&Value) -> String);

/// One column of a table.
#[derive(Clone, Copy)]
pub struct Column {
    /// The heading.
    pub name: &'static str,
    /// `string`, `integer`, `date`, ...
    pub type_: &'static str,
    /// `name` for the name; else empty.
    pub format: &'static str,
    /// What it shows.
    pub description: &'static str,
    /// 0: always; 1: with `-o wide`.
    pub priority: i32,
    /// The cell of one object.
    pub value: fn(&Value, now: Timestamp) -> Value,
}

/// Every kind, in the order of discovery.
static ALL: [Kind; 31] = [
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
    job::KIND,
    cronjob::KIND,
    horizontalpodautoscaler::KIND,
    lease::KIND,
    endpointslice::KIND,
    pytorchjob::KIND,
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
    raycluster::KIND,
    scaledobject::KIND,
    knativeservice::KIND,
];

/// The kinds that are served under a second version, too: the same objects.
static OTHER_VERSIONS: [Kind; 1] = [volcanojob::V1BETA1];

/// Every kind, once.
pub fn all() -> &'static [Kind] {
    &ALL
}

/// Every kind under every version, in the order of discovery; the version that clients are to prefer comes first, as
/// Kubernetes orders them.
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

/// The kind of an object, from its `apiVersion` and `kind`.
pub fn of(object: &Value) -> Option<&'static Kind> {
    let api_version = json::text(object, &["apiVersion"]);
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    by_kind(group, version, json::text(object, &["kind"]))
}

impl Kind {
    /// What a registration leaves out.
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
        strategic: true,
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

    /// Whether both are the same resource, under whatever version.
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

    /// What the store's keys of a namespace's objects (or, without one, of all the kind's objects) start with.
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

    /// What field selectors see of an object: the kind's own fields, its name and its namespace.
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

    /// May a field selector name this path?
    pub fn is_selectable(&self, path: &str) -> bool {
        path == "metadata.name"
            || (self.namespaced && path == "metadata.namespace")
            || self.fields.iter().any(|(known, _)| *known == path)
    }

    /// `pods` or `jobs.batch`: how errors name the resource.
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
