//! The scheduler's loop against the embedded resource API, in this process, where answers get lost:
//! a request may have succeeded, and the watch that would show it is interrupted, too.
#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

mod served;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use controllers::{Config, Context, scheduling};
use http::{Method, Request, Response};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::runtime::wait::await_condition;
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::watch;

use served::served;

/// Far longer than any step here takes: a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(60);
const NAMESPACE: &str = "default";

/// Passes requests on. While it is bad, it drops the answers to one pod's bindings, refuses to
/// return that pod, and reports no changes of pods.
#[derive(Clone, Default)]
struct Line {
    bad: Arc<AtomicBool>,
    asked_after: Arc<AtomicUsize>,
}

impl Line {
    fn around(&self, client: Client) -> Client {
        let line = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (client, line) = (client.clone(), line.clone());
            async move {
                let bad = line.bad.load(Ordering::SeqCst);
                let path = request.uri().path().to_owned();
                let query = request.uri().query().unwrap_or_default().to_owned();
                let asked_after = request.method() == Method::GET && path.ends_with("/pods/first");
                let watched = path.ends_with("/pods") && query.contains("watch=true");
                if bad && (asked_after || watched) {
                    line.asked_after
                        .fetch_add(usize::from(asked_after), Ordering::SeqCst);
                    return Ok(lost());
                }
                let answer = client.send(request).await;
                match bad && path.ends_with("/pods/first/binding") {
                    true => answer.map(|_| lost()),
                    false => answer,
                }
            }
        });
        Client::new(service, NAMESPACE)
    }
}

fn lost() -> Response<Body> {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
        "message": "etcdserver: request timed out", "reason": "InternalError", "code": 500});
    let body = Body::from(status.to_string().into_bytes());
    Response::builder().status(500).body(body).unwrap()
}

fn read<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> T {
    serde_json::from_value(value).unwrap()
}

async fn with_one_gpu(client: &Client) {
    let nodes: Api<Node> = Api::all(client.clone());
    let node = read(json!({"metadata": {"name": "n1",
        "labels": {"muster.io/runtime.process": "true"}}}));
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let room = json!({"cpu": "16", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "1"});
    let status = json!({"status": {"capacity": room, "allocatable": room, "conditions": [
        {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    let params = PatchParams::default();
    nodes
        .patch_status("n1", &params, &Patch::Merge(status))
        .await
        .unwrap();
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    for name in ["first", "second"] {
        let pod = read(json!({
            "metadata": {"name": name},
            "spec": {"schedulerName": "muster", "containers": [{"name": "main", "command": ["true"],
                "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
        }));
        pods.create(&PostParams::default(), &pod).await.unwrap();
    }
}

fn is_bound(pod: &Pod) -> bool {
    pod.spec
        .as_ref()
        .is_some_and(|spec| spec.node_name.is_some())
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_binding_is_unknown_no_other_pod_gets_its_devices() {
    let (_data, client) = served("controllers").await;
    with_one_gpu(&client).await;
    let line = Line::default();
    line.bad.store(true, Ordering::SeqCst);
    let (stop, stopping) = watch::channel(false);
    let (_board, loops) = scheduling::spawn(&Context {
        client: line.around(client.clone()),
        config: Arc::new(Config {
            scheduler: controllers::SchedulerConfig::default(),
            node_grace: Duration::from_secs(40),
            jobs: controllers::jobs::JobKind::ALL.into(),
            core_controllers: false,
            rendezvous_ports: 20_000..=20_099,
            root_ca: None,
        }),
        stop: stopping,
    });
    let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
    let asked = async {
        while line.asked_after.load(Ordering::SeqCst) < 8 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let asked = tokio::time::timeout(PATIENCE, asked).await;
    let other = pods.get("second").await.unwrap();
    assert!(
        !is_bound(&other),
        "the first one may have the only GPU, and has"
    );
    asked.expect("it is asked how the first pod stands until that is known");
    line.bad.store(false, Ordering::SeqCst);
    // The pod was bound, and once the loop knows that, the pod's end frees its resources.
    assert!(is_bound(&pods.get("first").await.unwrap()));
    let at_once = DeleteParams::default().grace_period(0);
    pods.delete("first", &at_once).await.unwrap();
    let bound = await_condition(pods, "second", |pod: Option<&Pod>| {
        pod.is_some_and(is_bound)
    });
    tokio::time::timeout(PATIENCE, bound)
        .await
        .unwrap()
        .unwrap();
    stop.send(true).unwrap();
    for controllers::ControlLoop { task, .. } in loops {
        tokio::time::timeout(PATIENCE, task).await.unwrap().unwrap();
    }
}
