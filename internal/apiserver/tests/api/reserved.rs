//! Fields that only the system sets, its priority classes, and the permitted users of a queue.

use resources::access::{Caller, UserRole};
use serde_json::{Value, json};

use crate::harness::{Answer, Api, JOBS, PODS, admin, pod, pytorch_job, request, user};

const QUEUES: &str = "/apis/scheduling.volcano.sh/v1beta1/queues";
const GROUPS: &str = "/apis/scheduling.volcano.sh/v1beta1/namespaces/default/podgroups";
const BATCH_JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
const DEFAULT: &str = "/api/v1/namespaces/default";

fn member() -> Caller {
    user("ann", UserRole::Member, None)
}

fn scheduler() -> Caller {
    Caller::component("scheduler")
}

async fn send(api: &Api, caller: Caller, method: &str, path: &str, body: &Value) -> Answer {
    let media = match method {
        "PATCH" => "application/merge-patch+json",
        _ => "application/json",
    };
    api.send_as(caller, request(method, path, media, body.to_string()))
        .await
}

fn annotated(mut object: Value, key: &str) -> Value {
    object["metadata"]["annotations"] = json!({key: "{}"});
    object
}

fn batch_job(name: &str) -> Value {
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"template": {
        "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "x", "command": ["true"]}]}}}})
}

#[tokio::test]
async fn who_binds_pods_may_make_them_on_a_node() {
    let api = Api::new();
    let mut object = pod("a");
    object["spec"]["nodeName"] = "n1".into();
    let message = send(&api, member(), "POST", PODS, &object)
        .await
        .refused(403, "Forbidden");
    assert_eq!(
        message,
        "pods \"a\" is forbidden: spec.nodeName \"n1\": only callers that may create pods/binding choose a pod's node; \
         leave it out, and constrain the pod with spec.nodeSelector or spec.affinity.nodeAffinity"
    );
    send(&api, admin(), "POST", PODS, &object).await.is(201);
    object["metadata"]["name"] = "b".into();
    send(&api, scheduler(), "POST", PODS, &object).await.is(201);
    let mut job = pytorch_job("j", 1);
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["nodeName"] = "n1".into();
    send(&api, member(), "POST", JOBS, &job)
        .await
        .refused(403, "Forbidden");
    send(&api, admin(), "POST", JOBS, &job).await.is(201);
}

#[tokio::test]
async fn only_the_system_writes_its_notes() {
    let api = Api::new();
    let table = [
        (PODS, annotated(pod("a"), "muster.io/devices")),
        (PODS, annotated(pod("a"), "muster.io/checkpoint-by")),
        (JOBS, annotated(pytorch_job("a", 1), "muster.io/restarts")),
        (
            JOBS,
            annotated(pytorch_job("a", 1), "muster.io/rendezvous-port"),
        ),
        (BATCH_JOBS, annotated(batch_job("a"), "muster.io/attempts")),
    ];
    for (path, object) in table {
        for caller in [member(), admin()] {
            let answer = send(&api, caller, "POST", path, &object).await;
            let message = answer.refused(403, "Forbidden");
            assert!(
                message.contains("only Muster's own parts set it"),
                "{message}"
            );
        }
    }
    // Nor through a template, from which the system would create pods.
    let mut job = batch_job("a");
    job["spec"]["template"]["metadata"] = json!({"labels": {"muster.io/replaces-lost": "true"}});
    send(&api, member(), "POST", BATCH_JOBS, &job)
        .await
        .refused(403, "Forbidden");
    let mut job = pytorch_job("a", 1);
    job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["metadata"] =
        json!({"annotations": {"muster.io/devices": "{}"}});
    send(&api, member(), "POST", JOBS, &job)
        .await
        .refused(403, "Forbidden");
}

#[tokio::test]
async fn the_systems_notes_hold_against_every_way_to_write() {
    let api = Api::new();
    let noted = annotated(pod("a"), "muster.io/devices");
    send(&api, scheduler(), "POST", PODS, &noted).await.is(201);
    let path = format!("{PODS}/a");
    let patch = json!({"metadata": {"annotations": {"muster.io/devices": "mine"}}});
    for caller in [member(), admin()] {
        send(&api, caller, "PATCH", &path, &patch)
            .await
            .refused(403, "Forbidden");
    }
    api.merge(&format!("{path}/status"), &patch)
        .await
        .refused(403, "Forbidden");
    let applied = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a",
        "annotations": {"muster.io/devices": "mine"}}});
    api.apply(&format!("{path}?fieldManager=t&force=true"), &applied)
        .await
        .refused(403, "Forbidden");
    let strategic = request(
        "PATCH",
        &path,
        "application/strategic-merge-patch+json",
        patch.to_string(),
    );
    api.send(strategic).await.refused(403, "Forbidden");
    let ops = json!([{"op": "replace", "path": "/metadata/annotations/muster.io~1devices", "value": "mine"}]);
    let json_patch = request(
        "PATCH",
        &path,
        "application/json-patch+json",
        ops.to_string(),
    );
    api.send(json_patch).await.refused(403, "Forbidden");
    // A repeated manifest does not remove them, and other annotations may change.
    let mut live = api.get(&path).await.is(200);
    live["metadata"]["annotations"] = json!({"other": "x"});
    let put = send(&api, member(), "PUT", &path, &live).await.is(200);
    assert_eq!(put["metadata"]["annotations"]["muster.io/devices"], "{}");
    assert_eq!(put["metadata"]["annotations"]["other"], "x");
    let taken = json!({"metadata": {"annotations": null}});
    let kept = api.merge(&path, &taken).await.is(200);
    assert_eq!(kept["metadata"]["annotations"]["muster.io/devices"], "{}");
    let gone = send(&api, scheduler(), "PATCH", &path, &taken)
        .await
        .is(200);
    let left = &gone["metadata"]["annotations"];
    assert!(
        left["muster.io/devices"].is_null() && left["other"].is_null(),
        "{gone}"
    );
}

