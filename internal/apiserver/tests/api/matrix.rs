//! The access matrix of the resource API: every resource and subresource in discovery, every verb
//! and scope, every kind of caller. The expected results are in [`ROWS`] and [`NODE_ROWS`], which
//! are written by hand and not derived from the roles that the server writes; a route without a row
//! fails the test with its name. No request changes state, so their order does not matter.

use std::collections::BTreeSet;

use axum::body::Body;
use axum::http::Request;
use axum::{Extension, Router};
use http_body_util::BodyExt;
use resources::access::{Caller, UserRole};
use resources::registry;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::harness::{Api, CONFIG_MAPS, config_map, request, user};

/// The least privileged caller that is permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Least {
    /// Any authenticated caller.
    Authenticated,
    /// A user with a record, whatever the role and the namespaces.
    User,
    /// A user with at least this role in the object's namespace.
    Role(UserRole),
}

const ANYBODY: Least = Least::Authenticated;
const USER: Least = Least::User;
const VIEWER: Least = Least::Role(UserRole::Viewer);
const MEMBER: Least = Least::Role(UserRole::Member);
const LEAD: Least = Least::Role(UserRole::Lead);
const ADMIN: Least = Least::Role(UserRole::Admin);

/// The callers required to read, create and otherwise write a resource
/// (`plural.group/subresource`).
type Row = (&'static str, Least, Least, Least);

const ROWS: [Row; 100] = [
    ("bindings", ADMIN, ADMIN, ADMIN),
    ("configmaps", VIEWER, MEMBER, MEMBER),
    ("endpoints", VIEWER, LEAD, LEAD),
    ("events", VIEWER, MEMBER, MEMBER),
    ("limitranges", VIEWER, ADMIN, ADMIN),
    ("namespaces", USER, ADMIN, ADMIN),
    ("namespaces/finalize", ADMIN, ADMIN, ADMIN),
    ("namespaces/status", USER, ADMIN, ADMIN),
    ("nodes", USER, ADMIN, ADMIN),
    ("nodes/status", USER, ADMIN, ADMIN),
    ("persistentvolumeclaims", VIEWER, MEMBER, MEMBER),
    ("persistentvolumeclaims/status", VIEWER, ADMIN, ADMIN),
    ("pods", VIEWER, MEMBER, MEMBER),
    ("pods/attach", MEMBER, MEMBER, ADMIN),
    ("pods/binding", ADMIN, ADMIN, ADMIN),
    ("pods/eviction", ADMIN, MEMBER, ADMIN),
    // A request without a WebSocket is refused before the pod's user is compared; e2e/tests/exec.rs compares it.
    ("pods/exec", MEMBER, MEMBER, ADMIN),
    ("pods/log", VIEWER, ADMIN, ADMIN),
    ("pods/portforward", MEMBER, MEMBER, ADMIN),
    ("pods/proxy", MEMBER, MEMBER, MEMBER),
    ("pods/status", VIEWER, ADMIN, ADMIN),
    ("resourcequotas", VIEWER, ADMIN, ADMIN),
    ("resourcequotas/status", VIEWER, ADMIN, ADMIN),
    ("secrets", MEMBER, MEMBER, MEMBER),
    ("serviceaccounts", VIEWER, LEAD, LEAD),
    ("serviceaccounts/token", ADMIN, LEAD, ADMIN),
    ("services", VIEWER, MEMBER, MEMBER),
    ("services/proxy", MEMBER, MEMBER, MEMBER),
    ("services/status", VIEWER, ADMIN, ADMIN),
    ("controllerrevisions.apps", VIEWER, ADMIN, ADMIN),
    ("daemonsets.apps", VIEWER, MEMBER, MEMBER),
    ("daemonsets.apps/status", VIEWER, ADMIN, ADMIN),
    ("deployments.apps", VIEWER, MEMBER, MEMBER),
    ("deployments.apps/scale", VIEWER, MEMBER, MEMBER),
    ("deployments.apps/status", VIEWER, ADMIN, ADMIN),
    ("replicasets.apps", VIEWER, MEMBER, MEMBER),
    ("replicasets.apps/scale", VIEWER, MEMBER, MEMBER),
    ("replicasets.apps/status", VIEWER, ADMIN, ADMIN),
    ("statefulsets.apps", VIEWER, MEMBER, MEMBER),
    ("statefulsets.apps/scale", VIEWER, MEMBER, MEMBER),
    ("statefulsets.apps/status", VIEWER, ADMIN, ADMIN),
    (
        "selfsubjectreviews.authentication.k8s.io",
        ADMIN,
        ANYBODY,
        ADMIN,
    ),
    ("tokenreviews.authentication.k8s.io", ADMIN, ADMIN, ADMIN),
    (
        "localsubjectaccessreviews.authorization.k8s.io",
        ADMIN,
        LEAD,
        ADMIN,
    ),
    (
        "selfsubjectaccessreviews.authorization.k8s.io",
        ADMIN,
        ANYBODY,
        ADMIN,
    ),
    (
        "selfsubjectrulesreviews.authorization.k8s.io",
        ADMIN,
        ANYBODY,
        ADMIN,
    ),
    (
        "subjectaccessreviews.authorization.k8s.io",
        ADMIN,
        ADMIN,
        ADMIN,
    ),
    (
        "horizontalpodautoscalers.autoscaling",
        VIEWER,
        MEMBER,
        MEMBER,
    ),
    (
        "horizontalpodautoscalers.autoscaling/status",
        VIEWER,
        ADMIN,
        ADMIN,
    ),
    ("cronjobs.batch", VIEWER, MEMBER, MEMBER),
    ("cronjobs.batch/status", VIEWER, ADMIN, ADMIN),
    ("jobs.batch", VIEWER, MEMBER, MEMBER),
    ("jobs.batch/status", VIEWER, ADMIN, ADMIN),
    ("jobs.batch.volcano.sh", VIEWER, MEMBER, MEMBER),
    ("jobs.batch.volcano.sh/status", VIEWER, ADMIN, ADMIN),
    ("commands.bus.volcano.sh", VIEWER, MEMBER, MEMBER),
    ("leases.coordination.k8s.io", VIEWER, ADMIN, ADMIN),
    ("endpointslices.discovery.k8s.io", VIEWER, LEAD, LEAD),
    ("jobsets.jobset.x-k8s.io", VIEWER, MEMBER, MEMBER),
    ("jobsets.jobset.x-k8s.io/status", VIEWER, ADMIN, ADMIN),
    ("scaledobjects.keda.sh", VIEWER, MEMBER, MEMBER),
    ("scaledobjects.keda.sh/status", VIEWER, ADMIN, ADMIN),
    ("jaxjobs.kubeflow.org", VIEWER, MEMBER, MEMBER),
    ("jaxjobs.kubeflow.org/status", VIEWER, ADMIN, ADMIN),
    ("mpijobs.kubeflow.org", VIEWER, MEMBER, MEMBER),
    ("mpijobs.kubeflow.org/status", VIEWER, ADMIN, ADMIN),
    ("paddlejobs.kubeflow.org", VIEWER, MEMBER, MEMBER),
    ("paddlejobs.kubeflow.org/scale", VIEWER, MEMBER, MEMBER),
    ("paddlejobs.kubeflow.org/status", VIEWER, ADMIN, ADMIN),
    ("pytorchjobs.kubeflow.org", VIEWER, MEMBER, MEMBER),
    ("pytorchjobs.kubeflow.org/scale", VIEWER, MEMBER, MEMBER),
    ("pytorchjobs.kubeflow.org/status", VIEWER, ADMIN, ADMIN),
    ("tfjobs.kubeflow.org", VIEWER, MEMBER, MEMBER),
    ("tfjobs.kubeflow.org/status", VIEWER, ADMIN, ADMIN),
    ("xgboostjobs.kubeflow.org", VIEWER, MEMBER, MEMBER),
    ("xgboostjobs.kubeflow.org/status", VIEWER, ADMIN, ADMIN),
    ("runtimeclasses.node.k8s.io", USER, ADMIN, ADMIN),
    ("poddisruptionbudgets.policy", VIEWER, LEAD, LEAD),
    ("poddisruptionbudgets.policy/status", VIEWER, ADMIN, ADMIN),
    ("rayclusters.ray.io", VIEWER, MEMBER, MEMBER),
    ("rayclusters.ray.io/status", VIEWER, ADMIN, ADMIN),
    ("rayjobs.ray.io", VIEWER, MEMBER, MEMBER),
    ("rayjobs.ray.io/status", VIEWER, ADMIN, ADMIN),
    ("rayservices.ray.io", VIEWER, MEMBER, MEMBER),
    ("rayservices.ray.io/status", VIEWER, ADMIN, ADMIN),
    (
        "clusterrolebindings.rbac.authorization.k8s.io",
        ADMIN,
        ADMIN,
        ADMIN,
    ),
    (
        "clusterroles.rbac.authorization.k8s.io",
        ADMIN,
        ADMIN,
        ADMIN,
    ),
    ("rolebindings.rbac.authorization.k8s.io", LEAD, LEAD, LEAD),
    ("roles.rbac.authorization.k8s.io", LEAD, LEAD, LEAD),
    ("priorityclasses.scheduling.k8s.io", USER, ADMIN, ADMIN),
    ("podgroups.scheduling.volcano.sh", VIEWER, MEMBER, MEMBER),
    (
        "podgroups.scheduling.volcano.sh/status",
        VIEWER,
        ADMIN,
        ADMIN,
    ),
    ("queues.scheduling.volcano.sh", USER, ADMIN, ADMIN),
    ("queues.scheduling.volcano.sh/status", USER, ADMIN, ADMIN),
    ("services.serving.knative.dev", VIEWER, MEMBER, MEMBER),
    ("services.serving.knative.dev/status", VIEWER, ADMIN, ADMIN),
    (
        "clustertrainingruntimes.trainer.kubeflow.org",
        USER,
        ADMIN,
        ADMIN,
    ),
    (
        "trainingruntimes.trainer.kubeflow.org",
        VIEWER,
        MEMBER,
        MEMBER,
    ),
    ("trainjobs.trainer.kubeflow.org", VIEWER, MEMBER, MEMBER),
    (
        "trainjobs.trainer.kubeflow.org/status",
        VIEWER,
        ADMIN,
        ADMIN,
    ),
];

/// The scope of a node's permission.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Near {
    /// Everywhere.
    Anywhere,
    /// On objects of the node [`NODE`].
    Own,
    /// In the namespace [`TEAM`], if a pod of the node [`NODE`] refers to objects with the name
    /// [`NAME`].
    Pods,
}

