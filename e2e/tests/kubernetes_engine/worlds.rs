//! Random nodes, and pods with the constraints that kube-scheduler's filters check: room, selectors, affinity,
//! taints, other pods, spread, ports, and volumes (`stores`).

use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::{Value, json};

use crate::stores::{DRIVER, Objects, Store, stores};

/// Nodes, and the pods in the order of their arrival.
#[derive(Clone, Debug)]
pub struct World {
    nodes: Vec<Value>,
    /// The disk limits of each node for two drivers, if it has any.
    limits: Vec<Option<(u32, u32)>>,
    /// Each pod with its claims.
    pods: Vec<(Value, Vec<Store>)>,
}

impl World {
    /// The nodes; labels tell them from those of other worlds.
    pub fn nodes(&self, world: &str) -> Vec<Value> {
        let named = |(at, node): (usize, &Value)| {
            let mut node = node.clone();
            let name = format!("{world}-n{at}");
            node["metadata"]["labels"]["world"] = json!(world);
            node["metadata"]["labels"]["kubernetes.io/hostname"] = json!(name);
            node["metadata"]["name"] = json!(name);
            node
        };
        self.nodes.iter().enumerate().map(named).collect()
    }

    /// The CSINodes, as the nodes' kubelets would write them.
    pub fn csi_nodes(&self, world: &str) -> Vec<Value> {
        let said = self.nodes.iter().zip(&self.limits).enumerate();
        let said = said.filter_map(|(at, (_, limit))| {
            let (own, amazon) = (*limit)?;
            let driver = |name: &str, count: u32| {
                json!({"name": name, "nodeID": "here", "topologyKeys": [],
                    "allocatable": {"count": count}})
            };
            Some(json!({
                "metadata": {"name": format!("{world}-n{at}"), "annotations": {
                    "storage.alpha.kubernetes.io/migrated-plugins": "kubernetes.io/aws-ebs"}},
                "spec": {"drivers": [driver(DRIVER, own), driver("ebs.csi.aws.com", amazon)]},
            }))
        });
        said.collect()
    }

    /// The pods, which go to nodes of their world only.
    pub fn pods(&self, world: &str) -> Vec<Value> {
        let kept = |(pod, _): &(Value, Vec<Store>)| {
            let mut pod = pod.clone();
            pod["spec"]["nodeSelector"]["world"] = json!(world);
            pod
        };
        self.pods.iter().map(kept).collect()
    }

    /// The objects for the pods' claims, once per copy: each copy of a pod has its own claims.
    pub fn objects(&self, world: &str, copies: &[&str]) -> Objects {
        let mut all = Objects::default();
        for copy in copies {
            for (at, (_, stores)) in self.pods.iter().enumerate() {
                for (nth, store) in stores.iter().enumerate() {
                    store.put(world, &format!("{copy}{at}-{nth}"), &mut all);
                }
            }
        }
        all
    }

    /// A description of a pod's claims and their volumes.
    pub fn claims(&self, at: usize) -> String {
        format!("{:?}", self.pods[at].1)
    }

    /// The volumes of one copy of a pod.
    pub fn volumes(&self, copy: &str, at: usize) -> Value {
        let (pod, stores) = &self.pods[at];
        let inline = pod["spec"]["volumes"].as_array().cloned();
        let volumes = (0..stores.len()).map(|nth| {
            let claim = format!("{copy}{at}-{nth}");
            json!({"name": format!("v{nth}"), "persistentVolumeClaim": {"claimName": claim}})
        });
        volumes.chain(inline.unwrap_or_default()).collect()
    }
}

pub fn worlds() -> impl Strategy<Value = World> {
    let claims = weighted(0.35, stores()).prop_map(Option::unwrap_or_default);
    let pods = vec((pods(), claims), 5..9);
    let limits = vec(weighted(0.6, (0u32..3, 0u32..3)), 6);
    (vec(nodes(), 2..6), limits, pods).prop_map(|(nodes, limits, pods)| World {
        nodes,
        limits,
        pods,
    })
}

/// A disk that a pod names without a claim.
fn inline() -> impl Strategy<Value = Value> {
    let reads = prop::bool::ANY;
    let name = select(vec!["vol-1", "vol-2"]);
    (0..4, name, reads).prop_map(|(kind, name, reads)| {
        let source = match kind {
            0 => json!({"gcePersistentDisk": {"pdName": name, "readOnly": reads}}),
            1 => json!({"awsElasticBlockStore": {"volumeID": name}}),
            2 => json!({"iscsi": {"targetPortal": "192.0.2.1", "lun": 0,
                "iqn": format!("iqn.2001-04.com.example:{name}"), "readOnly": reads}}),
            _ => json!({"rbd": {"monitors": ["192.0.2.1", "192.0.2.2"], "image": name,
                "readOnly": reads}}),
        };
        json!([merged([json!({"name": "inline"}), source])])
    })
}