#[tokio::test]
async fn only_administrators_choose_the_unix_account_of_a_namespaces_pods() {
    let api = Api::new();
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "namespaces"},
        "rules": [
            {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["*"]},
            // Bob's account alone does not make the caller an administrator.
            {"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"], "resourceNames": ["bob"]},
        ],
    });
    api.post(&format!("{rbac}/clusterroles"), &role)
        .await
        .is(201);
    let bound = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "namespaces"},
        "roleRef": {"kind": "ClusterRole", "name": "namespaces"}, "subjects": [{"kind": "User", "name": "ann"}],
    });
    api.post(&format!("{rbac}/clusterrolebindings"), &bound)
        .await
        .is(201);
    let label = "muster.io/unix-account";
    let space = |labels: Value| {
        json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "research", "labels": labels}})
    };
    let all = "/api/v1/namespaces";
    let one = "/api/v1/namespaces/research";
    let wanted = space(json!({label: "svc"}));
    let message = send(&api, member(), "POST", all, &wanted)
        .await
        .refused(403, "Forbidden");
    assert!(
        message.contains("metadata.labels[muster.io/unix-account] \"svc\": only callers that may impersonate every user"),
        "{message}"
    );
    send(&api, member(), "POST", all, &space(json!({"team": "a"})))
        .await
        .is(201);
    let set = json!({"metadata": {"labels": {label: "svc"}}});
    send(&api, member(), "PATCH", one, &set)
        .await
        .refused(403, "Forbidden");
    send(&api, admin(), "PATCH", one, &set).await.is(200);
    // A caller that may write the namespace can change other labels, but can neither remove this
    // one nor change its value.
    let other = json!({"metadata": {"labels": {label: "root"}}});
    send(&api, member(), "PATCH", one, &other)
        .await
        .refused(403, "Forbidden");
    let fewer = json!({"metadata": {"labels": {label: null, "team": "b"}}});
    let kept = send(&api, member(), "PATCH", one, &fewer).await.is(200);
    assert_eq!(kept["metadata"]["labels"][label], "svc");
    assert_eq!(kept["metadata"]["labels"]["team"], "b");
    let gone = send(&api, admin(), "PATCH", one, &fewer).await.is(200);
    assert!(gone["metadata"]["labels"][label].is_null(), "{gone}");
}

