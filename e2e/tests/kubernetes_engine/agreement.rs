//! Compares Muster with a real kube-scheduler on the same random nodes and pods: kube-scheduler's own filters must
//! accept the node to which Muster binds a pod; if kube-scheduler finds a node for a single pod, Muster must too; and
//! both must agree that there is none.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::ground::Ground;
use crate::stores::MAKER;
use crate::worlds::{World, worlds};
use e2e::{Cluster, Setup};

/// Number of worlds; MUSTER_AGREEMENT_WORLDS sets it, and MUSTER_AGREEMENT_SEED selects others.
const WORLDS: u32 = 12;
/// How long a verdict may take on a busy machine.
const VERDICT: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Each pod is submitted to both schedulers in turn under these names, with its own claims.
const COPIES: [&str; 3] = ["theirs", "ours", "pinned"];
/// The annotation with which schedulers tell provisioners the node of a claim's volume.
const SELECTED: &str = "volume.kubernetes.io/selected-node";
const SCHEDULERS: [&str; 2] = ["default-scheduler", "muster"];

/// The verdict on a pod.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    On(String),
    Nowhere(String),
}

struct Arena {
    client: Client,
    /// Number of nodes so far: a verdict on fewer nodes rests on earlier knowledge.
    nodes: usize,
}

fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