fn merged(parts: impl IntoIterator<Item = Value>) -> Value {
    let mut all = serde_json::Map::new();
    for part in parts {
        if let Value::Object(part) = part {
            all.extend(part);
        }
    }
    Value::Object(all)
}

fn some_of(list: Vec<Value>) -> impl Strategy<Value = Vec<Value>> {
    let len = list.len();
    subsequence(list, 0..=len)
}

fn nodes() -> impl Strategy<Value = Value> {
    let labels = (
        weighted(0.8, select(vec!["a", "b", "c"])),
        weighted(0.7, select(vec!["ssd", "hdd"])),
        weighted(0.5, 1u32..9),
    );
    let taints = vec![
        json!({"key": "dedicated", "value": "team", "effect": "NoSchedule"}),
        json!({"key": "going", "effect": "NoExecute"}),
        json!({"key": "better-not", "value": "x", "effect": "PreferNoSchedule"}),
    ];
    let taints = weighted(0.3, some_of(taints));
    let room = (2u32..10, 2u32..17, 2u32..8, 0u32..5);
    let cordoned = prop::bool::weighted(0.1);
    (labels, taints, room, cordoned).prop_map(|((zone, disk, rank), taints, room, cordoned)| {
        let labels = merged([
            zone.map_or(Value::Null, |zone| json!({"topology.kubernetes.io/zone": zone})),
            disk.map_or(Value::Null, |disk| json!({"disk": disk})),
            rank.map_or(Value::Null, |rank| json!({"rank": rank.to_string()})),
        ]);
        let (cpus, gib, pods, gpus) = room;
        let room = json!({"cpu": cpus.to_string(), "memory": format!("{gib}Gi"),
            "pods": pods.to_string(), "nvidia.com/gpu": gpus.to_string()});
        json!({
            "metadata": {"labels": labels},
            "spec": {"taints": taints.unwrap_or_default(), "unschedulable": cordoned},
            "status": {"capacity": room, "allocatable": room, "conditions": [
                {"type": "Ready", "status": "True", "reason": "Described", "message": "no kubelet"}]},
        })
    })
}

fn requests() -> impl Strategy<Value = Value> {
    let cpu = select(vec![
        None,
        Some("250m"),
        Some("1"),
        Some("1500m"),
        Some("3"),
    ]);
    let memory = select(vec![None, None, Some("512Mi"), Some("1Gi"), Some("3Gi")]);
    let gpus = select(vec![None, None, None, Some("1"), Some("2")]);
    (cpu, memory, gpus).prop_map(|(cpu, memory, gpus)| {
        let amount =
            |name: &str, amount: Option<&str>| amount.map_or(Value::Null, |n| json!({ name: n }));
        let gpu = amount("nvidia.com/gpu", gpus);
        let all = merged([amount("cpu", cpu), amount("memory", memory), gpu.clone()]);
        json!({"requests": all, "limits": merged([gpu])})
    })
}

fn ports() -> impl Strategy<Value = Value> {
    let protocol = select(vec!["TCP", "UDP"]);
    let address = select(vec!["", "0.0.0.0", "127.0.0.1", "10.1.2.3"]);
    (select(vec![8080u32, 9090]), protocol, address).prop_map(|(port, protocol, address)| {
        let place = if address.is_empty() {
            Value::Null
        } else {
            json!({"hostIP": address})
        };
        merged([
            json!({"containerPort": port, "hostPort": port, "protocol": protocol}),
            place,
        ])
    })
}

fn containers() -> impl Strategy<Value = Value> {
    let ports = weighted(0.25, vec(ports(), 1..3));
    let inits = weighted(0.4, vec((requests(), prop::bool::ANY), 1..3));
    (vec(requests(), 1..3), inits, ports).prop_map(|(mains, inits, ports)| {
        let container = |at: usize, kind: &str, resources: Value| {
            json!({
                "name": format!("{kind}{at}"), "image": "example.com/c:1", "resources": resources,
            })
        };
        let mut mains: Vec<Value> = (mains.into_iter().enumerate())
            .map(|(at, resources)| container(at, "main", resources))
            .collect();
        let mut ports = ports.unwrap_or_default();
        ports.dedup();
        mains[0]["ports"] = json!(ports);
        let inits = inits.unwrap_or_default();
        let inits = inits
            .into_iter()
            .enumerate()
            .map(|(at, (resources, stays))| {
                let stays = if stays {
                    json!({"restartPolicy": "Always"})
                } else {
                    Value::Null
                };
                merged([container(at, "init", resources), stays])
            });
        json!({"containers": mains, "initContainers": inits.collect::<Vec<_>>()})
    })
}