#[tokio::test]
async fn a_binding_brings_devices_only_from_the_scheduler() {
    let api = Api::new();
    api.post(PODS, &pod("a")).await.is(201);
    let binding = json!({"metadata": {"name": "a", "annotations": {"muster.io/devices": "{}"}},
        "target": {"name": "n1"}});
    let path = format!("{PODS}/a/binding");
    api.post(&path, &binding).await.refused(403, "Forbidden");
    send(&api, scheduler(), "POST", &path, &binding)
        .await
        .is(201);
}

#[tokio::test]
async fn system_classes_are_for_the_systems_namespaces_and_those_that_are_labelled() {
    let api = Api::new();
    let mut object = pod("a");
    object["spec"]["priorityClassName"] = "system-node-critical".into();
    for caller in [member(), admin()] {
        let answer = send(&api, caller, "POST", PODS, &object).await;
        let message = answer.refused(403, "Forbidden");
        assert!(
            message.contains(
                "spec.priorityClassName: \"system-node-critical\" is not usable in this namespace"
            ),
            "{message}"
        );
    }
    let mut job = pytorch_job("j", 1);
    job["spec"]["runPolicy"] =
        json!({"schedulingPolicy": {"priorityClass": "system-cluster-critical"}});
    let group = json!({"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
        "metadata": {"name": "g"}, "spec": {"priorityClassName": "system-cluster-critical"}});
    for (path, object) in [(JOBS, &job), (GROUPS, &group)] {
        send(&api, member(), "POST", path, object)
            .await
            .refused(403, "Forbidden");
    }
    let system = "/api/v1/namespaces/muster-system/pods";
    send(&api, admin(), "POST", system, &object).await.is(201);
    send(&api, scheduler(), "POST", PODS, &object).await.is(201);
    object["metadata"]["name"] = "b".into();
    let labelled = json!({"metadata": {"labels": {"muster.io/critical-pods": "true"}}});
    api.merge(DEFAULT, &labelled).await.is(200);
    let made = send(&api, member(), "POST", PODS, &object).await.is(201);
    assert_eq!(made["spec"]["priority"], 2_000_001_000);
}

fn queue(name: &str, selector: Value) -> Value {
    let mut queue = json!({"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue",
        "metadata": {"name": name}, "spec": {"weight": 1}});
    if !selector.is_null() {
        queue["spec"]["namespaceSelector"] = selector;
    }
    queue
}

