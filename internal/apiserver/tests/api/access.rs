//! Authorisation: Muster's roles as RBAC, escalation, aggregation, impersonation, the reviews.

use axum::body::Body;
use axum::http::Request;
use resources::access::{Caller, UserRole};
use serde_json::{Value, json};

use crate::harness::{Answer, Api, PODS, config_map, pod, request, user};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1";

fn get(path: &str) -> Request<Body> {
    request("GET", path, "", Body::empty())
}

fn send(method: &str, path: &str, body: &Value) -> Request<Body> {
    let media = match method {
        "PATCH" => "application/merge-patch+json",
        _ => "application/json",
    };
    request(method, path, media, body.to_string())
}

fn post(path: &str, body: &Value) -> Request<Body> {
    send("POST", path, body)
}

fn role(name: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": name},
        "rules": [{"apiGroups": [""], "resources": resources, "verbs": verbs}],
    })
}

fn binding(name: &str, kind: &str, role: &str, user: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": [{"kind": "User", "name": user}],
    })
}

async fn namespace(api: &Api, name: &str) {
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    api.post("/api/v1/namespaces", &object).await.is(201);
}

#[tokio::test]
async fn a_member_everywhere_keeps_out_of_the_systems_namespaces() {
    let api = Api::new();
    namespace(&api, "team").await;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "user-admin"}});
    api.post("/api/v1/namespaces/muster-system/secrets", &secret)
        .await
        .is(201);
    let ann = || user("ann", UserRole::Member, None);
    let refused = [
        get("/api/v1/namespaces/muster-system/secrets/user-admin"),
        get("/api/v1/namespaces/muster-system/secrets"),
        get("/api/v1/secrets"),
        get("/api/v1/secrets?watch=1"),
        post("/api/v1/namespaces/muster-system/pods", &pod("p")),
        post("/api/v1/namespaces/kube-system/pods", &pod("p")),
        post(
            &format!("{PODS}/p/binding"),
            &json!({"target": {"name": "n"}}),
        ),
    ];
    for request in refused {
        let path = request.uri().to_string();
        let answer = api.send_as(ann(), request).await;
        assert_eq!(answer.status.as_u16(), 403, "{path} {}", answer.text);
    }
    for path in [
        "/api/v1/pods",
        "/api/v1/namespaces/muster-system/pods",
        "/api/v1/namespaces/team/secrets",
        "/api/v1/nodes",
        "/api/v1/namespaces/team",
    ] {
        api.send_as(ann(), get(path)).await.is(200);
    }
    for path in [PODS, "/api/v1/namespaces/team/pods"] {
        api.send_as(ann(), post(path, &pod("p"))).await.is(201);
    }
}

#[tokio::test]
async fn a_namespaces_bindings_are_there_with_it_and_hold_only_there() {
    let api = Api::new();
    namespace(&api, "team").await;
    let bindings = format!("{RBAC}/namespaces/team/rolebindings");
    let list = api.get(&bindings).await.is(200);
    let names: Vec<&str> = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["metadata"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["muster:lead", "muster:member", "muster:viewer"]);
    let system = format!("{RBAC}/namespaces/muster-system/rolebindings");
    assert_eq!(api.get(&system).await.is(200)["items"], json!([]));

    let bob = || user("bob", UserRole::Member, Some(&["team"]));
    let pods = "/api/v1/namespaces/team/pods";
    api.send_as(bob(), post(pods, &pod("a"))).await.is(201);
    let message = api
        .send_as(bob(), post(PODS, &pod("a")))
        .await
        .refused(403, "Forbidden");
    assert_eq!(
        message,
        "pods is forbidden: User \"bob\" cannot create resource \"pods\" in API group \"\" in the namespace \"default\""
    );
    // An administrator removes the right by deleting the binding, and the next request sees that.
    api.delete(&format!("{bindings}/muster:member"), None)
        .await
        .is(200);
    api.send_as(bob(), post(pods, &pod("b")))
        .await
        .refused(403, "Forbidden");
}

