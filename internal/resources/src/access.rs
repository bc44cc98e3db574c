//! Who may do what: roles and the rules they stand for. Decides from the caller and the request's attributes alone;
//! who the caller is (tokens, certificates, sessions) is found out elsewhere.

use serde::{Deserialize, Serialize};

use crate::names;
use crate::registry;

/// What a caller is to the platform.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Everything.
    Admin,
    /// Runs a team: everything in its namespaces, reads what the cluster shares.
    Lead,
    /// Runs work in its namespaces, reads what the cluster shares.
    Member,
    /// Reads, except Secrets.
    Viewer,
    /// A node's agent, `system:node:NAME`.
    Node,
    /// A part of Muster itself.
    Component,
}

/// Who makes a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The user's name.
    pub user: String,
    /// Groups, for the audit log and for `kubectl auth whoami`.
    pub groups: Vec<String>,
    /// What the caller may do.
    pub role: Role,
    /// Where; none means everywhere.
    pub namespaces: Option<Vec<String>>,
}

impl Caller {
    /// A part of Muster itself.
    pub fn component(name: &str) -> Self {
        Self {
            user: format!("system:muster:{name}"),
            groups: vec![
                "system:authenticated".to_owned(),
                "system:muster".to_owned(),
            ],
            role: Role::Component,
            namespaces: None,
        }
    }

    /// A node's agent.
    pub fn node(name: &str) -> Self {
        Self {
            user: format!("{}{name}", names::NODE_USER_PREFIX),
            groups: vec![
                names::NODES_GROUP.to_owned(),
                "system:authenticated".to_owned(),
            ],
            role: Role::Node,
            namespaces: None,
        }
    }

    /// May the caller act in this namespace at all?
    pub fn reaches(&self, namespace: &str) -> bool {
        self.namespaces
            .as_ref()
            .is_none_or(|all| all.iter().any(|one| one == namespace))
    }

    /// The node that the caller is the agent of.
    pub fn node_name(&self) -> Option<&str> {
        (self.role == Role::Node)
            .then(|| self.user.strip_prefix(names::NODE_USER_PREFIX))
            .flatten()
    }
}

/// What a request is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes<'a> {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: &'a str,
    /// API group; empty for the core group.
    pub group: &'a str,
    /// The plural.
    pub resource: &'a str,
    /// `status`, `scale`, `log`, ...; none for the object itself.
    pub subresource: Option<&'a str>,
    /// The namespace; none for cluster-scoped objects and for requests over all namespaces.
    pub namespace: Option<&'a str>,
    /// The object's name, where the request names one.
    pub name: Option<&'a str>,
}

/// Writes of these belong to Muster itself (and administrators): who could write them could place work where the
/// scheduler would not, or lift their own limits.
const RESERVED: [(&str, &str); 3] = [
    ("", "resourcequotas"),
    ("", "limitranges"),
    ("coordination.k8s.io", "leases"),
];
/// What a member makes and changes.
const MEMBERS_OWN: [(&str, &str); 15] = [
    ("", "pods"),
    ("", "configmaps"),
    ("", "secrets"),
    ("", "persistentvolumeclaims"),
    ("", "services"),
    ("", "events"),
    ("autoscaling", "horizontalpodautoscalers"),
    ("batch", "cronjobs"),
    ("batch", "jobs"),
    ("batch.volcano.sh", "jobs"),
    ("keda.sh", "scaledobjects"),
    ("kubeflow.org", "pytorchjobs"),
    ("ray.io", "rayclusters"),
    ("scheduling.volcano.sh", "podgroups"),
    ("serving.knative.dev", "services"),
];

/// May this caller do this?
pub fn permits(caller: &Caller, request: &Attributes<'_>) -> bool {
    match caller.role {
        Role::Admin | Role::Component => true,
        Role::Node => node_may(caller, request),
        Role::Lead | Role::Member | Role::Viewer => person_may(caller, request),
    }
}

fn reads(verb: &str) -> bool {
    matches!(verb, "get" | "list" | "watch")
}

fn person_may(caller: &Caller, request: &Attributes<'_>) -> bool {
    // Anybody may ask what they may do.
    if request.group == "authorization.k8s.io" || request.group == "authentication.k8s.io" {
        return request.verb == "create";
    }
    let secret = request.group.is_empty() && request.resource == "secrets";
    if secret && request.namespace == Some(names::SYSTEM_NAMESPACE) {
        return false;
    }
    let namespaced = registry::all()
        .iter()
        .find(|k| k.group == request.group && k.plural == request.resource)
        .is_none_or(|k| k.namespaced);
    if !namespaced {
        return reads(request.verb);
    }
    let reached = match request.namespace {
        Some(namespace) => caller.reaches(namespace),
        // Over all namespaces: Secrets would include the system's own.
        None => caller.namespaces.is_none() && !secret,
    };
    if !reached {
        return false;
    }
    if reads(request.verb) {
        return !(secret && caller.role == Role::Viewer);
    }
    let system_write = matches!(request.subresource, Some("binding" | "status"));
    let kind = (request.group, request.resource);
    match caller.role {
        Role::Lead => !system_write && !RESERVED.contains(&kind),
        Role::Member => !system_write && MEMBERS_OWN.contains(&kind),
        _ => false,
    }
}

fn node_may(caller: &Caller, request: &Attributes<'_>) -> bool {
    let Some(node) = caller.node_name() else {
        return false;
    };
    let own = request.name == Some(node);
    let reads = reads(request.verb);
    let changes = matches!(request.verb, "update" | "patch");
    match (request.group, request.resource, request.subresource) {
        ("authorization.k8s.io" | "authentication.k8s.io", _, _) => request.verb == "create",
        ("", "nodes", None) => reads || request.verb == "create" || (changes && own),
        ("", "nodes", Some("status")) => (reads || changes) && own,
        ("", "pods", None) => reads || request.verb == "delete",
        ("", "pods", Some("status")) => reads || changes,
        ("", "pods", Some("eviction")) => request.verb == "create",
        ("", "events", None) => matches!(request.verb, "create" | "patch" | "update"),
        ("", "secrets", None) => {
            request.verb == "get"
                && request
                    .namespace
                    .is_some_and(|n| n != names::SYSTEM_NAMESPACE)
        }
        (
            "",
            "configmaps" | "services" | "endpoints" | "persistentvolumeclaims" | "namespaces",
            None,
        )
        | ("discovery.k8s.io", "endpointslices", None)
        | ("node.k8s.io", "runtimeclasses", None) => reads,
        ("coordination.k8s.io", "leases", None) => {
            request.namespace == Some(names::NODE_LEASES)
                && (request.verb == "create"
                    || (own && matches!(request.verb, "get" | "update" | "patch" | "delete")))
        }
        _ => false,
    }
}

#[cfg(test)]
#[path = "access_tests.rs"]
mod tests;