#[tokio::test]
async fn a_queue_says_which_namespaces_may_use_it() {
    let api = Api::new();
    let bad = json!({"matchExpressions": [{"key": "team", "operator": "Near"}]});
    api.post(QUEUES, &queue("bad", bad))
        .await
        .refused(422, "Invalid");
    let selector = json!({"matchLabels": {"team": "a"}});
    let made = api
        .post(QUEUES, &queue("closed", selector.clone()))
        .await
        .is(201);
    assert_eq!(made["spec"]["namespaceSelector"], selector);
    api.post(QUEUES, &queue("open", Value::Null)).await.is(201);
    let name = "scheduling.volcano.sh/queue-name";
    let in_pod = |object: &str, queue: &str| {
        let mut pod = pod(object);
        pod["metadata"]["annotations"] = json!({name: queue});
        pod
    };
    let in_job = |object: &str, queue: &str| {
        let mut job = pytorch_job(object, 1);
        job["spec"]["runPolicy"] = json!({"schedulingPolicy": {"queue": queue}});
        job
    };
    let in_group = |object: &str, queue: &str| {
        json!({"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
            "metadata": {"name": object}, "spec": {"queue": queue}})
    };
    let of = |object: &str, queue: &str| {
        [
            (PODS, in_pod(object, queue)),
            (JOBS, in_job(object, queue)),
            (GROUPS, in_group(object, queue)),
        ]
    };
    for (path, object) in of("a", "closed") {
        for caller in [member(), admin()] {
            let answer = send(&api, caller, "POST", path, &object).await;
            let message = answer.refused(403, "Forbidden");
            assert!(
                message.contains("\"closed\": the queue takes no work from namespace \"default\""),
                "{message}"
            );
        }
    }
    // A queue without a selector accepts workloads of every namespace; a queue that does not exist
    // is not checked.
    for queue in ["open", "none"] {
        for (path, object) in of(queue, queue) {
            send(&api, member(), "POST", path, &object).await.is(201);
        }
    }
    let moved = json!({"spec": {"queue": "closed"}});
    let path = format!("{GROUPS}/open");
    send(&api, member(), "PATCH", &path, &moved)
        .await
        .refused(403, "Forbidden");
    let labelled = json!({"metadata": {"labels": {"team": "a"}}});
    api.merge(DEFAULT, &labelled).await.is(200);
    for (path, object) in of("a", "closed") {
        send(&api, member(), "POST", path, &object).await.is(201);
    }
    // Existing objects continue after the label was removed.
    api.merge(DEFAULT, &json!({"metadata": {"labels": {"team": null}}}))
        .await
        .is(200);
    let noted = json!({"metadata": {"annotations": {"note": "x"}}});
    for (path, _) in of("a", "closed") {
        send(&api, member(), "PATCH", &format!("{path}/a"), &noted)
            .await
            .is(200);
    }
}

#[tokio::test]
async fn a_namespace_names_the_queue_of_what_names_none() {
    let api = Api::new();
    let name = "scheduling.volcano.sh/queue-name";
    let labelled = json!({"metadata": {"labels": {name: "team"}}});
    api.merge(DEFAULT, &labelled).await.is(200);
    let made = send(&api, member(), "POST", PODS, &pod("a")).await.is(201);
    assert_eq!(made["metadata"]["annotations"][name], "team");
    let made = send(&api, member(), "POST", JOBS, &pytorch_job("j", 1))
        .await
        .is(201);
    let policy = &made["spec"]["runPolicy"]["schedulingPolicy"];
    assert_eq!(policy["queue"], "team");
    let group = json!({"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
        "metadata": {"name": "g"}, "spec": {}});
    let made = send(&api, member(), "POST", GROUPS, &group).await.is(201);
    assert_eq!(made["spec"]["queue"], "team");
    // After an apply without a queue it stays there.
    let applied = send(
        &api,
        member(),
        "PATCH",
        &format!("{GROUPS}/g"),
        &json!({"spec": {"queue": null}}),
    )
    .await
    .is(200);
    assert_eq!(applied["spec"]["queue"], "team");
    let mut named = pod("b");
    named["metadata"]["annotations"] = json!({name: "default"});
    let made = send(&api, member(), "POST", PODS, &named).await.is(201);
    assert_eq!(made["metadata"]["annotations"][name], "default");
    // The default does not apply to the system's own objects.
    let made = send(&api, scheduler(), "POST", PODS, &pod("c"))
        .await
        .is(201);
    assert!(made["metadata"]["annotations"][name].is_null(), "{made}");
}

#[tokio::test]
async fn the_queue_of_what_names_none_may_be_closed_too() {
    let api = Api::new();
    let selector = json!({"spec": {"namespaceSelector": {"matchLabels": {"team": "a"}}}});
    api.merge(&format!("{QUEUES}/default"), &selector)
        .await
        .is(200);
    send(&api, member(), "POST", PODS, &pod("a"))
        .await
        .refused(403, "Forbidden");
    send(&api, member(), "POST", JOBS, &pytorch_job("j", 1))
        .await
        .refused(403, "Forbidden");
    // For a member of a gang, the gang decides.
    let mut of_gang = pod("b");
    of_gang["metadata"]["annotations"] = json!({"scheduling.k8s.io/group-name": "g"});
    send(&api, member(), "POST", PODS, &of_gang).await.is(201);
}