fn node_terms() -> impl Strategy<Value = Value> {
    let expression = prop_oneof![
        Just(json!({"key": "disk", "operator": "In", "values": ["ssd"]})),
        Just(json!({"key": "disk", "operator": "NotIn", "values": ["hdd"]})),
        Just(json!({"key": "disk", "operator": "Exists"})),
        Just(json!({"key": "disk", "operator": "DoesNotExist"})),
        Just(json!({"key": "rank", "operator": "Gt", "values": ["3"]})),
        Just(json!({"key": "rank", "operator": "Lt", "values": ["6"]})),
        Just(json!({"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a", "b"]})),
    ];
    let term = vec(expression, 1..3).prop_map(|all| json!({"matchExpressions": all}));
    vec(term, 1..3).prop_map(|terms| {
        json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}})
    })
}

fn keys() -> impl Strategy<Value = &'static str> {
    select(vec![
        "topology.kubernetes.io/zone",
        "kubernetes.io/hostname",
    ])
}

fn selectors() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({"matchLabels": {"app": "web"}})),
        Just(json!({"matchLabels": {"app": "db"}})),
        Just(
            json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "db"]}]})
        ),
        Just(json!({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]})),
        Just(json!({})),
    ]
}

fn pod_terms() -> impl Strategy<Value = Value> {
    let term = (keys(), selectors())
        .prop_map(|(key, selector)| json!({"topologyKey": key, "labelSelector": selector}));
    vec(term, 1..3)
        .prop_map(|terms| json!({"requiredDuringSchedulingIgnoredDuringExecution": terms}))
}

fn spreads() -> impl Strategy<Value = Value> {
    let policy = || weighted(0.3, select(vec!["Honor", "Ignore"]));
    let constraint = (
        keys(),
        selectors(),
        1u32..3,
        weighted(0.3, 1u32..4),
        policy(),
        policy(),
    );
    let constraint = constraint.prop_map(|(key, selector, skew, domains, affinity, taints)| {
        let maybe = |name: &str, value: Value| {
            if value.is_null() {
                value
            } else {
                json!({ name: value })
            }
        };
        merged([
            json!({"topologyKey": key, "labelSelector": selector, "maxSkew": skew,
                "whenUnsatisfiable": "DoNotSchedule"}),
            maybe("minDomains", json!(domains)),
            maybe("nodeAffinityPolicy", json!(affinity)),
            maybe("nodeTaintsPolicy", json!(taints)),
        ])
    });
    constraint.prop_map(|one| json!([one]))
}

fn tolerations() -> impl Strategy<Value = Vec<Value>> {
    let all = vec![
        json!({"key": "dedicated", "operator": "Equal", "value": "team", "effect": "NoSchedule"}),
        json!({"key": "dedicated", "operator": "Equal", "value": "other"}),
        json!({"key": "going", "operator": "Exists", "effect": "NoExecute"}),
        json!({"key": "going", "operator": "Exists", "effect": "NoSchedule"}),
        json!({"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}),
    ];
    prop_oneof![
        6 => some_of(all),
        1 => Just(vec![json!({"operator": "Exists"})]),
    ]
}

fn pods() -> impl Strategy<Value = Value> {
    let app = weighted(0.8, select(vec!["web", "db"]));
    let affinity = (
        weighted(0.2, node_terms()),
        weighted(0.12, pod_terms()),
        weighted(0.15, pod_terms()),
    );
    let selector = weighted(0.1, select(vec!["ssd", "hdd"]));
    let rest = (
        selector,
        weighted(0.4, tolerations()),
        weighted(0.2, spreads()),
        weighted(0.2, inline()),
    );
    (app, containers(), affinity, rest).prop_map(|(app, containers, affinity, rest)| {
        let (near, with, apart) = affinity;
        let (disk, tolerations, spread, inline) = rest;
        let maybe =
            |name: &str, value: Option<Value>| value.map_or(Value::Null, |v| json!({ name: v }));
        let affinity = merged([
            maybe("nodeAffinity", near),
            maybe("podAffinity", with),
            maybe("podAntiAffinity", apart),
        ]);
        let spec = merged([
            containers,
            json!({"affinity": affinity, "tolerations": tolerations.unwrap_or_default(),
                "terminationGracePeriodSeconds": 0}),
            maybe("nodeSelector", disk.map(|disk| json!({"disk": disk}))),
            maybe("topologySpreadConstraints", spread),
            maybe("volumes", inline),
        ]);
        let labels = app.map_or(json!({}), |app| json!({"app": app}));
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": labels}, "spec": spec})
    })
}
