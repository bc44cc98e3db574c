//! The core controllers against the embedded resource API, in this process.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod served;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use controllers::{Config, Context};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    ConfigMap, Endpoints, Event, Namespace, Node, PersistentVolumeClaim, Pod, Service,
    ServiceAccount,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, PropagationPolicy};
use kube::runtime::wait::await_condition;
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;

use served::served;

/// Far longer than any step here takes: a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(60);
const NS: &str = "default";

struct Cluster {
    client: Client,
    _stop: watch::Sender<bool>,
    _data: tempfile::TempDir,
}

impl Cluster {
    async fn start(node_grace: Duration) -> Cluster {
        let (data, client) = served("core_controllers").await;
        let (stop, stopping) = watch::channel(false);
        controllers::core_controllers::spawn(&Context {
            client: client.clone(),
            config: Arc::new(Config {
                scheduler: controllers::SchedulerConfig::default(),
                node_grace,
                jobs: controllers::jobs::JobKind::ALL.into(),
                core_controllers: true,
                rendezvous_ports: 20_000..=20_099,
                root_ca: None,
            }),
            stop: stopping,
        });
        Cluster {
            client,
            _stop: stop,
            _data: data,
        }
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), NS)
    }

    fn all<K: Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }
}

async fn create<K>(api: &Api<K>, object: Value) -> K
where
    K: Resource + Clone + DeserializeOwned + Serialize + Debug,
{
    let object: K = serde_json::from_value(object).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap()
}

async fn patch<K>(api: &Api<K>, name: &str, change: Value)
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let change = Patch::Merge(change);
    let params = PatchParams::default();
    api.patch(name, &params, &change).await.unwrap();
}

async fn patch_status<K>(api: &Api<K>, name: &str, status: Value)
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let change = Patch::Merge(json!({ "status": status }));
    let params = PatchParams::default();
    api.patch_status(name, &params, &change).await.unwrap();
}

async fn until<K>(api: &Api<K>, name: &str, met: impl Fn(Option<&K>) -> bool) -> Option<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let condition = |object: Option<&K>| met(object);
    match tokio::time::timeout(PATIENCE, await_condition(api.clone(), name, condition)).await {
        Ok(found) => found.unwrap(),
        Err(_) => panic!("{name} stayed {:#?}", api.get_opt(name).await),
    }
}

async fn until_gone<K>(api: &Api<K>, name: &str)
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    until(api, name, |object| object.is_none()).await;
}

async fn delete<K>(api: &Api<K>, name: &str, how: PropagationPolicy)
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let params = DeleteParams {
        propagation_policy: Some(how),
        ..DeleteParams::default()
    };
    api.delete(name, &params).await.unwrap();
}

