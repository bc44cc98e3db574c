//! A case's cluster as objects: nodes with their GPUs, queues, workloads and pods.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::{GPU, array};
use crate::cluster::{Scene, Stand, text};
use crate::engine::{Action, Placed, Placing};
use crate::objects;

/// More than any cluster here has: a quota without bounds.
const UNLIMITED: [(&str, &str); 4] = [
    ("cpu", "100000000"),
    ("memory", "1000Ti"),
    ("nvidia.com/gpu", "1000000"),
    ("pods", "1000000"),
];

pub(super) fn scene(case: &Value) -> Scene {
    let mut scene = Scene::default();
    scene.settings.topology = array(&case["topology"]["levels"]).map(text).collect();
    scene.settings.placing = match case["policy"]["placement"]["nodes"].as_str() {
        Some("binpack") => Placing::Pack,
        Some("spread") => Placing::Spread,
        _ => Placing::Default,
    };
    scene.settings.spread_gpus = case["policy"]["placement"]["gpus"] == "spread";
    scene.settings.actions = array(&case["policy"]["actions"])
        .filter_map(|action| match action.as_str() {
            Some("allocate") => Some(Action::Allocate),
            Some("consolidation") => Some(Action::Consolidate),
            Some("reclaim") => Some(Action::Reclaim),
            Some("preempt") => Some(Action::Preempt),
            _ => None,
        })
        .collect();
    for node in array(&case["nodes"]) {
        scene.add(node_object(node, shares(case)));
    }
    let mut resources: BTreeSet<String> = UNLIMITED.map(|(name, _)| name.to_owned()).into();
    for node in array(&case["nodes"]) {
        resources.extend(objects::strings(&node["allocatable"]).into_keys());
    }
    for (age, queue) in array(&case["queues"]).enumerate() {
        scene.add(queue_object(queue, age, &resources));
    }
    let mut classes: BTreeSet<i64> = BTreeSet::new();
    for workload in array(&case["workloads"]) {
        classes.insert(workload["priority"].as_i64().unwrap_or(0));
        scene.add(group_object(workload));
    }
    for class in classes {
        scene.add(objects::priority_class(class));
    }
    let mut devices = Devices::of(case);
    for workload in array(&case["workloads"]) {
        for (pod, ranked) in ranked(workload) {
            add_pod(&mut scene, workload, pod, ranked, &mut devices);
        }
    }
    scene
}

fn shares(case: &Value) -> bool {
    let mut pods = array(&case["workloads"]).flat_map(|workload| array(&workload["pods"]));
    pods.any(sharing)
}

fn sharing(pod: &Value) -> bool {
    !pod["gpu_fraction"].is_null() || !pod["gpu_memory_mib"].is_null()
}

pub(super) fn gpus(node: &Value) -> u64 {
    text(&node["allocatable"][GPU]).parse().unwrap_or(0)
}

/// Where GPUs are shared, nodes say which ones they have.
fn node_object(node: &Value, shares: bool) -> Value {
    let name = text(&node["name"]);
    let mut labels = objects::strings(&node["labels"]);
    labels.insert("kubernetes.io/hostname".into(), name.clone());
    let memory = node["gpu_memory_mib"].as_u64().unwrap_or(100);
    labels.insert("nvidia.com/gpu.memory".into(), memory.to_string());
    let mut object = objects::node(&name, &labels, &node["allocatable"]);
    if array(&node["taints"]).next().is_some() {
        object["spec"]["taints"] = node["taints"].clone();
    }
    if shares && gpus(node) > 0 {
        let list: Vec<Value> = (0..gpus(node))
            .map(|i| {
                json!({
                    "id": device(&name, i), "index": i, "model": "gpu",
                    "memory_mib": memory, "healthy": true,
                })
            })
            .collect();
        let inventory = json!({"gpus": list, "source": "described"});
        objects::annotate(&mut object, resources::names::INVENTORY, &inventory);
    }
    object
}

fn device(node: &str, index: u64) -> String {
    format!("{node}-gpu-{index}")
}