#[tokio::test]
async fn rights_follow_roles_and_bindings_at_once() {
    let api = Api::new();
    let eve = || Caller::user("eve", []);
    let maps = "/api/v1/namespaces/default/configmaps";
    api.send_as(eve(), get(maps))
        .await
        .refused(403, "Forbidden");
    let roles = format!("{RBAC}/namespaces/default/roles");
    let bindings = format!("{RBAC}/namespaces/default/rolebindings");
    api.post(&roles, &role("reader", &["configmaps"], &["list"]))
        .await
        .is(201);
    api.post(&bindings, &binding("eve", "Role", "reader", "eve"))
        .await
        .is(201);
    api.send_as(eve(), get(maps)).await.is(200);
    api.send_as(eve(), post(maps, &config_map("a")))
        .await
        .refused(403, "Forbidden");
    let more =
        json!({"rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]}]});
    api.merge(&format!("{roles}/reader"), &more).await.is(200);
    api.send_as(eve(), post(maps, &config_map("a")))
        .await
        .is(201);
    api.send_as(eve(), get(maps))
        .await
        .refused(403, "Forbidden");
    api.delete(&format!("{bindings}/eve"), None).await.is(200);
    api.send_as(eve(), post(maps, &config_map("b")))
        .await
        .refused(403, "Forbidden");
}

#[tokio::test]
async fn a_caller_cannot_grant_more_than_its_own_rights() {
    let api = Api::new();
    namespace(&api, "team").await;
    let lead = || user("lea", UserRole::Lead, Some(&["team"]));
    let roles = format!("{RBAC}/namespaces/team/roles");
    let bindings = format!("{RBAC}/namespaces/team/rolebindings");
    let made = role("runner", &["pods"], &["create", "get"]);
    api.send_as(lead(), post(&roles, &made)).await.is(201);
    api.send_as(
        lead(),
        post(&bindings, &binding("bob", "Role", "runner", "bob")),
    )
    .await
    .is(201);

    let limits = role("limits", &["resourcequotas"], &["update"]);
    let message = api
        .send_as(lead(), post(&roles, &limits))
        .await
        .refused(403, "Forbidden");
    assert_eq!(
        message,
        "roles.rbac.authorization.k8s.io \"limits\" is forbidden: user \"lea\" (groups=[\"muster:users\" \"muster:lead:team\" \"system:authenticated\"]) is attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"resourcequotas\"], Verbs:[\"update\"]}"
    );
    let grown = json!({"rules": limits["rules"]});
    api.send_as(lead(), send("PATCH", &format!("{roles}/runner"), &grown))
        .await
        .refused(403, "Forbidden");
    let all = binding("all", "ClusterRole", "cluster-admin", "lea");
    api.send_as(lead(), post(&bindings, &all))
        .await
        .refused(403, "Forbidden");
    let elsewhere = format!("{RBAC}/namespaces/default/rolebindings");
    api.send_as(lead(), post(&elsewhere, &binding("b", "Role", "r", "lea")))
        .await
        .refused(403, "Forbidden");
    let missing = binding("none", "ClusterRole", "none", "lea");
    api.send_as(lead(), post(&bindings, &missing))
        .await
        .refused(404, "NotFound");

    // The verbs `bind` and `escalate` permit it.
    let mut may = role("may", &["clusterroles"], &["bind"]);
    may["rules"][0]["apiGroups"] = json!(["rbac.authorization.k8s.io"]);
    may["rules"][0]["resourceNames"] = json!(["cluster-admin"]);
    api.post(&roles, &may).await.is(201);
    api.post(&bindings, &binding("may", "Role", "may", "lea"))
        .await
        .is(201);
    api.send_as(lead(), post(&bindings, &all)).await.is(201);
    // Now the lead has every right in the namespace, and still none elsewhere.
    api.send_as(lead(), post(&roles, &limits)).await.is(201);
    api.send_as(lead(), get("/api/v1/namespaces/default/pods"))
        .await
        .refused(403, "Forbidden");
}

#[tokio::test]
async fn rules_too_many_to_compare_are_refused_and_not_compared() {
    let api = Api::new();
    namespace(&api, "team").await;
    let names: Vec<String> = (0..2000).map(|i| i.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let huge = role("huge", &names, &names);
    let roles = format!("{RBAC}/namespaces/team/roles");
    let lead = user("lea", UserRole::Lead, Some(&["team"]));
    let message = api
        .send_as(lead, post(&roles, &huge))
        .await
        .refused(403, "Forbidden");
    assert!(message.contains("more than 10000 verbs"), "{message}");
}

#[tokio::test]
async fn aggregated_roles_follow_their_parts() {
    let api = Api::new();
    let roles = format!("{RBAC}/clusterroles");
    let secrets = json!({"apiGroups": ["x.io"], "resources": ["things"], "verbs": ["get"]});
    let mut part = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "things", "labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
        "rules": [secrets],
    });
    let has = async |name: &str| {
        let role = api.get(&format!("{roles}/{name}")).await.is(200);
        role["rules"].as_array().unwrap().contains(&secrets)
    };
    assert!(!has("view").await);
    api.post(&roles, &part).await.is(201);
    // An aggregated role passes its rules on.
    assert!(has("view").await && has("edit").await && has("admin").await);
    let own = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "own"},
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"own": "yes"}}]},
        "rules": [{"apiGroups": ["stays"], "resources": ["not"], "verbs": ["get"]}],
    });
    assert_eq!(api.post(&roles, &own).await.is(201)["rules"], json!([]));
    part["metadata"]["labels"] = json!({"own": "yes"});
    api.put(&format!("{roles}/things"), &part).await.is(200);
    assert!(!has("view").await && !has("admin").await && has("own").await);
    api.delete(&format!("{roles}/things"), None).await.is(200);
    assert!(!has("own").await);
}

