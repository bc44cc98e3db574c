//! Pod security from clients' view: refusals, warnings, audit annotations, and a pod's recorded
//! level.

use apiserver::{ApiConfig, AuditAnnotations};
use axum::Extension;
use axum::body::Body;
use axum::http::Response;
use resources::access::Caller;
use resources::admission::pod_security::{Exemptions, PodSecurity};
use serde_json::{Value, json};
use store::Options;
use tower::ServiceExt;

use crate::harness::{Api, JOBS, PODS, admin, pod, pytorch_job, request};

const LEVEL: &str = "muster.io/pod-security-level";
const ENFORCE: &str = "pod-security.kubernetes.io/enforce";
const NAMESPACE: &str = "/api/v1/namespaces/default";

/// A pod that sees all of its node's processes.
fn prying(name: &str) -> Value {
    let mut pod = pod(name);
    pod["spec"]["hostPID"] = true.into();
    pod
}

fn labelled(labels: Value) -> Value {
    json!({"metadata": {"labels": labels}})
}

fn level(pod: &Value) -> &Value {
    &pod["metadata"]["annotations"][LEVEL]
}

#[tokio::test]
async fn a_pod_is_refused_by_its_namespaces_level_in_kube_apiservers_words() {
    let api = Api::new();
    let mut object = prying("a");
    object["spec"]["containers"][0]["securityContext"] = json!({"privileged": true});
    let message = api.post(PODS, &object).await.refused(403, "Forbidden");
    assert_eq!(
        message,
        "pods \"a\" is forbidden: violates PodSecurity \"baseline:latest\": host namespaces (hostPID=true), privileged (container \"main\" must not set securityContext.privileged=true)"
    );
    let dry = format!("{PODS}?dryRun=All");
    api.post(&dry, &object).await.refused(403, "Forbidden");
    let applied = format!("{PODS}/a?fieldManager=test");
    api.apply(&applied, &object).await.refused(403, "Forbidden");

    let labels = json!({
        ENFORCE: "privileged", "pod-security.kubernetes.io/warn": "baseline",
    });
    api.merge(NAMESPACE, &labelled(labels)).await.is(200);
    let answer = api.post(PODS, &object).await;
    assert_eq!(
        answer.warnings(),
        [
            "299 - \"would violate PodSecurity \\\"baseline:latest\\\": host namespaces (hostPID=true), privileged (container \\\"main\\\" must not set securityContext.privileged=true)\""
        ]
    );
    assert_eq!(level(&answer.is(201)), "privileged");

    let labels = json!({ENFORCE: "restricted", "pod-security.kubernetes.io/warn": null});
    api.merge(NAMESPACE, &labelled(labels)).await.is(200);
    let message = api.post(PODS, &pod("b")).await.refused(403, "Forbidden");
    assert!(
        message.starts_with(
            "pods \"b\" is forbidden: violates PodSecurity \"restricted:latest\": allowPrivilegeEscalation != false ("
        ),
        "{message}"
    );
}

#[tokio::test]
async fn a_jobs_template_is_warned_of_and_never_refused() {
    let api = Api::new();
    let mut job = pytorch_job("j", 2);
    assert!(api.post(JOBS, &job).await.warnings().is_empty());
    let replicas = &mut job["spec"]["pytorchReplicaSpecs"];
    for part in ["Master", "Worker"] {
        replicas[part]["template"]["spec"]["hostPID"] = true.into();
    }
    job["metadata"]["name"] = "k".into();
    let answer = api.post(JOBS, &job).await;
    let warning = "299 - \"would violate PodSecurity \\\"baseline:latest\\\": host namespaces (hostPID=true)\"";
    assert_eq!(answer.warnings(), [warning]);
    answer.is(201);
    let change = json!({"metadata": {"labels": {"a": "b"}}});
    let answer = api.merge(&format!("{JOBS}/k"), &change).await;
    assert_eq!(answer.warnings(), [warning]);
    answer.is(200);
    // All pods of this engine share their node's network, so hostNetwork is allowed without a warning.
    let mut networked = pytorch_job("n", 1);
    networked["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["hostNetwork"] =
        true.into();
    let answer = api.post(JOBS, &networked).await;
    assert!(answer.warnings().is_empty());
    answer.is(201);
    let mut networked = pod("n");
    networked["spec"]["hostNetwork"] = true.into();
    networked["spec"]["containers"][0]["ports"] = json!([{"containerPort": 8080}]);
    let answer = api.post(PODS, &networked).await;
    assert!(answer.warnings().is_empty());
    answer.is(201);
}

#[tokio::test]
async fn only_admission_writes_a_pods_level() {
    let api = Api::new();
    let mut object = pod("a");
    object["metadata"]["annotations"] = json!({LEVEL: "privileged", "mine": "x"});
    let made = api.post(PODS, &object).await.is(201);
    assert_eq!(level(&made), "baseline");
    assert_eq!(made["metadata"]["annotations"]["mine"], "x");
    let path = format!("{PODS}/a");
    let claim = json!({"metadata": {"annotations": {LEVEL: "privileged"}}});
    let removal = json!({"metadata": {"annotations": {LEVEL: null}}});
    for change in [&claim, &removal] {
        for path in [path.clone(), format!("{path}/status")] {
            let kept = api.merge(&path, change).await.is(200);
            assert_eq!(level(&kept), "baseline", "{path} {change}");
        }
    }
    let mut put = api.get(&path).await.is(200);
    put["metadata"]["annotations"] = json!({"mine": "y"});
    let kept = api.put(&path, &put).await.is(200);
    assert_eq!(
        kept["metadata"]["annotations"],
        json!({LEVEL: "baseline", "mine": "y", "muster.io/user": "root"})
    );
    let mut applied = pod("a");
    applied["metadata"]["annotations"] = json!({LEVEL: "privileged"});
    let forced = format!("{path}?fieldManager=test&force=true");
    let kept = api.apply(&forced, &applied).await.is(200);
    assert_eq!(level(&kept), "baseline");
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": "a", "annotations": {LEVEL: "privileged", "muster.io/devices": "{}"}},
        "target": {"kind": "Node", "name": "n"},
    });
    let bind = request(
        "POST",
        &format!("{path}/binding"),
        "application/json",
        binding.to_string(),
    );
    let scheduler = Caller::component("scheduler");
    api.send_as(scheduler, bind).await.is(201);
    let bound = api.get(&path).await.is(200);
    assert_eq!(level(&bound), "baseline");
    assert_eq!(bound["metadata"]["annotations"]["muster.io/devices"], "{}");

    // A pod created by apply has its namespace's level too.
    let path = format!("{PODS}/b?fieldManager=test");
    let mut applied = pod("b");
    applied["metadata"]["annotations"] = json!({LEVEL: "privileged"});
    let made = api.apply(&path, &applied).await.is(201);
    assert_eq!(level(&made), "baseline");
}

