//! The access matrix of the resource API: every resource and subresource in discovery, every verb
//! and scope, every kind of caller. The expected results are in [`ROWS`] and [`NODE_ROWS`], which
//! are written by hand and not derived from the roles that the server writes; a route without a row
//! fails the test with its name. No request changes state, so their order does not matter.

mod callers;
mod requests;
mod routes;

use std::collections::BTreeSet;

use axum::body::Body;
use axum::{Extension, Router};
use resources::access::{Caller, UserRole};
use serde_json::{Value, json};

use self::callers::{CALLERS, Is};
use self::requests::{Ask, with_a_pod_on_the_node};
use self::routes::{Route, discovered, registered};
use crate::harness::{Api, CONFIG_MAPS, config_map, request};

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

const ROWS: [Row; 106] = [
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
    ("nodes.metrics.k8s.io", USER, ADMIN, ADMIN),
    ("pods.metrics.k8s.io", VIEWER, ADMIN, ADMIN),
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
    (
        "leaderworkersets.leaderworkerset.x-k8s.io",
        VIEWER,
        MEMBER,
        MEMBER,
    ),
    (
        "leaderworkersets.leaderworkerset.x-k8s.io/scale",
        VIEWER,
        MEMBER,
        MEMBER,
    ),
    (
        "leaderworkersets.leaderworkerset.x-k8s.io/status",
        VIEWER,
        ADMIN,
        ADMIN,
    ),
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
    ("networkpolicies.networking.k8s.io", VIEWER, MEMBER, MEMBER),
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

#[tokio::test]
async fn every_route_has_a_row_and_every_row_a_route() {
    let api = Api::new();
    let discovered = discovered(&api).await;
    let kept: BTreeSet<Route> = discovered
        .iter()
        .filter(|route| route.kept && !route.is_measured())
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