const NODE_ROWS: [(&str, &[&str], Near); 15] = [
    ("configmaps", &["get"], Near::Pods),
    ("events", &["create", "update", "patch"], Near::Anywhere),
    ("nodes", &["create", "get", "update", "patch"], Near::Own),
    ("nodes/status", &["get", "update", "patch"], Near::Own),
    ("persistentvolumeclaims", &["get"], Near::Pods),
    ("pods", &["get", "delete"], Near::Pods),
    ("pods/eviction", &["create"], Near::Pods),
    ("pods/status", &["get", "update", "patch"], Near::Pods),
    ("secrets", &["get"], Near::Pods),
    ("services", &["get", "list", "watch"], Near::Anywhere),
    (
        "selfsubjectreviews.authentication.k8s.io",
        &["create"],
        Near::Anywhere,
    ),
    (
        "selfsubjectaccessreviews.authorization.k8s.io",
        &["create"],
        Near::Anywhere,
    ),
    (
        "selfsubjectrulesreviews.authorization.k8s.io",
        &["create"],
        Near::Anywhere,
    ),
    (
        "leases.coordination.k8s.io",
        &["create", "get", "update", "patch", "delete"],
        Near::Own,
    ),
    (
        "runtimeclasses.node.k8s.io",
        &["get", "list", "watch"],
        Near::Anywhere,
    ),
];