#[tokio::test]
async fn an_aggregation_rule_requires_unlimited_rights() {
    let api = Api::new();
    let roles = format!("{RBAC}/clusterroles");
    let mut editor = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "editor"},
        "rules": [{"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"], "verbs": ["*"]}],
    });
    // Every verb except the one that disables the check.
    editor["rules"][0]["verbs"] = json!(["create", "update", "get"]);
    api.post(&roles, &editor).await.is(201);
    let bound = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "editor"},
        "roleRef": {"kind": "ClusterRole", "name": "editor"}, "subjects": [{"kind": "User", "name": "ed"}],
    });
    api.post(&format!("{RBAC}/clusterrolebindings"), &bound)
        .await
        .is(201);
    let ed = || Caller::user("ed", []);
    let wide = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "wide"},
        "aggregationRule": {"clusterRoleSelectors": [{}]},
    });
    let message = api
        .send_as(ed(), post(&roles, &wide))
        .await
        .refused(403, "Forbidden");
    assert!(
        message.ends_with("must have cluster-admin privileges to use the aggregationRule"),
        "{message}"
    );
    editor["metadata"]["name"] = "same".into();
    api.send_as(ed(), post(&roles, &editor)).await.is(201);
    api.post(&roles, &wide).await.is(201);
}

fn with_headers(mut request: Request<Body>, headers: &[(&'static str, &str)]) -> Request<Body> {
    for (name, value) in headers {
        request.headers_mut().append(*name, value.parse().unwrap());
    }
    request
}

async fn whoami(api: &Api, caller: Caller, headers: &[(&'static str, &str)]) -> Answer {
    let request = post(
        "/apis/authentication.k8s.io/v1/selfsubjectreviews",
        &json!({}),
    );
    api.send_as(caller, with_headers(request, headers)).await
}

#[tokio::test]
async fn only_an_administrator_impersonates() {
    let api = Api::new();
    let admin = || user("root", UserRole::Admin, None);
    let who = whoami(&api, admin(), &[("impersonate-user", "bob")])
        .await
        .is(201);
    assert_eq!(
        who["status"]["userInfo"],
        json!({"username": "bob", "groups": ["system:authenticated"]})
    );
    let all = [
        ("impersonate-user", "bob"),
        ("impersonate-group", "muster:users"),
        ("impersonate-group", "muster:viewer"),
        ("impersonate-uid", "u-1"),
        ("impersonate-extra-scopes", "x"),
    ];
    let who = whoami(&api, admin(), &all).await.is(201);
    assert_eq!(
        who["status"]["userInfo"],
        json!({
            "username": "bob", "groups": ["muster:users", "muster:viewer", "system:authenticated"],
            "uid": "u-1", "extra": {"scopes": ["x"]},
        })
    );
    // The rights are the impersonated user's, not the administrator's.
    let pods = || with_headers(post(PODS, &pod("p")), &all);
    let message = api.send_as(admin(), pods()).await.refused(403, "Forbidden");
    assert!(message.contains("User \"bob\" cannot create"), "{message}");

    let member = || user("ann", UserRole::Member, None);
    let message = whoami(&api, member(), &[("impersonate-user", "bob")])
        .await
        .refused(403, "Forbidden");
    assert_eq!(
        message,
        "users \"bob\" is forbidden: User \"ann\" cannot impersonate resource \"users\" in API group \"\" at the cluster scope"
    );
    for headers in [
        vec![("impersonate-group", "system:masters")],
        vec![("impersonate-user", "")],
        vec![("impersonate-user", "bob"), ("impersonate-whatever", "x")],
    ] {
        whoami(&api, admin(), &headers)
            .await
            .refused(400, "BadRequest");
    }
    let own = [
        ("impersonate-user", "bob"),
        ("impersonate-group", "system:muster"),
    ];
    whoami(&api, admin(), &own).await.refused(403, "Forbidden");
}

#[tokio::test]
async fn each_part_of_an_impersonation_needs_its_own_right() {
    let api = Api::new();
    let rules = json!([
        {"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"], "resourceNames": ["bob"]},
        {"apiGroups": [""], "resources": ["serviceaccounts"], "verbs": ["impersonate"]},
        {"apiGroups": ["authentication.k8s.io"], "resources": ["userextras/scopes"], "verbs": ["impersonate"]},
    ]);
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "as-bob"},
        "rules": rules,
    });
    api.post(&format!("{RBAC}/clusterroles"), &role)
        .await
        .is(201);
    let bound = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "as-bob"},
        "roleRef": {"kind": "ClusterRole", "name": "as-bob"}, "subjects": [{"kind": "User", "name": "ann"}],
    });
    api.post(&format!("{RBAC}/clusterrolebindings"), &bound)
        .await
        .is(201);
    let bob = ("impersonate-user", "bob");
    let table = [
        (vec![bob], 201),
        (vec![bob, ("impersonate-extra-scopes", "x")], 201),
        (
            vec![("impersonate-user", "system:serviceaccount:default:builder")],
            201,
        ),
        (vec![("impersonate-user", "carol")], 403),
        (vec![bob, ("impersonate-group", "system:masters")], 403),
        (vec![bob, ("impersonate-uid", "u-1")], 403),
        (vec![bob, ("impersonate-extra-other", "x")], 403),
    ];
    for (headers, code) in table {
        let answer = whoami(&api, Caller::user("ann", []), &headers).await;
        assert_eq!(answer.status.as_u16(), code, "{headers:?} {}", answer.text);
    }
}