fn queue_object(queue: &Value, age: usize, resources: &BTreeSet<String>) -> Value {
    let mut object = objects::queue(&text(&queue["name"]), queue["parent"].as_str(), age);
    let mut deserved = Map::new();
    let mut limits = queue["capability"].as_object().cloned().unwrap_or_default();
    for resource in resources {
        let unlimited = UNLIMITED.iter().find(|(name, _)| name == resource);
        let unlimited = unlimited.map_or("1000000", |(_, amount)| amount);
        let quota = amount_of(&queue["guarantee"], resource);
        deserved.insert(resource.clone(), quota.unwrap_or(json!(unlimited)));
        if let Some(limit) = amount_of(&queue["capability"], resource) {
            limits.insert(resource.clone(), limit);
        }
    }
    object["spec"]["deserved"] = Value::Object(deserved);
    if !limits.is_empty() {
        object["spec"]["capability"] = Value::Object(limits);
    }
    // The weight is one of GPUs; of everything else it is 1.
    if let Some(weight) = queue["weight"].as_i64() {
        let mut weights = Map::new();
        for resource in resources.iter().filter(|name| gpus_in(name).is_some()) {
            weights.insert(resource.clone(), json!(weight));
        }
        objects::annotate(&mut object, "muster.io/surplus-weight", &json!(weights));
    }
    object["spec"]["priority"] = json!(queue["priority"].as_i64().unwrap_or(100));
    object
}

/// How many GPUs one of a resource counts as: a slice as many as its `g` says.
fn gpus_in(resource: &str) -> Option<u64> {
    if resource == GPU {
        return Some(1);
    }
    let profile = resource.strip_prefix("nvidia.com/mig-")?;
    profile.split_once('g')?.0.parse().ok().filter(|n| *n > 0)
}

/// What a list says of a resource; of slices what it says of GPUs, where it says nothing else.
fn amount_of(list: &Value, resource: &str) -> Option<Value> {
    let own = list.get(resource).filter(|amount| amount.is_string());
    own.cloned().or_else(|| {
        let each = gpus_in(resource)?;
        let gpus: f64 = list[GPU].as_str()?.parse().ok()?;
        Some(json!(((gpus / each as f64).floor() as u64).to_string()))
    })
}

fn topology(asked: &Value) -> Option<Value> {
    let mut found = Map::new();
    for key in ["required", "preferred"] {
        if let Some(level) = asked[key].as_str() {
            found.insert(key.into(), json!(level));
        }
    }
    (!found.is_empty()).then_some(Value::Object(found))
}

fn group_object(workload: &Value) -> Value {
    let min = workload["min_member"].as_u64().unwrap_or(1);
    let age = workload["age_rank"].as_i64().unwrap_or(0);
    let mut object = objects::group(
        &text(&workload["name"]),
        &text(&workload["queue"]),
        min,
        age,
    );
    let priority = workload["priority"].as_i64().unwrap_or(0);
    object["spec"]["priorityClassName"] = json!(objects::class_name(priority));
    let preemptible = workload["preemptible"] == true;
    objects::annotate(
        &mut object,
        "muster.io/preemptible",
        &json!(preemptible.to_string()),
    );
    if let Some(topology) = topology(&workload["topology_request"]) {
        objects::annotate(&mut object, "muster.io/topology", &topology);
    }
    let parts: Vec<Value> = array(&workload["subgroups"])
        .map(|sub| {
            let mut part = json!({"name": sub["name"]});
            for (from, to) in [("parent", "parent"), ("min_member", "minMember")] {
                if !sub[from].is_null() {
                    part[to] = sub[from].clone();
                }
            }
            if let Some(topology) = topology(&sub["topology_request"]) {
                part["topology"] = topology;
            }
            part
        })
        .collect();
    if !parts.is_empty() {
        objects::annotate(&mut object, "muster.io/sub-groups", &json!(parts));
    }
    object
}