/// True if a request is refused for every role: the namespaces that every server has cannot be
/// deleted.
fn protected(resource: &str, verb: &str, namespace: Option<&str>) -> bool {
    resource == "namespaces"
        && match verb {
            "delete" => namespace == Some(SYSTEM),
            other => other == "deletecollection",
        }
}

const TEAM: &str = "a";
const OTHERS: &str = "b";
const SYSTEM: &str = "muster-system";
const LEASES: &str = "kube-node-lease";
/// The name of every requested object, except of nodes and their leases.
const NAME: &str = "mine";
const NODE: &str = "n1";

const ON_COLLECTIONS: [&str; 4] = ["list", "watch", "create", "deletecollection"];
const ON_OBJECTS: [&str; 4] = ["get", "update", "patch", "delete"];
const ON_SUBRESOURCES: [&str; 5] = ["get", "create", "update", "patch", "delete"];

/// A kind of caller, as used in the rows.
#[derive(Clone, Copy)]
enum Is {
    /// Without credentials.
    Nobody,
    /// Authenticated, without further rights.
    Stranger,
    /// A user with a role in one namespace, or everywhere.
    User(UserRole, Option<&'static str>),
    /// A node's agent.
    Node(&'static str),
}

impl Is {
    fn caller(self) -> Option<Caller> {
        match self {
            Is::Nobody => None,
            Is::Stranger => Some(Caller::user("eve", [])),
            Is::User(role, None) => Some(user("ann", role, None)),
            Is::User(role, Some(namespace)) => Some(user("bob", role, Some(&[namespace]))),
            Is::Node(name) => Some(Caller::node(name)),
        }
    }

    /// True if the rows permit it; `namespace` is the object's.
    fn may(self, resource: &str, verb: &str, namespace: Option<&str>) -> bool {
        let Some((_, read, create, write)) = ROWS.iter().find(|row| row.0 == resource) else {
            return false;
        };
        let least = match verb {
            "get" | "list" | "watch" => *read,
            "create" => *create,
            _ => *write,
        };
        if protected(resource, verb, namespace) {
            return false;
        }
        match self {
            Is::Nobody => false,
            Is::Stranger => least == Least::Authenticated,
            Is::Node(node) => NODE_ROWS.iter().any(|(of, verbs, near)| {
                *of == resource
                    && verbs.contains(&verb)
                    && match near {
                        Near::Anywhere => true,
                        Near::Own => {
                            let leases = resource.starts_with("leases.").then_some(LEASES);
                            node == NODE && namespace == leases
                        }
                        Near::Pods => node == NODE && namespace == Some(TEAM),
                    }
            }),
            Is::User(role, within) => match least {
                Least::Authenticated | Least::User => true,
                Least::Role(_) if role == UserRole::Admin => true,
                Least::Role(least) => match within {
                    Some(own) => namespace == Some(own) && role <= least,
                    // A cluster-wide role is that role in teams' namespaces, and a viewer's in all
                    // others.
                    None if matches!(namespace, Some(TEAM | OTHERS)) => role <= least,
                    None => least == UserRole::Viewer,
                },
            },
        }
    }
}

/// A caller, with a name for messages.
const CALLERS: [(&str, Is); 15] = [
    ("nobody", Is::Nobody),
    ("a user without a role", Is::Stranger),
    ("an administrator", Is::User(UserRole::Admin, None)),
    ("a lead everywhere", Is::User(UserRole::Lead, None)),
    ("a member everywhere", Is::User(UserRole::Member, None)),
    ("a viewer everywhere", Is::User(UserRole::Viewer, None)),
    ("the team's lead", Is::User(UserRole::Lead, Some(TEAM))),
    ("the team's member", Is::User(UserRole::Member, Some(TEAM))),
    ("the team's viewer", Is::User(UserRole::Viewer, Some(TEAM))),
    (
        "another team's lead",
        Is::User(UserRole::Lead, Some(OTHERS)),
    ),
    (
        "another team's member",
        Is::User(UserRole::Member, Some(OTHERS)),
    ),
    (
        "another team's viewer",
        Is::User(UserRole::Viewer, Some(OTHERS)),
    ),
    (
        "a member of nothing",
        Is::User(UserRole::Member, Some("no-such-namespace")),
    ),
    ("the pod's node", Is::Node(NODE)),
    ("another node", Is::Node("n2")),
];

/// A resource or subresource in discovery.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Route {
    /// `/api/v1` or `/apis/GROUP/VERSION`.
    base: String,
    group: String,
    plural: String,
    subresource: Option<String>,
    namespaced: bool,
    /// True if its objects are stored; other resources have only the verb `create`.
    kept: bool,
}

impl Route {
    /// The name in the rows.
    fn resource(&self) -> String {
        let mut name = self.plural.clone();
        if !self.group.is_empty() {
            name = format!("{name}.{}", self.group);
        }
        match &self.subresource {
            Some(subresource) => format!("{name}/{subresource}"),
            None => name,
        }
    }