/// An owner with two dependents, one of which has a dependent of its own.
async fn family(api: &Api<ConfigMap>) {
    let owned = |name: &str, owner: &ConfigMap| {
        json!({ "metadata": { "name": name, "ownerReferences": [{
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": owner.name_any(),
            "uid": owner.uid(),
            "blockOwnerDeletion": true,
        }]}})
    };
    let owner = create(api, json!({ "metadata": { "name": "owner" } })).await;
    let child = create(api, owned("child", &owner)).await;
    create(api, owned("sibling", &owner)).await;
    create(api, owned("grandchild", &child)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dependents_go_after_their_owner_in_the_background() {
    let cluster = Cluster::start(Duration::from_secs(40)).await;
    let api = cluster.api::<ConfigMap>();
    family(&api).await;
    delete(&api, "owner", PropagationPolicy::Background).await;
    for name in ["owner", "child", "sibling", "grandchild"] {
        until_gone(&api, name).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_goes_after_its_dependents_in_the_foreground() {
    let cluster = Cluster::start(Duration::from_secs(40)).await;
    let api = cluster.api::<ConfigMap>();
    family(&api).await;
    let held = json!({ "metadata": { "finalizers": ["example.com/held"] } });
    patch(&api, "grandchild", held).await;
    delete(&api, "owner", PropagationPolicy::Foreground).await;
    until_gone(&api, "sibling").await;
    until(&api, "grandchild", |object| {
        object.is_some_and(|o| o.metadata.deletion_timestamp.is_some())
    })
    .await;
    // The object with a finalizer keeps its owners from being deleted.
    for name in ["owner", "child"] {
        let object = api.get(name).await.unwrap();
        assert!(object.metadata.deletion_timestamp.is_some(), "{name}");
    }
    let let_go = json!({ "metadata": { "finalizers": null } });
    patch(&api, "grandchild", let_go).await;
    for name in ["grandchild", "child", "owner"] {
        until_gone(&api, name).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orphans_stay_without_their_owner() {
    let cluster = Cluster::start(Duration::from_secs(40)).await;
    let api = cluster.api::<ConfigMap>();
    family(&api).await;
    delete(&api, "owner", PropagationPolicy::Orphan).await;
    until_gone(&api, "owner").await;
    for name in ["child", "sibling"] {
        let object = api.get(name).await.unwrap();
        assert_eq!(object.owner_references(), [], "{name}");
    }
    assert_eq!(
        api.get("grandchild")
            .await
            .unwrap()
            .owner_references()
            .len(),
        1
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dependent_of_an_owner_that_never_was_is_collected() {
    let cluster = Cluster::start(Duration::from_secs(40)).await;
    let api = cluster.api::<ConfigMap>();
    let stray = json!({ "metadata": { "name": "stray", "ownerReferences": [{
        "apiVersion": "v1", "kind": "ConfigMap", "name": "nobody", "uid": "no-such-uid",
    }]}});
    create(&api, stray).await;
    until_gone(&api, "stray").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_gets_its_service_account_and_goes_with_all_that_is_in_it() {
    let cluster = Cluster::start(Duration::from_secs(40)).await;
    let namespaces = cluster.all::<Namespace>();
    create(&namespaces, json!({ "metadata": { "name": "team" } })).await;
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client.clone(), "team");
    until(&accounts, "default", |account| account.is_some()).await;
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), "team");
    for n in 0..20 {
        create(&maps, json!({ "metadata": { "name": format!("m{n}") } })).await;
    }
    let held = json!({ "metadata": { "name": "held", "finalizers": ["example.com/held"] } });
    create(&maps, held).await;
    delete(&namespaces, "team", PropagationPolicy::Background).await;
    until_gone(&maps, "m0").await;
    until(&maps, "held", |map| {
        map.is_some_and(|m| m.metadata.deletion_timestamp.is_some())
    })
    .await;
    assert!(namespaces.get("team").await.is_ok());
    let let_go = json!({ "metadata": { "finalizers": null } });
    patch(&maps, "held", let_go).await;
    until_gone(&namespaces, "team").await;
    assert!(
        maps.list(&ListParams::default())
            .await
            .unwrap()
            .items
            .is_empty()
    );
}

fn process_pod(name: &str, node: Option<&str>) -> Value {
    json!({
        "metadata": { "name": name, "labels": { "app": "x" } },
        "spec": {
            "nodeName": node,
            "hostname": name,
            "subdomain": "svc",
            "containers": [{ "name": "main", "image": "example.com/x" }],
        },
    })
}

fn running(ip: &str, ready: bool) -> Value {
    let ready = if ready { "True" } else { "False" };
    json!({
        "phase": "Running",
        "podIP": ip,
        "conditions": [{ "type": "Ready", "status": ready }],
    })
}

fn ready_ips(endpoints: &Endpoints) -> Vec<String> {
    let subsets = endpoints.subsets.iter().flatten();
    let addresses = subsets.flat_map(|subset| subset.addresses.iter().flatten());
    addresses.map(|address| address.ip.clone()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_headless_service_has_its_ready_pods_addresses() {
    let cluster = Cluster::start(Duration::from_secs(40)).await;
    let (services, pods) = (cluster.api::<Service>(), cluster.api::<Pod>());
    let service = json!({
        "metadata": { "name": "svc" },
        "spec": { "clusterIP": "None", "selector": { "app": "x" } },
    });
    create(&services, service).await;
    for (name, ip) in [("a", "10.0.0.1"), ("b", "10.0.0.2")] {
        create(&pods, process_pod(name, None)).await;
        patch_status(&pods, name, running(ip, true)).await;
    }
    let api = cluster.api::<Endpoints>();
    let has = |wanted: &'static [&str]| {
        move |endpoints: Option<&Endpoints>| endpoints.is_some_and(|e| ready_ips(e) == wanted)
    };
    until(&api, "svc", has(&["10.0.0.1", "10.0.0.2"])).await;
    patch_status(&pods, "a", running("10.0.0.1", false)).await;
    until(&api, "svc", has(&["10.0.0.2"])).await;
    patch_status(&pods, "a", running("10.0.0.3", true)).await;
    until(&api, "svc", has(&["10.0.0.2", "10.0.0.3"])).await;
    let slices = cluster.api::<EndpointSlice>();
    let slice = until(&slices, "svc-muster-0", |slice| {
        slice.is_some_and(|s| {
            let mut names = s.endpoints.iter().map(|e| e.hostname.as_deref());
            names.next() == Some(Some("b")) && names.next() == Some(Some("a"))
        })
    });
    let slice = slice.await.unwrap();
    assert_eq!(slice.labels()["kubernetes.io/service-name"], "svc");
    // The loop reverts another client's change.
    patch(&api, "svc", json!({ "subsets": null })).await;
    until(&api, "svc", has(&["10.0.0.2", "10.0.0.3"])).await;
    delete(&services, "svc", PropagationPolicy::Background).await;
    until_gone(&api, "svc").await;
    until_gone(&slices, "svc-muster-0").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_is_bound_to_the_volume_named_after_it_and_to_no_other() {
    let cluster = Cluster::start(Duration::from_secs(40)).await;
    let api = cluster.api::<PersistentVolumeClaim>();
    let claim = |name: &str, volume: Option<&str>| {
        json!({
            "metadata": { "name": name },
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": { "requests": { "storage": "2Gi" } },
                "volumeName": volume,
            },
        })
    };
    create(&api, claim("thief", Some("muster-other-data"))).await;
    create(&api, claim("data", None)).await;
    let phase = |claim: &PersistentVolumeClaim| {
        let status = claim.status.clone().unwrap_or_default();
        status.phase.unwrap_or_default()
    };
    let bound = until(&api, "data", |c| c.is_some_and(|c| phase(c) == "Bound"));
    let bound = bound.await.unwrap();
    let volume = bound.spec.unwrap().volume_name;
    assert_eq!(volume.as_deref(), Some("muster-default-data"));
    let status = bound.status.unwrap();
    assert_eq!(status.capacity.unwrap()["storage"].0, "2Gi");
    assert_eq!(status.access_modes.unwrap(), ["ReadWriteOnce"]);
    until_event(&cluster, "thief", "FailedBinding").await;
    assert_eq!(phase(&api.get("thief").await.unwrap()), "Pending");
}

/// Waits until an event with this reason is recorded about an object.
async fn until_event(cluster: &Cluster, about: &str, reason: &str) {
    use futures::StreamExt as _;
    use kube::runtime::{WatchStreamExt as _, watcher};
    let api = cluster.all::<Event>();
    let events = watcher(api, watcher::Config::default()).applied_objects();
    let mut found = events
        .filter(|event| {
            let event = event.as_ref().unwrap();
            let met = event.reason.as_deref() == Some(reason)
                && event.involved_object.name.as_deref() == Some(about);
            std::future::ready(met)
        })
        .boxed();
    tokio::time::timeout(PATIENCE, found.next())
        .await
        .expect("the event comes");
}

/// Renews a node's lease for ever, as its agent does.
async fn beat(leases: &Api<Lease>, name: &str) {
    let mut beat = tokio::time::interval(Duration::from_millis(200));
    loop {
        beat.tick().await;
        let now = format!("{:.6}", Timestamp::now());
        patch(leases, name, json!({ "spec": { "renewTime": now } })).await;
    }
}

fn taints(node: &Node) -> Vec<(String, String)> {
    let taints = node
        .spec
        .iter()
        .flat_map(|spec| spec.taints.iter().flatten());
    taints.map(|t| (t.key.clone(), t.effect.clone())).collect()
}

fn ready_of(node: &Node) -> String {
    let conditions = node
        .status
        .iter()
        .flat_map(|s| s.conditions.iter().flatten());
    let mut ready = conditions.filter(|c| c.type_ == "Ready");
    ready.next().map(|c| c.status.clone()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_nodes_pods_are_lost_and_it_may_return() {
    let cluster = Cluster::start(Duration::from_secs(3)).await;
    let (nodes, pods) = (cluster.all::<Node>(), cluster.api::<Pod>());
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), "kube-node-lease");
    let ready = json!({ "conditions": [{ "type": "Ready", "status": "True" }] });
    create(&nodes, json!({ "metadata": { "name": "n1" } })).await;
    patch_status(&nodes, "n1", ready).await;
    create(
        &leases,
        json!({ "metadata": { "name": "n1" }, "spec": { "holderIdentity": "n1" } }),
    )
    .await;
    let beating = tokio::spawn({
        let leases = leases.clone();
        async move { beat(&leases, "n1").await }
    });
    for name in ["runs", "ended"] {
        create(&pods, process_pod(name, Some("n1"))).await;
        patch_status(&pods, name, running("10.0.0.1", true)).await;
    }
    patch_status(&pods, "ended", json!({ "phase": "Succeeded" })).await;
    beating.abort();
    let lost = until(&pods, "runs", |pod| {
        pod.and_then(|p| p.status.as_ref())
            .is_some_and(|s| s.reason.as_deref() == Some("NodeLost"))
    });
    let status = lost.await.unwrap().status.unwrap();
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    assert!(status.message.unwrap().contains("n1"));
    let ended = pods.get("ended").await.unwrap().status.unwrap();
    assert_eq!(ended.phase.as_deref(), Some("Succeeded"));
    let node = until(&nodes, "n1", |n| {
        n.is_some_and(|n| ready_of(n) == "Unknown")
    });
    let unreachable = "node.kubernetes.io/unreachable".to_owned();
    assert_eq!(
        taints(&node.await.unwrap()),
        [
            (unreachable.clone(), "NoSchedule".to_owned()),
            (unreachable, "NoExecute".to_owned())
        ]
    );
    until_event(&cluster, "n1", "NodeNotReady").await;
    until_event(&cluster, "runs", "NodeLost").await;
    // The node gives signs of life until the taints are gone.
    let back = until(&nodes, "n1", |n| n.is_some_and(|n| taints(n).is_empty()));
    tokio::select! {
        _ = back => {}
        () = beat(&leases, "n1") => {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_has_a_taint_while_its_disk_is_too_full() {
    let cluster = Cluster::start(Duration::from_secs(600)).await;
    let nodes = cluster.all::<Node>();
    let own = json!([{ "key": "team", "value": "a", "effect": "NoSchedule" }]);
    let node = json!({ "metadata": { "name": "n1" }, "spec": { "taints": own } });
    create(&nodes, node).await;
    let disk =
        |status: &str| json!({ "conditions": [{ "type": "DiskPressure", "status": status }] });
    let own = ("team".to_owned(), "NoSchedule".to_owned());
    let full = (
        "node.kubernetes.io/disk-pressure".to_owned(),
        "NoSchedule".to_owned(),
    );
    for (status, expected) in [("True", vec![own.clone(), full]), ("False", vec![own])] {
        patch_status(&nodes, "n1", disk(status)).await;
        until(&nodes, "n1", |n| n.is_some_and(|n| taints(n) == expected)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_of_a_deleted_node_are_deleted() {
    let cluster = Cluster::start(Duration::from_secs(40)).await;
    let (nodes, pods) = (cluster.all::<Node>(), cluster.api::<Pod>());
    for name in ["stays", "goes"] {
        create(&nodes, json!({ "metadata": { "name": name } })).await;
        create(&pods, process_pod(name, Some(name))).await;
        patch_status(&pods, name, running("10.0.0.1", true)).await;
    }
    delete(&nodes, "goes", PropagationPolicy::Background).await;
    until_gone(&pods, "goes").await;
    let stays = pods.get("stays").await.unwrap().status.unwrap();
    assert_eq!(stays.phase.as_deref(), Some("Running"));
}
