//! Random claims for random pods, with possible volumes and storage classes: bound ones with zones and node affinity,
//! ones that wait for their first consumer, ones provisioned where there is room, and ones that keep a pod waiting.

use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::{Value, json};

/// The driver whose disks are limited per node.
pub const DRIVER: &str = "disk.example.com";
/// The provisioner that publishes its capacity.
pub const MAKER: &str = "room.example.com";
/// The provisioner that publishes no capacity.
const SILENT_MAKER: &str = "any.example.com";

/// A claim with its volumes and class.
#[derive(Clone, Debug)]
pub struct Store {
    /// The binding mode of its class; none if the claim does not exist.
    mode: Option<&'static str>,
    /// Whether its first volume is bound to it.
    bound: bool,
    claim: Value,
    volumes: Vec<Value>,
    /// How a provisioner creates a volume for it, if any does.
    made: Option<Made>,
}

/// How a provisioner creates volumes of a class.
#[derive(Clone, Debug)]
struct Made {
    by: &'static str,
    /// The zones of these volumes, if they are restricted.
    zones: Option<Vec<&'static str>>,
    /// The capacities that the driver publishes.
    spaces: Vec<Value>,
}

/// Objects to create.
#[derive(Default)]
pub struct Objects {
    pub classes: Vec<Value>,
    pub volumes: Vec<Value>,
    pub claims: Vec<Value>,
    pub spaces: Vec<Value>,
}

impl Store {
    /// The claim of this name, its class and volumes, in a world whose nodes' names begin with the world's name.
    pub fn put(&self, world: &str, name: &str, all: &mut Objects) {
        let Some(mode) = self.mode else { return };
        let class = format!("{world}-{name}");
        all.classes.push(self.class(mode, &class));
        let spaces = self.made.iter().flat_map(|made| &made.spaces);
        for (at, space) in spaces.enumerate() {
            let mut space = of_world(space, world);
            space["metadata"] = json!({"name": format!("{class}-{at}"), "namespace": world});
            space["storageClassName"] = json!(class);
            all.spaces.push(space);
        }
        let mut claim = json!({"metadata": {"name": name, "namespace": world}, "spec": self.claim});
        claim["spec"]["storageClassName"] = json!(class);
        for (at, volume) in self.volumes.iter().enumerate() {
            let mut volume = of_world(volume, world);
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

    fn class(&self, mode: &str, name: &str) -> Value {
        let by = self.made.as_ref().map(|made| made.by);
        let mut class = json!({"metadata": {"name": name}, "volumeBindingMode": mode,
            "provisioner": by.unwrap_or("kubernetes.io/no-provisioner")});
        if let Some(zones) = self.made.as_ref().and_then(|made| made.zones.as_ref()) {
            class["allowedTopologies"] = json!([{"matchLabelExpressions":
                [{"key": "topology.kubernetes.io/zone", "values": zones}]}]);
        }
        class
    }
}

/// The object, restricted to nodes of this world.
fn of_world(object: &Value, world: &str) -> Value {
    serde_json::from_str(&object.to_string().replace("WORLD", world)).unwrap()
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

/// A volume that is attached to the node of its use: a separate disk, or a shared one.
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
            made: None,
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
            made: None,
        }
    })
}

/// Capacity for volumes on some nodes, as a driver publishes it.
fn space() -> impl Strategy<Value = Value> {
    let size = || select(vec!["0", "1Gi", "2Gi", "8Gi"]);
    let nodes = prop_oneof![
        2 => select(vec!["a", "b", "c"])
            .prop_map(|zone| json!({"matchLabels": {"topology.kubernetes.io/zone": zone}})),
        2 => select(vec!["WORLD-n0", "WORLD-n1", "WORLD-n2"])
            .prop_map(|node| json!({"matchLabels": {"kubernetes.io/hostname": node}})),
        1 => Just(json!({"matchExpressions": [{"key": "disk", "operator": "DoesNotExist"}]})),
        1 => Just(json!({})),
    ];
    let largest = weighted(0.3, size());
    (weighted(0.9, nodes), weighted(0.9, size()), largest).prop_map(|(nodes, free, largest)| {
        json!({"nodeTopology": nodes, "capacity": free, "maximumVolumeSize": largest})
    })
}

/// A volume that is provisioned once a pod has its node, unless an existing one fits.
fn made() -> impl Strategy<Value = Store> {
    let by = select(vec![MAKER, MAKER, MAKER, SILENT_MAKER]);
    let zones = weighted(0.3, subsequence(vec!["a", "b", "c"], 1..3));
    (waiting(), by, zones, vec(space(), 0..4)).prop_map(|(mut store, by, zones, spaces)| {
        store.volumes.truncate(1);
        store.made = Some(Made { by, zones, spaces });
        store
    })
}

/// A claim that keeps its pod waiting.
fn useless(mode: Option<&'static str>) -> Store {
    Store {
        mode,
        bound: false,
        claim: json!({"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}),
        volumes: Vec::new(),
        made: None,
    }
}

/// The claims of one pod.
pub fn stores() -> impl Strategy<Value = Vec<Store>> {
    let one = prop_oneof![
        4 => bound(),
        6 => waiting(),
        4 => made(),
        1 => Just(useless(Some("Immediate"))),
        1 => Just(useless(None)),
    ];
    vec(one, 1..3)
}
