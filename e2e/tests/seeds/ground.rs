//! Both engines with the same machines, namespaces and claims, and kubectl for each.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use e2e::{Cluster, Platform, Ran, eventually, free_address, muster};
use serde_json::{Value, json};

use crate::facts::Applied;
use crate::{Seed, WHOLE};

const SOON: Duration = Duration::from_secs(90);
/// The same machines for both: enough for everything, in any order.
const FLEET: usize = 24;
/// In MiB, as an H100 reports it.
const GPU_MEMORY: u64 = 81_559;
/// The scheduler names in the manifests, and Muster's own.
const SCHEDULERS: [&str; 3] = ["muster", "default-scheduler", "volcano"];

/// One engine that manifests are applied to.
pub(crate) enum Ground {
    Embedded(Platform),
    Kubernetes(Cluster, Server),
}

/// `muster server kubernetes`; ended when dropped.
pub(crate) struct Server {
    child: Child,
    log: PathBuf,
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            eprintln!("--- the server's log:\n{log}");
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ground {
    /// The embedded engine and Kubernetes, in this order, ready for the manifests.
    pub(crate) fn both(seeds: &[Seed]) -> [Ground; 2] {
        std::thread::scope(|scope| {
            let kubernetes = scope.spawn(|| kubernetes(seeds));
            let embedded = scope.spawn(|| embedded(seeds));
            [embedded, kubernetes].map(|ground| ground.join().unwrap())
        })
    }

    pub(crate) fn kubectl(&self, arguments: &[&str]) -> Ran {
        match self {
            Ground::Embedded(platform) => platform.kubectl(arguments),
            Ground::Kubernetes(cluster, _) => cluster.kubectl(arguments),
        }
    }

    /// The objects that a `get` lists.
    pub(crate) fn items(&self, arguments: &[&str]) -> Vec<Value> {
        let out = self
            .kubectl(&[&["get", "-o", "json"], arguments].concat())
            .ok();
        let list: Value = serde_json::from_str(&out).unwrap();
        list["items"].as_array().cloned().unwrap_or_default()
    }

    fn make(&self, objects: Vec<Value>) {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        let file = tempfile::Builder::new().suffix(".json").tempfile().unwrap();
        std::fs::write(file.path(), list.to_string()).unwrap();
        self.kubectl(&["create", "-f", &file.path().display().to_string()])
            .ok();
    }

    /// The namespaces, machines and claims that the manifests need.
    fn furnish(&self, seeds: &[Seed]) {
        let namespaces: BTreeSet<&str> = seeds.iter().map(|seed| seed.namespace.as_str()).collect();
        let mut objects: Vec<Value> = namespaces
            .iter()
            .map(
                |name| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}),
            )
            .collect();
        objects.extend(machines());
        for (namespace, name) in [
            ("ai-workloads", "training-data-pvc"),
            ("001-pytorchjob-70b", "llm-data-pvc"),
            (WHOLE, "training-data-pvc"),
        ] {
            if matches!(self, Ground::Kubernetes(..)) {
                objects.push(volume(&format!("{namespace}-{name}")));
            }
            objects.push(json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": {"name": name, "namespace": namespace},
                "spec": {"accessModes": ["ReadWriteMany"], "storageClassName": "",
                    "resources": {"requests": {"storage": "1Gi"}}},
            }));
        }
        self.make(objects);
        if matches!(self, Ground::Kubernetes(..)) {
            // Admission marks new nodes; the controller that removes the mark is off (see
            // `Cluster`).
            self.kubectl(&["taint", "nodes", "--all", "node.kubernetes.io/not-ready-"])
                .ok();
            eventually("namespaces have their service account", SOON, || {
                let found = self.items(&["serviceaccounts", "-A"]);
                let of = |name: &&str| {
                    found
                        .iter()
                        .any(|one| one["metadata"]["namespace"] == **name)
                };
                namespaces.iter().all(of).then_some(())
            });
        }
    }

    /// Applies every manifest in the order of their names, and returns the answers.
    pub(crate) fn apply_all(&self, seeds: &[Seed]) -> BTreeMap<String, Applied> {
        let apply = |seed: &Seed| {
            let path = seed.path.display().to_string();
            let mut arguments = vec!["apply", "-f", &path];
            if !seed.placed {
                arguments.extend(["-n", &seed.namespace]);
            }
            let ran = self.kubectl(&arguments);
            let said = |text: &str| text.replace(&path, &format!("{}.yaml", seed.name));
            let applied = Applied {
                taken: ran.code == Some(0),
                out: said(&ran.out),
                err: said(&ran.err),
            };
            (seed.name.clone(), applied)
        };
        seeds.iter().map(apply).collect()
    }

    /// A gang behind all others; it is placed when this returns.
    pub(crate) fn last_in_line(&self) {
        let replica = json!({"replicas": 1, "template": {"spec": {"containers": [{
            "name": "pytorch", "image": "example.com/train:1",
            "resources": {"limits": {"nvidia.com/gpu": 1}},
        }]}}});
        self.make(vec![json!({
            "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob",
            "metadata": {"name": "last", "namespace": "default"},
            "spec": {"pytorchReplicaSpecs": {"Master": replica, "Worker": replica}},
        })]);
        eventually("the last gang is placed", SOON, || {
            let pods = self.items(&["pods", "-n", "default"]);
            let bound = pods
                .iter()
                .filter(|pod| pod["spec"]["nodeName"].is_string());
            (bound.count() == 2).then_some(())
        });
    }

    /// Muster was denied no right that it needs, and its log has no broken invariant.
    pub(crate) fn must_be_well(&self) {
        let log = match self {
            Ground::Embedded(platform) => platform.logged(),
            Ground::Kubernetes(_, server) => std::fs::read_to_string(&server.log).unwrap(),
        };
        for bad in ["forbidden", "invariant", "panicked"] {
            assert!(!log.contains(bad), "{bad:?} in the log:\n{log}");
        }
    }
}