    /// The requests for it, with their namespaces.
    fn asks(&self) -> Vec<(&'static str, Option<&'static str>)> {
        let named = match (self.namespaced, self.plural.as_str()) {
            (true, "leases") => vec![Some(TEAM), Some(OTHERS), Some(SYSTEM), Some(LEASES)],
            // A Namespace object belongs to itself.
            (true, _) | (false, "namespaces") => vec![Some(TEAM), Some(OTHERS), Some(SYSTEM)],
            (false, _) => vec![None],
        };
        let collections = match self.namespaced {
            true => [named.clone(), vec![None]].concat(),
            false => vec![None],
        };
        let verbs: &[&'static str] = match (&self.subresource, self.kept) {
            (Some(_), _) => &ON_SUBRESOURCES,
            (None, false) => &["create"],
            (None, true) => {
                let mut all = every(&ON_COLLECTIONS, &collections);
                all.extend(every(&ON_OBJECTS, &named));
                return all;
            }
        };
        every(verbs, &named)
    }

    fn object_name(&self, namespace: Option<&'static str>) -> &'static str {
        match (self.plural.as_str(), namespace) {
            ("namespaces", Some(name)) => name,
            ("nodes" | "leases", _) => NODE,
            _ => NAME,
        }
    }

    fn path(&self, namespace: Option<&'static str>, named: bool) -> String {
        let mut path = self.base.clone();
        if let Some(namespace) = namespace.filter(|_| self.namespaced) {
            path = format!("{path}/namespaces/{namespace}");
        }
        path = format!("{path}/{}", self.plural);
        if named {
            path = format!("{path}/{}", self.object_name(namespace));
        }
        if let Some(subresource) = &self.subresource {
            path = format!("{path}/{subresource}");
        }
        path
    }
}

fn every(
    verbs: &[&'static str],
    scopes: &[Option<&'static str>],
) -> Vec<(&'static str, Option<&'static str>)> {
    let mut pairs = Vec::new();
    for verb in verbs {
        for scope in scopes {
            pairs.push((*verb, *scope));
        }
    }
    pairs
}

/// The routes in the server's discovery.
async fn discovered(api: &Api) -> BTreeSet<Route> {
    let mut versions = vec!["/api/v1".to_owned()];
    let groups = api.get("/apis").await.is(200);
    for group in groups["groups"].as_array().unwrap() {
        for version in group["versions"].as_array().unwrap() {
            let version = version["groupVersion"].as_str().unwrap();
            versions.push(format!("/apis/{version}"));
        }
    }
    let mut routes = BTreeSet::new();
    for base in versions {
        let list = api.get(&base).await.is(200);
        for one in list["resources"].as_array().unwrap() {
            let name = one["name"].as_str().unwrap();
            let (plural, subresource) = match name.split_once('/') {
                Some((plural, subresource)) => (plural, Some(subresource.to_owned())),
                None => (name, None),
            };
            let named_group = base.strip_prefix("/apis/");
            let group = named_group.and_then(|rest| rest.split('/').next());
            routes.insert(Route {
                group: group.unwrap_or_default().to_owned(),
                plural: plural.to_owned(),
                subresource,
                namespaced: one["namespaced"].as_bool().unwrap(),
                kept: one["verbs"] != json!(["create"]) || name.contains('/'),
                base: base.clone(),
            });
        }
    }
    routes
}

/// The routes of the registered kinds, under every version.
fn registered() -> BTreeSet<Route> {
    let mut routes = BTreeSet::new();
    for kind in registry::served() {
        let mut subresources = vec![None];
        subresources.extend(kind.extra_subresources.iter().copied().map(Some));
        subresources.extend(kind.status.then_some(Some("status")));
        subresources.extend(kind.scale.is_some().then_some(Some("scale")));
        let is_namespace = (kind.group, kind.plural) == ("", "namespaces");
        subresources.extend(is_namespace.then_some(Some("finalize")));
        let base = match kind.group {
            "" => format!("/api/{}", kind.version),
            group => format!("/apis/{group}/{}", kind.version),
        };
        for subresource in subresources {
            routes.insert(Route {
                base: base.clone(),
                group: kind.group.to_owned(),
                plural: kind.plural.to_owned(),
                subresource: subresource.map(str::to_owned),
                namespaced: kind.namespaced,
                kept: true,
            });
        }
    }
    routes
}

/// Two teams' namespaces, and in the first one a pod on the node that refers to one object of each
/// kind.
async fn with_a_pod_on_the_node() -> Api {
    let api = Api::new();
    for name in [TEAM, OTHERS] {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        api.post("/api/v1/namespaces", &object).await.is(201);
    }
    let at = |plural: &str| format!("/api/v1/namespaces/{TEAM}/{plural}");
    let plain = |kind: &str| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": NAME}});
    for (plural, kind) in [
        ("secrets", "Secret"),
        ("configmaps", "ConfigMap"),
        ("serviceaccounts", "ServiceAccount"),
    ] {
        api.post(&at(plural), &plain(kind)).await.is(201);
    }
    let mut pod = plain("Pod");
    pod["spec"] = json!({
        "nodeName": NODE, "serviceAccountName": NAME,
        "containers": [{
            "name": "main", "command": ["true"],
            "envFrom": [{"configMapRef": {"name": NAME}}, {"secretRef": {"name": NAME}}],
        }],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": NAME}}],
    });
    api.post(&at("pods"), &pod).await.is(201);
    api
}

/// One request, to be sent by every caller.
struct Ask {
    resource: String,
    verb: &'static str,
    namespace: Option<&'static str>,
    method: &'static str,
    path: String,
    media: &'static str,
    body: String,
}

impl Ask {
    async fn of(
        api: &Api,
        route: &Route,
        verb: &'static str,
        namespace: Option<&'static str>,
    ) -> Ask {
        let named = route.subresource.is_some() || ON_OBJECTS.contains(&verb);
        let path = route.path(namespace, named);
        let object = "application/json";
        let (method, query, media) = match verb {
            "get" | "list" => ("GET", "", ""),
            "watch" => ("GET", "?watch=1", ""),
            "create" => ("POST", "?dryRun=All", object),
            "update" => ("PUT", "?dryRun=All", object),
            "patch" => ("PATCH", "?dryRun=All", "application/merge-patch+json"),
            _ => ("DELETE", "?dryRun=All", ""),
        };
        let name = match (route.plural.as_str(), verb) {
            ("namespaces", "create") => "new",
            _ => route.object_name(namespace),
        };
        let new = || {
            let mut object = json!({"metadata": {"name": name}});
            if matches!(route.resource().as_str(), "bindings" | "pods/binding") {
                object["target"] = json!({"name": NODE});
            }
            object.to_string()
        };
        let body = match verb {
            "create" if route.subresource.as_deref() == Some("token") => "{}".to_owned(),
            "create" => new(),
            // An existing object replaces itself.
            "update" => match api.get(&path).await {
                live if live.status == 200 => live.text,
                _ => new(),
            },
            "patch" => "{}".to_owned(),
            _ => String::new(),
        };
        Ask {
            resource: route.resource(),
            verb,
            namespace,
            method,
            path: format!("{path}{query}"),
            media,
            body,
        }
    }

    fn request(&self) -> Request<Body> {
        request(self.method, &self.path, self.media, self.body.clone())
    }

    /// The problem with a caller's response.
    async fn wrong(&self, who: &str, is: Is, router: &Router) -> Option<String> {
        let response = router.clone().oneshot(self.request()).await.unwrap();
        let code = response.status().as_u16();
        let (right, want) = match is {
            Is::Nobody => (code == 401, "401"),
            _ if is.may(&self.resource, self.verb, self.namespace) => {
                // No agent exists to read a log from, or to reach a program in a pod.
                let of_agent = ["pods/log", "pods/proxy", "services/proxy"];
                let no_agent = code == 503 && of_agent.contains(&self.resource.as_str());
                let carried_out = !matches!(code, 401 | 403) && code < 500;
                (carried_out || no_agent, "permitted")
            }
            _ => (code == 403, "403"),
        };
        if right {
            return None;
        }
        let text = match code {
            // A watch has no end.
            200 => String::new(),
            _ => {
                let bytes = response.into_body().collect().await.unwrap().to_bytes();
                String::from_utf8_lossy(&bytes).into_owned()
            }
        };
        let (verb, resource) = (self.verb, &self.resource);
        let place = self.namespace.unwrap_or("the cluster");
        Some(format!(
            "{who}, {verb} {resource} in {place} ({} {}): {code} in place of {want} {text}",
            self.method, self.path
        ))
    }
}

#[tokio::test]
async fn every_route_has_a_row_and_every_row_a_route() {
    let api = Api::new();
    let discovered = discovered(&api).await;
    let kept: BTreeSet<Route> = discovered
        .iter()
        .filter(|route| route.kept)
        .cloned()
        .collect();
    assert_eq!(kept, registered());
    let routes: BTreeSet<String> = discovered.iter().map(Route::resource).collect();
    let rows: BTreeSet<String> = ROWS.iter().map(|row| row.0.to_owned()).collect();
    assert_eq!(rows.len(), ROWS.len(), "a row is there twice");
    let missing: Vec<&String> = routes.difference(&rows).collect();
    assert!(
        missing.is_empty(),
        "these resources have no row: {missing:?}; say in ROWS who may read, create and write them"
    );
    let left: Vec<&String> = rows.difference(&routes).collect();
    assert!(left.is_empty(), "these rows have no resource: {left:?}");
    for (resource, verbs, _) in NODE_ROWS {
        assert!(rows.contains(resource), "{resource}");
        assert!(!verbs.is_empty(), "{resource}");
    }
}

#[tokio::test]
async fn every_caller_may_what_its_rows_say_and_nothing_else() {
    let api = with_a_pod_on_the_node().await;
    let mut callers: Vec<(&str, Is, Router)> = Vec::new();
    for (name, is) in CALLERS {
        let router = api.server.router();
        let router = match is.caller() {
            Some(caller) => router.layer(Extension(caller)),
            None => router,
        };
        callers.push((name, is, router));
    }
    let account = Caller::service_account(TEAM, NAME);
    let router = api.server.router().layer(Extension(account));
    callers.push(("a service account without bindings", Is::Stranger, router));

    let routes = discovered(&api).await;
    let (mut verbs, mut requests, mut wrong) = (BTreeSet::new(), 0_usize, Vec::new());
    // Lists show the store's newest revision.
    let revision = async || {
        let list = api.get("/api/v1/namespaces").await.is(200);
        list["metadata"]["resourceVersion"].clone()
    };
    let unchanged = revision().await;
    for route in &routes {
        for (verb, namespace) in route.asks() {
            verbs.insert(verb);
            let ask = Ask::of(&api, route, verb, namespace).await;
            for (name, is, router) in &callers {
                requests += 1;
                wrong.extend(ask.wrong(name, *is, router).await);
            }
        }
    }
    println!(
        "matrix of the resource API: {} routes, {} verbs, {} callers, {requests} requests",
        routes.len(),
        verbs.len(),
        callers.len()
    );
    assert_eq!(revision().await, unchanged, "a request changed something");
    let shown = wrong.len().min(40);
    assert!(
        wrong.is_empty(),
        "{} of {requests} answers are wrong; the first:\n{}",
        wrong.len(),
        wrong[..shown].join("\n")
    );
}

#[tokio::test]
async fn an_object_without_a_namespace_is_named_by_no_path() {
    let api = with_a_pod_on_the_node().await;
    for route in discovered(&api).await {
        if !route.namespaced || !route.kept {
            continue;
        }
        let path = route.path(None, true);
        for method in ["GET", "PUT", "PATCH", "DELETE"] {
            let ask = || request(method, &path, "", Body::empty());
            let answer = api.send(ask()).await;
            assert_eq!(answer.status, 404, "{method} {path}: {}", answer.text);
            let answer = api.send_unknown(ask()).await;
            assert_eq!(answer.status, 401, "{method} {path}: {}", answer.text);
        }
    }
}

#[tokio::test]
async fn applying_what_is_not_there_needs_the_right_to_create() {
    let api = Api::new();
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let rules =
        |verbs: &[&str]| json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": verbs}]);
    let role = json!({"metadata": {"name": "editor"}, "rules": rules(&["get", "patch"])});
    api.post(&format!("{rbac}/roles"), &role).await.is(201);
    let binding = json!({
        "metadata": {"name": "editor"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "editor"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "eve"}],
    });
    api.post(&format!("{rbac}/rolebindings"), &binding)
        .await
        .is(201);
    let apply = async |name: &str| {
        let path = format!("/api/v1/namespaces/default/configmaps/{name}?fieldManager=test");
        let media = "application/apply-patch+yaml";
        let object: Value = config_map(name);
        let request = request("PATCH", &path, media, object.to_string());
        api.send_as(Caller::user("eve", []), request).await
    };
    let message = apply("new").await.refused(403, "Forbidden");
    assert!(message.contains("cannot create resource"), "{message}");
    let there = config_map("there");
    api.post(CONFIG_MAPS, &there).await.is(201);
    apply("there").await.is(200);
    let more = json!({"rules": rules(&["get", "patch", "create"])});
    api.merge(&format!("{rbac}/roles/editor"), &more)
        .await
        .is(200);
    apply("new").await.is(201);
}
