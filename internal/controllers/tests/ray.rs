//! The RayCluster controller against the embedded resource API, in this process: a submitted cluster becomes pods, a
//! Service and a PodGroup, its status shows their state, and a suspension deletes the pods.

#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

mod served;

use std::sync::Arc;
use std::time::Duration;

use controllers::{Config, Context};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Api, Client};
use resources::kinds::{PodGroup, RayCluster};
use serde_json::json;
use tokio::sync::watch;

use served::served;

/// Far longer than any step here takes: a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(60);
const NAMESPACE: &str = "default";

fn start(client: &Client) -> (watch::Sender<bool>, Vec<controllers::ControlLoop>) {
    let (stop, stopping) = watch::channel(false);
    let loops = controllers::jobs::spawn(&Context {
        client: client.clone(),
        config: Arc::new(Config {
            scheduler: controllers::SchedulerConfig::default(),
            node_grace: Duration::from_secs(40),
            jobs: [controllers::jobs::JobKind::RayCluster].into(),
            core_controllers: true,
            rendezvous_ports: 20_000..=20_099,
            root_ca: None,
        }),
        stop: stopping,
    });
    (stop, loops)
}

async fn until(client: &Client, what: &str, met: impl Fn(&RayCluster) -> bool) -> RayCluster {
    let api: Api<RayCluster> = Api::namespaced(client.clone(), NAMESPACE);
    let condition = |cluster: Option<&RayCluster>| cluster.is_some_and(&met);
    match tokio::time::timeout(PATIENCE, await_condition(api.clone(), "demo", condition)).await {
        Ok(found) => found.unwrap().unwrap(),
        Err(_) => panic!(
            "the cluster never was {what}: {:#?}",
            api.get("demo").await.unwrap()
        ),
    }
}

fn state(cluster: &RayCluster) -> Option<&str> {
    cluster.status.as_ref()?.state.as_deref()
}

#[tokio::test]
async fn a_cluster_becomes_pods_a_service_and_a_gang() {
    let (_data, client) = served("ray").await;
    let (_stop, _loops) = start(&client);
    let clusters: Api<RayCluster> = Api::namespaced(client.clone(), NAMESPACE);
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let template = json!({"spec": {"containers": [{"name": "ray"}]}});
    let cluster = json!({
        "apiVersion": "ray.io/v1", "kind": "RayCluster",
        "metadata": {"name": "demo", "namespace": NAMESPACE},
        "spec": {
            "headGroupSpec": {"template": template, "rayStartParams": {"num-cpus": 0}},
            "workerGroupSpecs": [{"groupName": "small", "replicas": 2, "template": template}],
        },
    });
    let cluster: RayCluster = serde_json::from_value(cluster).unwrap();
    clusters
        .create(&PostParams::default(), &cluster)
        .await
        .unwrap();
    let known = until(&client, "known", |cluster| {
        let status = cluster.status.as_ref();
        status.is_some_and(|status| status.head.is_some())
    });
    known.await;
    for name in ["demo-head", "demo-small-worker-0", "demo-small-worker-1"] {
        let exists = |pod: Option<&Pod>| pod.is_some();
        let found = await_condition(pods.clone(), name, exists);
        tokio::time::timeout(PATIENCE, found)
            .await
            .unwrap()
            .unwrap();
        let status = json!({"status": {"phase": "Running", "podIP": "10.0.0.1",
            "conditions": [{"type": "Ready", "status": "True"}]}});
        let patch = Patch::Merge(status);
        pods.patch_status(name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }
    let services: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
    assert!(services.get("demo-head-svc").await.is_ok());
    let groups: Api<PodGroup> = Api::namespaced(client.clone(), NAMESPACE);
    assert_eq!(groups.get("demo").await.unwrap().spec.min_member, Some(3));
    let ready = until(&client, "ready", |cluster| state(cluster) == Some("ready")).await;
    let status = ready.status.unwrap();
    assert_eq!(status.ready_worker_replicas, Some(2));
    assert_eq!(status.endpoints.unwrap()["gcs-server"], "14000");

    let suspend = Patch::Merge(json!({"spec": {"suspend": true}}));
    clusters
        .patch("demo", &PatchParams::default(), &suspend)
        .await
        .unwrap();
    until(&client, "suspended", |cluster| {
        state(cluster) == Some("suspended")
    })
    .await;
    assert!(
        pods.list(&ListParams::default())
            .await
            .unwrap()
            .items
            .is_empty()
    );
}