/// A workload's pods with their ranks, where the case orders them.
fn ranked(workload: &Value) -> Vec<(&Value, Option<usize>)> {
    let pods: Vec<&Value> = array(&workload["pods"]).collect();
    let first = |pod: &Value| -pod["order_priority"].as_i64().unwrap_or(0);
    let ordered = pods.iter().any(|pod| !pod["order_priority"].is_null());
    let mut by_rank: Vec<usize> = (0..pods.len()).collect();
    by_rank.sort_by_key(|at| (first(pods[*at]), *at));
    let rank = |at: usize| by_rank.iter().position(|other| *other == at);
    let ranked = pods.iter().enumerate();
    ranked
        .map(|(at, pod)| (*pod, rank(at).filter(|_| ordered)))
        .collect()
}

/// Which GPUs of a node are taken, where GPUs are shared.
struct Devices {
    shares: bool,
    /// By node and the case's label.
    labelled: BTreeMap<(String, String), u64>,
    taken: BTreeSet<(String, u64)>,
}

impl Devices {
    fn of(case: &Value) -> Devices {
        let mut devices = Devices {
            shares: shares(case),
            labelled: BTreeMap::new(),
            taken: BTreeSet::new(),
        };
        // Labels that are numbers first: they are those GPUs' own.
        for numbers in [true, false] {
            for pod in array(&case["workloads"]).flat_map(|w| array(&w["pods"])) {
                for label in array(&pod["gpu_ids"]).map(text) {
                    let number: Option<u64> = label.parse().ok();
                    let node = text(&pod["node"]);
                    if number.is_some() == numbers
                        && !devices
                            .labelled
                            .contains_key(&(node.clone(), label.clone()))
                    {
                        let index = number.unwrap_or_else(|| devices.free(&node));
                        devices.taken.insert((node.clone(), index));
                        devices.labelled.insert((node, label), index);
                    }
                }
            }
        }
        devices
    }

    fn free(&self, node: &str) -> u64 {
        let taken = |index: &u64| self.taken.contains(&(node.to_owned(), *index));
        (0..).find(|index| !taken(index)).unwrap_or(0)
    }

    /// The annotation for a pod that has a node.
    fn annotation(&mut self, pod: &Value, node: &str) -> String {
        if !self.shares {
            return String::new();
        }
        let mut ids: Vec<String> = array(&pod["gpu_ids"])
            .filter_map(|label| self.labelled.get(&(node.to_owned(), text(label))))
            .map(|index| device(node, *index))
            .collect();
        if ids.is_empty() {
            let count = text(&pod["requests"][GPU]).parse().unwrap_or(0);
            for _ in 0..count {
                let index = self.free(node);
                self.taken.insert((node.to_owned(), index));
                ids.push(device(node, index));
            }
        }
        if ids.is_empty() {
            return String::new();
        }
        json!({"main": {GPU: ids}}).to_string()
    }
}

fn add_pod(
    scene: &mut Scene,
    workload: &Value,
    pod: &Value,
    rank: Option<usize>,
    devices: &mut Devices,
) {
    let name = text(&pod["name"]);
    let group = text(&workload["name"]);
    let mut object = objects::pod(&name, Some(&group), &pod["requests"]);
    if let Some(sub) = pod["subgroup"].as_str() {
        objects::annotate(&mut object, "muster.io/sub-group", &json!(sub));
    }
    if let Some(rank) = rank {
        objects::annotate(&mut object, "muster.io/rank", &json!(rank));
    }
    if !pod["gpu_fraction"].is_null() {
        objects::annotate(&mut object, "muster.io/gpu-fraction", &pod["gpu_fraction"]);
    }
    if !pod["gpu_memory_mib"].is_null() {
        objects::annotate(&mut object, "muster.io/gpu-memory", &pod["gpu_memory_mib"]);
    }
    let selector = objects::strings(&pod["node_selector"]);
    if !selector.is_empty() {
        object["spec"]["nodeSelector"] = json!(selector);
    }
    let stand = match pod["node"].as_str() {
        None => Stand::Pending,
        Some(node) => {
            let placed = Placed {
                pod: name.clone(),
                node: node.to_owned(),
                devices: devices.annotation(pod, node),
            };
            if pod["state"] == "releasing" {
                Stand::Leaving(placed)
            } else {
                Stand::Running(placed)
            }
        }
    };
    scene.pod(object, stand);
    if workload["stays_releasing"] == true
        && let Some(member) = scene.members.get_mut(&name)
    {
        member.stays = true;
    }
}
