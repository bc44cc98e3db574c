//! The rights of a node's certificate: its own objects, its own pods, and the objects that these
//! refer to.

use resources::access::Caller;
use serde_json::{Value, json};

use crate::harness::{Answer, Api, PODS, names, pod, request};

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const NODES: &str = "/api/v1/nodes";

async fn ask(api: &Api, node: &str, method: &str, path: &str, body: Option<&Value>) -> Answer {
    let media = match (method, body) {
        (_, None) => "",
        ("PATCH", _) => "application/merge-patch+json",
        _ => "application/json",
    };
    let text = body.map(Value::to_string).unwrap_or_default();
    api.send_as(Caller::node(node), request(method, path, media, text))
        .await
}

/// A pod on `node` that mounts the Secret and reads its variables from the ConfigMap of the same
/// name.
async fn bound(api: &Api, name: &str, node: &str, source: &str) {
    let mut object = pod(name);
    object["spec"]["nodeName"] = node.into();
    object["spec"]["volumes"] = json!([{"name": "v", "secret": {"secretName": source}}]);
    object["spec"]["containers"][0]["envFrom"] = json!([{"configMapRef": {"name": source}}]);
    api.post(PODS, &object).await.is(201);
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": source}});
    api.post(SECRETS, &secret).await.is(201);
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": source}});
    let maps = "/api/v1/namespaces/default/configmaps";
    api.post(maps, &map).await.is(201);
}

async fn two_nodes() -> Api {
    let api = Api::new();
    bound(&api, "mine", "n1", "s1").await;
    bound(&api, "theirs", "n2", "s2").await;
    api
}

#[tokio::test]
async fn a_node_reads_what_pods_bound_to_it_refer_to_for_as_long_as_they_need_it() {
    let api = two_nodes().await;
    let code = async |node: &str, path: &str| ask(&api, node, "GET", path, None).await.status;
    let (mine, theirs) = (format!("{SECRETS}/s1"), format!("{SECRETS}/s2"));
    assert_eq!(code("n1", &mine).await, 200);
    assert_eq!(code("n1", &theirs).await, 403);
    assert_eq!(code("n2", &theirs).await, 200);
    let map = |name: &str| format!("/api/v1/namespaces/default/configmaps/{name}");
    assert_eq!(code("n1", &map("s1")).await, 200);
    assert_eq!(code("n1", &map("s2")).await, 403);
    // Lists are restricted to one name.
    assert_eq!(code("n1", SECRETS).await, 403);
    let one = format!("{SECRETS}?fieldSelector=metadata.name%3Ds1");
    let list = ask(&api, "n1", "GET", &one, None).await.is(200);
    assert_eq!(names(&list), ["s1"]);
    assert_eq!(code("n1", "/api/v1/secrets").await, 403);
    // Another namespace's Secret of the same name is another Secret.
    let away = "/api/v1/namespaces/muster-system/secrets/s1";
    assert_eq!(code("n1", away).await, 403);
    // The right ends with the pod.
    let ended = json!({"status": {"phase": "Succeeded"}});
    let status = format!("{PODS}/mine/status");
    ask(&api, "n1", "PATCH", &status, Some(&ended))
        .await
        .is(200);
    assert_eq!(code("n1", &mine).await, 403);
    let gone = format!("{PODS}/theirs?gracePeriodSeconds=0");
    api.delete(&gone, None).await.is(200);
    assert_eq!(code("n2", &theirs).await, 403);
}

#[tokio::test]
async fn a_node_sees_and_changes_the_pods_bound_to_it() {
    let api = two_nodes().await;
    let (mine, theirs) = (format!("{PODS}/mine"), format!("{PODS}/theirs"));
    let code = async |method: &str, path: &str, body: Option<&Value>| {
        ask(&api, "n1", method, path, body).await.status.as_u16()
    };
    let own = "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1";
    let list = ask(&api, "n1", "GET", own, None).await.is(200);
    assert_eq!(names(&list), ["mine"]);
    let running = json!({"status": {"phase": "Running"}});
    let eviction = |name: &str| json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
    let status = |path: &str| format!("{path}/status");
    let table = [
        ("GET", "/api/v1/pods".to_owned(), None, 403),
        ("GET", PODS.to_owned(), None, 403),
        ("GET", mine.clone(), None, 200),
        ("GET", theirs.clone(), None, 403),
        ("PATCH", status(&mine), Some(running.clone()), 200),
        ("PATCH", status(&theirs), Some(running.clone()), 403),
        ("PATCH", mine.clone(), Some(running), 403),
        ("POST", PODS.to_owned(), Some(pod("new")), 403),
        (
            "POST",
            format!("{theirs}/eviction"),
            Some(eviction("theirs")),
            403,
        ),
        (
            "POST",
            format!("{mine}/eviction"),
            Some(eviction("mine")),
            201,
        ),
        ("DELETE", theirs.clone(), None, 403),
        ("DELETE", PODS.to_owned(), None, 403),
        ("DELETE", format!("{mine}?gracePeriodSeconds=0"), None, 200),
    ];
    for (method, path, body, want) in table {
        let got = code(method, &path, body.as_ref()).await;
        assert_eq!(got, want, "{method} {path}");
    }
}