impl Arena {
    async fn new(cluster: &Cluster) -> Arena {
        let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig()).unwrap();
        let options = KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await;
        Arena {
            client: Client::try_from(config.unwrap()).unwrap(),
            nodes: 0,
        }
    }

    /// Creates the objects of the driver that publishes its capacity; drivers without capacity need none.
    async fn introduce(&self) {
        let drivers: Api<CSIDriver> = Api::all(self.client.clone());
        let maker = json!({"metadata": {"name": MAKER},
            "spec": {"attachRequired": false, "storageCapacity": true}});
        let made = drivers.create(&PostParams::default(), &read(maker)).await;
        made.unwrap();
    }

    async fn make(&mut self, namespace: &str, world: &World) {
        let params = PostParams::default();
        let all: Api<Namespace> = Api::all(self.client.clone());
        let object = json!({"metadata": {"name": namespace}});
        all.create(&params, &read(object)).await.unwrap();
        // Created first, because no verdict waits for these.
        let said: Api<CSINode> = Api::all(self.client.clone());
        for one in world.csi_nodes(namespace) {
            said.create(&params, &read(one)).await.unwrap();
        }
        let spaces: Api<CSIStorageCapacity> = Api::namespaced(self.client.clone(), namespace);
        for one in world.objects(namespace, &COPIES).spaces {
            spaces.create(&params, &read(one)).await.unwrap();
        }
        let nodes: Api<Node> = Api::all(self.client.clone());
        for node in world.nodes(namespace) {
            nodes.create(&params, &read(node)).await.unwrap();
            self.nodes += 1;
        }
        self.furnish(namespace, world).await;
    }

    /// Creates the claims of a world's pods with their volumes, and waits until both schedulers know them, so that no
    /// verdict rests on earlier knowledge.
    async fn furnish(&self, namespace: &str, world: &World) {
        let params = PostParams::default();
        let classes: Api<StorageClass> = Api::all(self.client.clone());
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let objects = world.objects(namespace, &COPIES);
        for class in objects.classes {
            classes.create(&params, &read(class)).await.unwrap();
        }
        for volume in objects.volumes {
            let made = volumes.create(&params, &read(volume.clone())).await;
            made.unwrap_or_else(|error| panic!("{error}: {volume:#}"));
        }
        for claim in objects.claims {
            claims.create(&params, &read(claim)).await.unwrap();
        }
        self.until_found(namespace).await;
        // Both schedulers get objects in order: a scheduler that knows the last one knows them all.
        let last = format!("{namespace}-last");
        let volume = json!({"metadata": {"name": last}, "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": "/data"}, "storageClassName": "",
            "claimRef": {"namespace": namespace, "name": "last"}}});
        let claim = json!({"metadata": {"name": "last"}, "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": last,
            "resources": {"requests": {"storage": "1Gi"}}}});
        volumes.create(&params, &read(volume)).await.unwrap();
        claims.create(&params, &read(claim)).await.unwrap();
        self.until_found(namespace).await;
        for scheduler in SCHEDULERS {
            let name = format!("last-{scheduler}");
            let pod = json!({"metadata": {"name": name}, "spec": {
                "schedulerName": scheduler, "tolerations": [{"operator": "Exists"}],
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "c", "image": "example.com/c:1"}],
                "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "last"}}]}});
            let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
            pods.create(&params, &read(pod)).await.unwrap();
            self.until(&format!("{scheduler} knows the volumes"), async || {
                let pod = pods.get(&name).await.unwrap();
                pod.spec.is_some_and(|spec| spec.node_name.is_some())
            })
            .await;
            self.remove(namespace, &name).await;
        }
    }

    /// Waits until kube-controller-manager has processed every volume, and every claim that names one.
    async fn until_found(&self, namespace: &str) {
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        self.until("volumes are there", async || {
            let all = volumes.list(&ListParams::default()).await.unwrap();
            let phases = all.items.iter().map(|volume| {
                let status = volume.status.as_ref();
                status.and_then(|status| status.phase.as_deref())
            });
            let mut phases = phases;
            let volumes =
                phases.all(|phase| matches!(phase, Some("Available" | "Bound" | "Released")));
            let all = claims.list(&ListParams::default()).await.unwrap();
            let named = |claim: &&PersistentVolumeClaim| {
                let spec = claim.spec.as_ref();
                spec.is_some_and(|spec| spec.volume_name.is_some())
            };
            let mut named = all.items.iter().filter(named);
            volumes
                && named.all(|claim| {
                    let status = claim.status.as_ref();
                    status.and_then(|status| status.phase.as_deref()) == Some("Bound")
                })
        })
        .await;
    }

    async fn until(&self, what: &str, holds: impl AsyncFn() -> bool) {
        let begun = Instant::now();
        while !holds().await {
            assert!(begun.elapsed() < VERDICT, "{what}: it does not come");
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Creates the volumes of claims whose node is chosen, instead of the drivers' provisioners.
    async fn provision(&self, namespace: &str) {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        for claim in claims.list(&ListParams::default()).await.unwrap() {
            let meta = &claim.metadata;
            let chosen = meta.annotations.as_ref().and_then(|all| all.get(SELECTED));
            let spec = claim.spec.as_ref().unwrap();
            let (Some(node), None) = (chosen, &spec.volume_name) else {
                continue;
            };
            let name = meta.name.as_ref().unwrap();
            let requests = spec.resources.as_ref().unwrap().requests.as_ref();
            let volume = json!({
                "metadata": {"name": format!("{namespace}-{name}-made")},
                "spec": {"capacity": requests, "accessModes": spec.access_modes,
                    "storageClassName": spec.storage_class_name, "hostPath": {"path": "/data"},
                    "persistentVolumeReclaimPolicy": "Retain",
                    "claimRef": {"namespace": namespace, "name": name, "uid": meta.uid},
                    "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                        {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]}}},
            });
            match volumes.create(&PostParams::default(), &read(volume)).await {
                // The volume exists and is not bound yet.
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                made => {
                    made.unwrap();
                }
            }
        }
    }

    /// The verdict of the scheduler of this name on the pod, which stays.
    async fn verdict(
        &self,
        namespace: &str,
        mut pod: Value,
        name: &str,
        scheduler: &str,
    ) -> Verdict {
        pod["metadata"]["name"] = json!(name);
        pod["spec"]["schedulerName"] = json!(scheduler);
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        api.create(&PostParams::default(), &read(pod.clone()))
            .await
            .unwrap_or_else(|error| panic!("{error}: {pod:#}"));
        let begun = Instant::now();
        loop {
            let found = api.get(name).await.unwrap();
            if let Some(node) = found.spec.and_then(|spec| spec.node_name) {
                return Verdict::On(node);
            }
            let conditions = found.status.and_then(|status| status.conditions);
            let said = conditions.into_iter().flatten();
            let said = said.filter(|c| c.type_ == "PodScheduled" && c.status == "False");
            let words: String = said.filter_map(|c| c.message).collect();
            if words.starts_with(&format!("0/{} nodes", self.nodes)) {
                return Verdict::Nowhere(words);
            }
            assert!(
                begun.elapsed() < VERDICT,
                "no verdict of {scheduler} on {} nodes: {words:?}; {pod:#}",
                self.nodes
            );
            self.provision(namespace).await;
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// The bound pods of a world, with their nodes.
    async fn there(&self, namespace: &str) -> Value {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let all = api.list(&ListParams::default()).await.unwrap();
        json!(
            all.items
                .iter()
                .map(|pod| json!({"labels": pod.metadata.labels, "spec": pod.spec}))
                .collect::<Vec<_>>()
        )
    }

    async fn remove(&self, namespace: &str, name: &str) {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let now = DeleteParams::default().grace_period(0);
        api.delete(name, &now).await.unwrap();
    }
}

/// The same pod, restricted to this node.
fn pinned(pod: &Value, node: &str) -> Value {
    let mut pod = pod.clone();
    let only = json!([{"key": "metadata.name", "operator": "In", "values": [node]}]);
    let required = &mut pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        ["nodeSelectorTerms"];
    match required.as_array_mut() {
        // Terms are alternatives: each must include the restriction.
        Some(terms) => terms
            .iter_mut()
            .for_each(|term| term["matchFields"] = only.clone()),
        None => *required = json!([{ "matchFields": only }]),
    }
    pod
}

fn asked(variable: &str, usual: u32) -> u32 {
    let said = std::env::var(variable).ok();
    said.map_or(usual, |text| text.parse().unwrap())
}

#[test]
fn muster_binds_a_lone_pod_just_where_kube_schedulers_filters_would() {
    let cluster = Setup::default().unmarked().start();
    let cluster = cluster.with_controller_manager().with_scheduler(None);
    let ground = Ground::on(cluster);
    let server = ground.server("server", &["--kinds", "none"]);
    server.until_leading();
    let seed = asked("MUSTER_AGREEMENT_SEED", 1);
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut arena = runtime.block_on(Arena::new(&ground.cluster));
    runtime.block_on(arena.introduce());
    let (mut placed, mut refused) = (0, 0);
    for number in 0..asked("MUSTER_AGREEMENT_WORLDS", WORLDS) {
        let world = worlds().new_tree(&mut runner).unwrap().current();
        let namespace = format!("w{number}");
        runtime.block_on(async {
            arena.make(&namespace, &world).await;
            for (at, pod) in world.pods(&namespace).into_iter().enumerate() {
                let name = |of: &str| format!("{of}{at}");
                let copy = |of: &str| {
                    let mut pod = pod.clone();
                    pod["spec"]["volumes"] = world.volumes(of, at);
                    pod
                };
                let theirs = arena
                    .verdict(
                        &namespace,
                        copy("theirs"),
                        &name("theirs"),
                        "default-scheduler",
                    )
                    .await;
                arena.remove(&namespace, &name("theirs")).await;
                let ours = arena
                    .verdict(&namespace, copy("ours"), &name("ours"), "muster")
                    .await;
                arena.remove(&namespace, &name("ours")).await;
                let there = arena.there(&namespace).await;
                let nodes = json!([world.nodes(&namespace), world.csi_nodes(&namespace)]);
                let claims = &world.claims(at);
                let context = || {
                    format!(
                        "seed {seed}, world {number}: {pod} with {claims} beside {there} on {nodes}"
                    )
                };
                match (&theirs, &ours) {
                    (Verdict::On(_), Verdict::On(node)) => {
                        // The pod stays, so that the next pod competes with it.
                        let pinned = pinned(&copy("pinned"), node);
                        let agreed = arena
                            .verdict(&namespace, pinned, &name("pinned"), "default-scheduler")
                            .await;
                        assert_eq!(agreed, ours, "kube-scheduler does not agree; {}", context());
                        placed += 1;
                    }
                    (Verdict::Nowhere(_), Verdict::Nowhere(_)) => refused += 1,
                    _ => panic!("kube-scheduler {theirs:?}, Muster {ours:?}; {}", context()),
                }
            }
        });
    }
    println!("{placed} pods placed and {refused} refused by both");
    assert!(
        placed > refused / 4 && refused > placed / 20,
        "{placed} placed, {refused} refused: what is tried is lopsided"
    );
    assert!(
        !server.logged().contains("invariant"),
        "{}",
        server.logged()
    );
}