fn embedded(seeds: &[Seed]) -> Ground {
    // The machines are objects without agents, as on the other engine.
    let ground = Ground::Embedded(Platform::server(&["--node-grace", "86400"]));
    ground.furnish(seeds);
    ground
}

fn kubernetes(seeds: &[Seed]) -> Ground {
    let cluster = Cluster::start().with_controller_manager();
    cluster.install_muster();
    let account = cluster.kubeconfig_of_account("muster-system", "muster-server");
    let log = cluster.directory().join("muster.log");
    let output = File::create(&log).unwrap();
    let listen = free_address();
    let child = Command::new(muster())
        .arg("--kubeconfig")
        .arg(account)
        .args(["server", "kubernetes", "--listen", &listen])
        .args(SCHEDULERS.map(|name| format!("--scheduler-name={name}")))
        .stdin(Stdio::null())
        .stdout(output.try_clone().unwrap())
        .stderr(output)
        .spawn()
        .unwrap();
    let ground = Ground::Kubernetes(cluster, Server { child, log });
    ground.furnish(seeds);
    ground
}

/// Nodes with eight GPUs each: a uniform fleet, and single nodes for the requests of some
/// manifests.
fn machines() -> Vec<Value> {
    let fleet = json!({
        "gpu-tier": "high-performance", "gpu-type": "H100", "topology.kubernetes.io/zone": "zone-a",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB",
    });
    let spot = "cloud.google.com/gke-spot";
    let taint = json!([{"key": spot, "value": "true", "effect": "NoSchedule"}]);
    let zone = "zone-b";
    let mut machines: Vec<Value> = (0..FLEET)
        .map(|i| machine(&format!("gpu-{i}"), &fleet, &json!([])))
        .collect();
    for (name, key, value, taints) in [
        ("standard", "gpu-tier", "standard", json!([])),
        ("inference", "gpu-tier", "inference", json!([])),
        ("spot", spot, "true", taint),
    ] {
        let labels = json!({ key: value, "topology.kubernetes.io/zone": zone });
        machines.push(machine(name, &labels, &taints));
    }
    machines
}

fn machine(name: &str, labels: &Value, taints: &Value) -> Value {
    let gpu = |i: i32| {
        json!({"id": format!("{name}-{i}"), "index": i, "numa": 0, "healthy": true,
        "memoryMib": GPU_MEMORY})
    };
    let inventory = json!({"gpus": (0..8).map(gpu).collect::<Vec<_>>()});
    let room = json!({
        "cpu": "128", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": "8",
        "rdma/roce_v2": "8",
    });
    let mut labels = labels.clone();
    labels["kubernetes.io/hostname"] = name.into();
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": labels,
            "annotations": {"muster.io/inventory": inventory.to_string()}},
        "spec": {"taints": taints},
        "status": {"capacity": room, "allocatable": room,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Described",
                "message": "no kubelet stands behind this node"}]},
    })
}

/// Kubernetes binds a claim to an existing volume; the embedded engine creates volumes itself.
fn volume(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteMany"], "capacity": {"storage": "1Gi"},
            "storageClassName": "", "hostPath": {"path": format!("/tmp/{name}")}},
    })
}