#[tokio::test]
async fn impersonation_headers_are_never_ignored() {
    let api = Api::new();
    let headers = [("impersonate-user", "bob")];
    // Without the impersonation layer: the harness's own access.
    for path in [PODS, "/apis"] {
        api.send(with_headers(get(path), &headers))
            .await
            .refused(403, "Forbidden");
    }
    let anonymous = with_headers(get("/version"), &headers);
    let caller = Caller::anonymous();
    api.send_as(caller, anonymous)
        .await
        .refused(403, "Forbidden");
}

#[tokio::test]
async fn one_may_ask_what_another_may() {
    let api = Api::new();
    let review = |user: &str, groups: &[&str], verb: &str| {
        json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {
                "user": user, "groups": groups,
                "resourceAttributes": {"verb": verb, "resource": "pods", "namespace": "default"},
            },
        })
    };
    let path = format!("{REVIEWS}/subjectaccessreviews");
    let ask = async |body: Value| api.post(&path, &body).await.is(201)["status"]["allowed"].clone();
    assert_eq!(ask(review("eve", &["muster:viewer"], "list")).await, true);
    assert_eq!(
        ask(review("eve", &["muster:viewer"], "create")).await,
        false
    );
    assert_eq!(ask(review("eve", &[], "list")).await, false);
    let paths = json!({"spec": {
        "groups": ["system:unauthenticated"], "nonResourceAttributes": {"verb": "get", "path": "/healthz"},
    }});
    assert_eq!(ask(paths).await, true);
    api.post(&path, &json!({"spec": {}}))
        .await
        .refused(400, "BadRequest");

    // A lead may create reviews in its namespace only, a member none.
    let local = "/apis/authorization.k8s.io/v1/namespaces/default/localsubjectaccessreviews";
    let body = review("eve", &["muster:member"], "create");
    let lead = || user("lea", UserRole::Lead, Some(&["default"]));
    let answer = api.send_as(lead(), post(local, &body)).await.is(201);
    assert_eq!(answer["status"]["allowed"], true);
    api.send_as(lead(), post(&path, &body))
        .await
        .refused(403, "Forbidden");
    let mut other = body.clone();
    other["spec"]["resourceAttributes"]["namespace"] = "kube-system".into();
    api.send_as(lead(), post(local, &other))
        .await
        .refused(400, "BadRequest");
    let member = user("ann", UserRole::Member, None);
    api.send_as(member, post(local, &body))
        .await
        .refused(403, "Forbidden");
}

