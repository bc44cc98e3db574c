//! All control loops together: a submitted job becomes a gang that is placed as a whole, and a
//! second job that does not fit waits as a whole until the first has ended.

#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

mod served;

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Api, Client};
use resources::kinds::PyTorchJob;
use serde_json::json;

use served::served;

/// Far longer than any step here takes: a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(60);

async fn add_node(client: &Client, name: &str, gpus: u32) {
    let nodes: Api<Node> = Api::all(client.clone());
    let node: Node = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"muster.io/runtime.process": "true"}},
    }))
    .unwrap();
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let room =
        json!({"cpu": "16", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": gpus.to_string()});
    let now = jiff::Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string();
    let status = json!({"status": {"capacity": room, "allocatable": room, "conditions": [{
        "type": "Ready", "status": "True", "lastHeartbeatTime": now, "lastTransitionTime": now,
    }]}});
    nodes
        .patch_status(name, &PatchParams::default(), &Patch::Merge(status))
        .await
        .unwrap();
}

async fn submit(client: &Client, name: &str, workers: u32) {
    let replica = |count: u32| {
        json!({"replicas": count, "restartPolicy": "OnFailure", "template": {"spec": {"containers": [{
            "name": "pytorch", "command": ["python3", "train.py"],
            "resources": {"limits": {"nvidia.com/gpu": 1}},
        }]}}})
    };
    let job: PyTorchJob = serde_json::from_value(json!({
        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "runPolicy": {"cleanPodPolicy": "All"},
            "pytorchReplicaSpecs": {"Master": replica(1), "Worker": replica(workers)},
        },
    }))
    .unwrap();
    let jobs: Api<PyTorchJob> = Api::namespaced(client.clone(), "default");
    jobs.create(&PostParams::default(), &job).await.unwrap();
}

fn is_bound(pod: Option<&Pod>) -> bool {
    let spec = pod.and_then(|pod| pod.spec.as_ref());
    spec.is_some_and(|spec| spec.node_name.is_some())
}

async fn until_bound(pods: &Api<Pod>, name: &str) {
    let waiting = await_condition(pods.clone(), name, is_bound);
    tokio::time::timeout(PATIENCE, waiting)
        .await
        .expect("the pod is bound")
        .unwrap();
}

#[tokio::test]
async fn a_gang_runs_whole_and_the_next_one_waits_whole() {
    let (_data, client) = served("controllers").await;
    let handle = controllers::start(
        client.clone(),
        controllers::Config {
            scheduler: controllers::SchedulerConfig::default(),
            node_grace: Duration::from_secs(300),
            jobs: controllers::jobs::JobKind::ALL.into(),
            core_controllers: true,
            rendezvous_ports: resources::names::RENDEZVOUS_PORTS,
            root_ca: None,
        },
    );
    add_node(&client, "node-a", 4).await;
    add_node(&client, "node-b", 4).await;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    submit(&client, "first", 5).await;
    let members = |job: &str| -> Vec<String> {
        let workers = (0..5).map(|index| format!("{job}-worker-{index}"));
        std::iter::once(format!("{job}-master-0"))
            .chain(workers)
            .collect()
    };
    for name in members("first") {
        until_bound(&pods, &name).await;
    }
    submit(&client, "second", 5).await;
    let explained = async {
        while handle.board.get("default", "second").is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, explained)
        .await
        .expect("the wait is explained");
    for pod in pods.list(&ListParams::default()).await.unwrap() {
        let name = pod.metadata.name.clone().unwrap();
        assert_eq!(is_bound(Some(&pod)), name.starts_with("first-"), "{name}");
    }
    // No agent runs here, so the test reports the end of the first job.
    let done = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
    for name in members("first") {
        pods.patch_status(&name, &PatchParams::default(), &done)
            .await
            .unwrap();
    }
    for name in members("second") {
        until_bound(&pods, &name).await;
    }
    handle.shutdown(PATIENCE).await;
}