#[tokio::test]
async fn a_namespaces_labels_are_checked_and_stricter_ones_tell_which_pods_violate_them() {
    let api = Api::new();
    let wrong = labelled(json!({ENFORCE: "basline"}));
    let message = api.merge(NAMESPACE, &wrong).await.refused(422, "Invalid");
    let text = "metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: \"basline\": must be one of privileged, baseline, restricted";
    assert_eq!(message, format!("Namespace \"default\" is invalid: {text}"));
    let mut new = wrong.clone();
    new["metadata"]["name"] = "team".into();
    let message = api
        .post("/api/v1/namespaces", &new)
        .await
        .refused(422, "Invalid");
    assert!(message.ends_with(text), "{message}");

    let free = labelled(json!({ENFORCE: "privileged"}));
    let answer = api.merge(NAMESPACE, &free).await;
    assert!(answer.warnings().is_empty());
    answer.is(200);
    for name in ["a", "b"] {
        api.post(PODS, &prying(name)).await.is(201);
    }
    api.post(PODS, &pod("c")).await.is(201);
    let held = labelled(json!({ENFORCE: "baseline"}));
    let answer = api.merge(NAMESPACE, &held).await;
    assert_eq!(
        answer.warnings(),
        [
            "299 - \"existing pods in namespace \\\"default\\\" violate the new PodSecurity enforce level \\\"baseline:latest\\\"\"",
            "299 - \"a (and 1 other pod): host namespaces\"",
        ]
    );
    answer.is(200);
    // They continue to run and may be labelled; a new image is checked.
    let path = format!("{PODS}/a");
    let label = labelled(json!({"x": "y"}));
    let kept = api.merge(&path, &label).await.is(200);
    assert_eq!(level(&kept), "privileged");
    let image = json!({"spec": {"containers": [
        {"name": "main", "command": ["true"], "image": "other", "imagePullPolicy": "Always",
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
            "resources": {}},
    ]}});
    let message = api.merge(&path, &image).await.refused(403, "Forbidden");
    assert_eq!(
        message,
        "pods \"a\" is forbidden: violates PodSecurity \"baseline:latest\": host namespaces (hostPID=true)"
    );
}

#[tokio::test]
async fn what_is_exempt_is_admitted_as_privileged() {
    let config = ApiConfig {
        pod_security: PodSecurity {
            exemptions: Exemptions {
                usernames: vec!["root".to_owned()],
                ..Exemptions::default()
            },
            ..PodSecurity::default()
        },
        ..ApiConfig::default()
    };
    let api = Api::with(Options::default(), config);
    let made = api.post(PODS, &prying("a")).await.is(201);
    assert_eq!(level(&made), "privileged");
    // Controllers create pods on behalf of users, so they are not exempt, not even in Muster's own namespace.
    let pods = "/api/v1/namespaces/muster-system/pods";
    let sent = request("POST", pods, "application/json", prying("b").to_string());
    api.send_as(Caller::component("controllers"), sent)
        .await
        .refused(403, "Forbidden");
}

#[tokio::test]
async fn the_audit_log_contains_levels_and_violations() {
    let api = Api::new();
    let sent = async |path: &str, object: &Value| -> Response<Body> {
        let request = request("POST", path, "application/json", object.to_string());
        let router = api.server.router().layer(Extension(admin()));
        router.oneshot(request).await.unwrap()
    };
    let notes = |response: &Response<Body>| {
        let found = response.extensions().get::<AuditAnnotations>();
        found.map(|notes| json!(notes.0))
    };
    let would = "would violate PodSecurity \"baseline:latest\": host namespaces (hostPID=true)";
    let (policy, violations) = (
        "pod-security.kubernetes.io/enforce-policy",
        "pod-security.kubernetes.io/audit-violations",
    );
    let fine = sent(PODS, &pod("a")).await;
    assert_eq!(notes(&fine), Some(json!({policy: "baseline:latest"})));
    let refused = sent(PODS, &prying("b")).await;
    assert_eq!(refused.status(), 403);
    assert_eq!(
        notes(&refused),
        Some(json!({policy: "baseline:latest", violations: would}))
    );
    let mut job = pytorch_job("j", 1);
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["hostPID"] = true.into();
    let warned = sent(JOBS, &job).await;
    assert_eq!(warned.status(), 201);
    assert_eq!(notes(&warned), Some(json!({violations: would})));
    let other = sent(JOBS, &pytorch_job("k", 1)).await;
    assert_eq!(notes(&other), None);
}