#[tokio::test]
async fn the_rules_of_a_caller_are_listed() {
    let api = Api::new();
    let path = format!("{REVIEWS}/selfsubjectrulesreviews");
    let ask = |namespace: &str| post(&path, &json!({"spec": {"namespace": namespace}}));
    let bob = || user("bob", UserRole::Member, Some(&["default"]));
    let creates = |status: &Value| {
        status["resourceRules"]
            .as_array()
            .unwrap()
            .iter()
            .any(|rule| {
                rule["resources"]
                    .as_array()
                    .unwrap()
                    .contains(&json!("pods"))
                    && rule["verbs"].as_array().unwrap().contains(&json!("create"))
            })
    };
    let here = api.send_as(bob(), ask("default")).await.is(201);
    assert!(creates(&here["status"]), "{here}");
    assert_eq!(here["status"]["incomplete"], false);
    let there = api.send_as(bob(), ask("kube-system")).await.is(201);
    assert!(!creates(&there["status"]), "{there}");
    let paths = here["status"]["nonResourceRules"].to_string();
    assert!(paths.contains("/apis/*"), "{paths}");
    let root = api.send(ask("default")).await.is(201);
    assert_eq!(
        root["status"]["resourceRules"][0],
        json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]})
    );
    let node = api
        .send_as(Caller::node("n1"), ask("default"))
        .await
        .is(201);
    assert_eq!(node["status"]["incomplete"], true);
}

