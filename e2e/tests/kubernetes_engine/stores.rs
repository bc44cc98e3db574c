//! Random claims for random pods, and the volumes and storage classes that they may have: bound ones
//! with zones and node affinity, such as wait for their first consumer, and such as keep a pod waiting.

use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::{Value, json};

/// Whose disks nodes take only so many of.
pub const DRIVER: &str = "disk.example.com";

/// One claim, and what there is for it.
#[derive(Clone, Debug)]
pub struct Store {
    /// How its class binds claims; none where the claim is not there at all.
    mode: Option<&'static str>,
    /// Its first volume is bound to it.
    bound: bool,
    claim: Value,
    volumes: Vec<Value>,
}

/// Objects to be made.
#[derive(Default)]
pub struct Objects {
    pub classes: Vec<Value>,
    pub volumes: Vec<Value>,
    pub claims: Vec<Value>,
}

impl Store {
    /// The claim of that name, its class and volumes, in a world whose nodes' names begin with its own.
    pub fn put(&self, world: &str, name: &str, all: &mut Objects) {
        let Some(mode) = self.mode else { return };
        let class = format!("{world}-{name}");
        all.classes.push(json!({"metadata": {"name": class},
            "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": mode}));
        let mut claim = json!({"metadata": {"name": name, "namespace": world}, "spec": self.claim});
        claim["spec"]["storageClassName"] = json!(class);
        for (at, volume) in self.volumes.iter().enumerate() {
            let text = volume.to_string().replace("WORLD", world);
            let mut volume: Value = serde_json::from_str(&text).unwrap();
            let own = format!("{class}-{at}");
            volume["metadata"]["name"] = json!(own);
            volume["spec"]["storageClassName"] = json!(class);
            if volume["spec"]["csi"]["volumeHandle"] == "own" {
                volume["spec"]["csi"]["volumeHandle"] = json!(own);
            }
            if self.bound && at == 0 {
                volume["spec"]["claimRef"] = json!({"apiVersion": "v1",
                    "kind": "PersistentVolumeClaim", "namespace": world, "name": name});
                claim["spec"]["volumeName"] = json!(own);
            }
            all.volumes.push(volume);
        }
        all.claims.push(claim);
    }
}

fn affinity() -> impl Strategy<Value = Value> {
    let hosts = vec!["WORLD-n0", "WORLD-n1", "WORLD-n2", "WORLD-n3"];
    let expression = prop_oneof![
        4 => subsequence(hosts, 1..3).prop_map(
            |some| json!({"key": "kubernetes.io/hostname", "operator": "In", "values": some})
        ),
        2 => Just(json!({"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a", "b"]})),
        1 => Just(json!({"key": "disk", "operator": "NotIn", "values": ["hdd"]})),
        1 => Just(json!({"key": "rank", "operator": "Gt", "values": ["2"]})),
    ];
    let terms = vec(expression, 1..3).prop_map(|all| json!({"matchExpressions": all}));
    vec(terms, 1..3).prop_map(|terms| json!({"required": {"nodeSelectorTerms": terms}}))
}

fn labels() -> impl Strategy<Value = Value> {
    let zone = prop_oneof![
        Just(json!({"topology.kubernetes.io/zone": "a"})),
        Just(json!({"topology.kubernetes.io/zone": "b__c"})),
        Just(json!({"failure-domain.beta.kubernetes.io/zone": "b"})),
        Just(json!({"topology.kubernetes.io/region": "r"})),
        Just(json!({"tier": "gold"})),
        Just(json!({"tier": "tin"})),
    ];
    weighted(0.6, zone).prop_map(|labels| labels.unwrap_or(json!({})))
}

fn volume(affine: f64) -> impl Strategy<Value = Value> {
    let size = select(vec!["1Gi", "3Gi", "3000Mi", "8Gi"]);
    let modes = select(vec![
        json!(["ReadWriteOnce"]),
        json!(["ReadWriteOnce", "ReadOnlyMany"]),
        json!(["ReadWriteMany"]),
    ]);
    let affinity = weighted(affine, affinity());
    let block = prop::bool::weighted(0.1);
    let all = (size, modes, affinity, block, labels());
    all.prop_map(|(size, modes, affinity, block, labels)| {
        let mut volume = json!({
            "metadata": {"labels": labels},
            "spec": {"capacity": {"storage": size}, "accessModes": modes,
                "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": "/data"},
                "volumeMode": if block { "Block" } else { "Filesystem" }},
        });
        if let Some(affinity) = affinity {
            volume["spec"]["nodeAffinity"] = affinity;
        }
        volume
    })
}

/// What is attached to the node where it is used: a disk of its own, or one that others have too.
fn disk() -> impl Strategy<Value = Value> {
    let handle = select(vec!["own", "own", "own", "one", "two"]);
    prop_oneof![
        4 => handle.prop_map(|handle| json!({"csi": {"driver": DRIVER, "volumeHandle": handle}})),
        1 => select(vec!["vol-1", "aws://a/vol-1", "vol-2"])
            .prop_map(|id| json!({"awsElasticBlockStore": {"volumeID": id}})),
    ]
}

fn bound() -> impl Strategy<Value = Store> {
    (volume(0.5), weighted(0.6, disk())).prop_map(|(mut volume, disk)| {
        volume["spec"]["volumeMode"] = json!("Filesystem");
        if let (Some(disk), Some(spec)) = (disk, volume["spec"].as_object_mut()) {
            spec.remove("hostPath");
            spec.extend(disk.as_object().cloned().unwrap_or_default());
        }
        Store {
            mode: Some("WaitForFirstConsumer"),
            bound: true,
            claim: json!({"accessModes": volume["spec"]["accessModes"],
                "resources": {"requests": {"storage": "1Gi"}}}),
            volumes: vec![volume],
        }
    })
}

fn waiting() -> impl Strategy<Value = Store> {
    let size = select(vec!["1Gi", "2Gi", "3Gi"]);
    let mode = select(vec!["ReadWriteOnce", "ReadWriteOnce", "ReadOnlyMany"]);
    let selector = weighted(0.2, Just(json!({"matchLabels": {"tier": "gold"}})));
    let all = (size, mode, selector, vec(volume(0.8), 0..6));
    all.prop_map(|(size, mode, selector, volumes)| {
        let mut claim = json!({"accessModes": [mode],
            "resources": {"requests": {"storage": size}}});
        if let Some(selector) = selector {
            claim["selector"] = selector;
        }
        Store {
            mode: Some("WaitForFirstConsumer"),
            bound: false,
            claim,
            volumes,
        }
    })
}

/// One that keeps its pod waiting.
fn useless(mode: Option<&'static str>) -> Store {
    Store {
        mode,
        bound: false,
        claim: json!({"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}),
        volumes: Vec::new(),
    }
}

/// The claims of one pod.
pub fn stores() -> impl Strategy<Value = Vec<Store>> {
    let one = prop_oneof![
        4 => bound(),
        8 => waiting(),
        1 => Just(useless(Some("Immediate"))),
        1 => Just(useless(None)),
    ];
    vec(one, 1..3)
}