#[tokio::test]
async fn a_pods_labels_and_devices_are_not_the_nodes_to_change() {
    let api = two_nodes().await;
    let path = format!("{PODS}/mine/status");
    for metadata in [
        json!({"labels": {"team": "other"}}),
        json!({"annotations": {"muster.io/devices": "{}"}}),
    ] {
        let patch = json!({"metadata": metadata, "status": {"phase": "Running"}});
        ask(&api, "n1", "PATCH", &path, Some(&patch))
            .await
            .refused(403, "Forbidden");
    }
}

#[tokio::test]
async fn a_node_writes_its_own_node_and_not_what_work_is_placed_by() {
    let api = Api::new();
    let node = |name: &str| {
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name,
            "annotations": {"muster.io/inventory": "{}"}}})
    };
    ask(&api, "n1", "POST", NODES, Some(&node("n1")))
        .await
        .is(201);
    let message = ask(&api, "n1", "POST", NODES, Some(&node("n2")))
        .await
        .refused(403, "Forbidden");
    assert!(message.contains("its own Node only"), "{message}");
    api.post(NODES, &node("n2")).await.is(201);
    let patches = [
        (json!({"metadata": {"labels": {"plain": "yes"}}}), 200),
        (
            json!({"metadata": {"labels": {"node-restriction.kubernetes.io/team": "a"}}}),
            403,
        ),
        (
            json!({"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}),
            403,
        ),
        (json!({"spec": {"unschedulable": true}}), 403),
        (
            json!({"metadata": {"annotations": {"muster.io/mig-choice": "{}"}}}),
            403,
        ),
        (
            json!({"metadata": {"annotations": {"muster.io/load": "{}"}}}),
            200,
        ),
    ];
    for (patch, want) in patches {
        for (name, want) in [("n1", want), ("n2", 403)] {
            let path = format!("{NODES}/{name}");
            let answer = ask(&api, "n1", "PATCH", &path, Some(&patch)).await;
            assert_eq!(answer.status, want, "{name} {patch}: {}", answer.text);
        }
    }
    let status = json!({"status": {"capacity": {"cpu": "8"}}});
    let path = |name: &str| format!("{NODES}/{name}/status");
    ask(&api, "n1", "PATCH", &path("n1"), Some(&status))
        .await
        .is(200);
    for (method, path, body) in [
        ("PATCH", path("n2"), Some(&status)),
        ("GET", format!("{NODES}/n2"), None),
        ("GET", NODES.to_owned(), None),
        ("DELETE", format!("{NODES}/n1"), None),
    ] {
        let answer = ask(&api, "n1", method, &path, body).await;
        assert_eq!(answer.status, 403, "{method} {path}");
    }
}

#[tokio::test]
async fn a_node_has_its_own_lease() {
    let api = Api::new();
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let lease = |name: &str| json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}});
    for (name, want) in [("n1", 201), ("n2", 403)] {
        let answer = ask(&api, "n1", "POST", leases, Some(&lease(name))).await;
        assert_eq!(answer.status, want, "{name}");
    }
    let held = json!({"spec": {"holderIdentity": "n1"}});
    for (node, want) in [("n1", 200), ("n2", 403)] {
        let path = format!("{leases}/n1");
        let answer = ask(&api, node, "PATCH", &path, Some(&held)).await;
        assert_eq!(answer.status, want, "{node}");
    }
}

#[tokio::test]
async fn a_review_covers_a_nodes_rights_from_its_pods() {
    let api = two_nodes().await;
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    for (name, want) in [("s1", true), ("s2", false)] {
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {"verb": "get", "resource": "secrets",
                "namespace": "default", "name": name}}});
        let answer = ask(&api, "n1", "POST", path, Some(&review)).await.is(201);
        assert_eq!(answer["status"]["allowed"], want, "{name}");
    }
}

#[tokio::test]
async fn a_node_gets_tokens_only_for_pods_on_it() {
    let api = Api::new();
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "builder"}});
    api.post(accounts, &account).await.is(201);
    for (name, node) in [("mine", "n1"), ("theirs", "n2")] {
        let mut object = pod(name);
        object["spec"]["nodeName"] = node.into();
        object["spec"]["serviceAccountName"] = "builder".into();
        api.post(PODS, &object).await.is(201);
    }
    let path = format!("{accounts}/builder/token");
    let token = async |spec: Value| {
        let body = json!({"spec": spec});
        ask(&api, "n1", "POST", &path, Some(&body)).await
    };
    let to =
        |name: &str| json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": name}});
    token(to("mine")).await.is(201);
    token(to("theirs")).await.refused(403, "Forbidden");
    // Without a pod it would be valid for as long as requested.
    let message = token(json!({"expirationSeconds": 1i64 << 32}))
        .await
        .refused(403, "Forbidden");
    assert!(message.contains("spec.boundObjectRef"), "{message}");
}