#[tokio::test]
async fn paths_that_are_no_resources_need_a_right_too() {
    let api = Api::new();
    let eve = || Caller::user("eve", []);
    for path in ["/api", "/apis", "/apis/batch/v1", "/version", "/openapi/v3"] {
        assert_eq!(
            api.send_as(eve(), get(path)).await.status.as_u16(),
            200,
            "{path}"
        );
    }
    let nobody = || Caller {
        user: "nobody".into(),
        ..Caller::default()
    };
    let message = api
        .send_as(nobody(), get("/apis"))
        .await
        .refused(403, "Forbidden");
    assert_eq!(
        message,
        "forbidden: User \"nobody\" cannot get path \"/apis\""
    );
    let binding = format!("{RBAC}/clusterrolebindings/system:public-info-viewer");
    api.send_unknown(get("/healthz")).await;
    api.delete(&binding, None).await.is(200);
    let refused = api.send_unknown(get("/healthz")).await;
    assert_eq!(refused.status.as_u16(), 401);
}

#[tokio::test]
async fn a_nodes_agent_goes_by_the_rules_of_nodes() {
    let api = Api::new();
    let node = || Caller::node("n1");
    api.send_as(node(), get("/api/v1/services")).await.is(200);
    api.send_as(node(), get("/apis")).await.is(200);
    api.send_as(node(), post(PODS, &pod("p")))
        .await
        .refused(403, "Forbidden");
    // The user name alone does not make a caller a node.
    let named = Caller::user("system:node:n1", []);
    api.send_as(named, get("/api/v1/services"))
        .await
        .refused(403, "Forbidden");
}

#[tokio::test]
async fn who_may_only_patch_makes_nothing_by_applying() {
    let api = Api::new();
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "patches"},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "patch"]}],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "patches"},
        "roleRef": {"kind": "Role", "name": "patches"}, "subjects": [{"kind": "User", "name": "ann"}],
    });
    let here = format!("{RBAC}/namespaces/default");
    api.post(&format!("{here}/roles"), &role).await.is(201);
    api.post(&format!("{here}/rolebindings"), &binding)
        .await
        .is(201);
    let apply = async |name: &str, value: &str| {
        let path = format!("/api/v1/namespaces/default/configmaps/{name}?fieldManager=t");
        let text = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": value}});
        let media = "application/apply-patch+yaml";
        let asked = request("PATCH", &path, media, text.to_string());
        api.send_as(Caller::user("ann", []), asked).await
    };
    let message = apply("new", "1").await.refused(403, "Forbidden");
    assert!(
        message.contains("cannot create resource \"configmaps\""),
        "{message}"
    );
    let made = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "there"}});
    api.post("/api/v1/namespaces/default/configmaps", &made)
        .await
        .is(201);
    let changed = apply("there", "2").await.is(200);
    assert_eq!(changed["data"]["a"], "2");
}

#[tokio::test]
async fn the_binder_of_a_pod_does_not_choose_its_user() {
    let api = Api::new();
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "binds"},
        "rules": [{"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]}],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "binds"},
        "roleRef": {"kind": "Role", "name": "binds"}, "subjects": [{"kind": "User", "name": "ann"}],
    });
    let here = format!("{RBAC}/namespaces/default");
    api.post(&format!("{here}/roles"), &role).await.is(201);
    api.post(&format!("{here}/rolebindings"), &binding)
        .await
        .is(201);
    api.post(PODS, &pod("a")).await.is(201);
    let bind = async |annotations: Value| {
        let target = json!({"metadata": {"name": "a", "annotations": annotations}, "target": {"kind": "Node", "name": "n1"}});
        let asked = send("POST", &format!("{PODS}/a/binding"), &target);
        api.send_as(Caller::user("ann", []), asked).await
    };
    let message = bind(json!({"muster.io/user": "bob"}))
        .await
        .refused(403, "Forbidden");
    assert!(message.contains("muster.io/user"), "{message}");
    bind(json!({"x": "y"})).await.is(201);
}
