//! KAI Scheduler's cases: which pods run, wait or are evicted, and whether it stays so.
//! `action/` cases are one plan with one action; `cycle/` cases are rounds until nothing moves.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::Outcome;
use crate::cluster::{Cluster, ORDERS, Scene, Stand, amounts, names, text};
use crate::engine::{Action, Decisions, Placed, Placing};
use crate::objects;

/// Rounds beyond the case's own before its state is compared: later is as good.
const SLACK: u64 = 10;
/// More than any cluster here has: a quota without bounds.
const UNLIMITED: [(&str, &str); 4] = [
    ("cpu", "100000000"),
    ("memory", "1000Ti"),
    ("nvidia.com/gpu", "1000000"),
    ("pods", "1000000"),
];
const GPU: &str = "nvidia.com/gpu";

pub fn run(case: &Value) -> Outcome {
    let scene = scene(case);
    let mut first = None;
    for order in 0..ORDERS {
        let plan = Cluster::new(&scene, order).plan();
        if *first.get_or_insert_with(|| plan.clone()) != plan {
            return Outcome::Fail(format!("order {order}: another plan than in order 0"));
        }
        let result = if text(&case["id"]).starts_with("cycle/") {
            rounds(case, &scene, order)
        } else {
            session(case, &scene, order)
        };
        if let Err(why) = result {
            return Outcome::Fail(format!("order {order}: {why}"));
        }
    }
    Outcome::Pass
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// One plan with one action.
fn session(case: &Value, scene: &Scene, order: u64) -> Result<(), String> {
    let mut cluster = Cluster::new(scene, order);
    let decisions = cluster.plan();
    let seen = Seen::of(scene, &cluster, &decisions);
    let result =
        checked(&cluster, case, &decisions).and_then(|()| compare(case, scene, &cluster, &seen));
    result.map_err(|why| format!("{why}; {}", told(&decisions)))
}

/// Rounds until the state is the case's, and then some.
fn rounds(case: &Value, scene: &Scene, order: u64) -> Result<(), String> {
    let mut cluster = Cluster::new(scene, order);
    let first = case["rounds"].as_u64().unwrap_or(1) + SLACK;
    let last = first + case["stable_rounds"].as_u64().unwrap_or(0);
    let mut past = String::new();
    for round in 1..=last {
        let decisions = cluster.plan();
        note(&mut past, round, &decisions);
        checked(&cluster, case, &decisions).map_err(|why| format!("round {round}: {why}"))?;
        if round >= first {
            let seen = Seen::of(scene, &cluster, &decisions);
            compare(case, scene, &cluster, &seen)
                .map_err(|why| format!("round {round}: {why}; {past}{}", told(&decisions)))?;
        }
        cluster.pass(&decisions);
    }
    Ok(())
}

/// Keeps what a round decided, in short, for when the end is not as wanted.
fn note(past: &mut String, round: u64, decisions: &Decisions) {
    const LONGEST: usize = 600;
    let binds = decisions
        .binds
        .iter()
        .map(|placed| format!("{} to {}", placed.pod, placed.node));
    let evictions = decisions
        .evictions
        .iter()
        .map(|evicted| format!("{} {}", evicted.pod, evicted.why));
    let all: Vec<String> = binds.chain(evictions).collect();
    if !all.is_empty() && past.len() < LONGEST {
        past.push_str(&format!("[{round}: {}] ", all.join(", ")));
    }
}

fn checked(cluster: &Cluster, case: &Value, decisions: &Decisions) -> Result<(), String> {
    if !cluster.faults.is_empty() {
        return Err(cluster.faults.join(", "));
    }
    let bound = case["expect"]["max_per_round"]["evictions"].as_u64();
    if bound == Some(0) && !decisions.evictions.is_empty() {
        return Err(format!("evicts {:?}, wanted nobody", decisions.evictions));
    }
    Ok(())
}

fn told(decisions: &Decisions) -> String {
    let evicted = decisions
        .evictions
        .iter()
        .map(|e| format!("{} {}", e.pod, e.why));
    let waits = decisions
        .waits
        .iter()
        .map(|(group, why)| format!("{group}: {why}"));
    let all: Vec<String> = evicted.chain(waits).collect();
    all.join("; ")
}

// ---- the scene ----

fn scene(case: &Value) -> Scene {
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

fn gpus(node: &Value) -> u64 {
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

// ---- the comparison ----

/// Where a pod stands, in the cases' words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Status {
    Running,
    Nominated,
    Releasing,
    Pending,
}

/// What became of the case's pods.
struct Seen {
    pods: BTreeMap<String, (Status, Option<Placed>)>,
}

impl Seen {
    fn of(scene: &Scene, cluster: &Cluster, decisions: &Decisions) -> Seen {
        let nominated = names(&decisions.nominated);
        let moved: BTreeSet<&String> = decisions
            .evictions
            .iter()
            .filter(|evicted| evicted.why == "Consolidated")
            .map(|evicted| &evicted.pod)
            .collect();
        let held = |name: &String| {
            let mut held = decisions.nominated.iter();
            held.find(|placed| placed.pod == *name).cloned()
        };
        let pods = cluster.members.iter().map(|(name, member)| {
            let status = match &member.stand {
                Stand::Running(placed) => (Status::Running, Some(placed.clone())),
                _ if nominated.contains(name) => (Status::Nominated, held(name)),
                Stand::Leaving(_) if moved.contains(name) => (Status::Nominated, None),
                Stand::Leaving(_) => (Status::Releasing, None),
                Stand::Pending => (Status::Pending, None),
            };
            (name.clone(), status)
        });
        debug_assert_eq!(scene.members.len(), cluster.members.len());
        Seen {
            pods: pods.collect(),
        }
    }

    fn of_workload(&self, workload: &Value) -> Vec<(&str, Status, Option<&Placed>)> {
        let pods = array(&workload["pods"]).filter_map(|pod| {
            let (name, (status, placed)) = self.pods.get_key_value(pod["name"].as_str()?)?;
            Some((name.as_str(), *status, placed.as_ref()))
        });
        pods.collect()
    }
}

/// What makes workloads interchangeable: everything but name, age and nodes.
fn likeness(workload: &Value) -> String {
    let mut pods: Vec<String> = array(&workload["pods"]).map(pod_likeness).collect();
    pods.sort();
    let parts = [
        "queue",
        "priority",
        "preemptible",
        "min_member",
        "subgroups",
    ];
    let parts: Vec<String> = parts.iter().map(|key| workload[key].to_string()).collect();
    let more = [&workload["topology_request"], &workload["stays_releasing"]];
    format!("{parts:?} {more:?} {pods:?}")
}

fn pod_likeness(pod: &Value) -> String {
    let keys = [
        "requests",
        "gpu_fraction",
        "gpu_memory_mib",
        "subgroup",
        "state",
        "node_selector",
        "order_priority",
    ];
    let parts: Vec<String> = keys.iter().map(|key| pod[key].to_string()).collect();
    parts.join(" ")
}

fn compare(case: &Value, scene: &Scene, cluster: &Cluster, seen: &Seen) -> Result<(), String> {
    let mut classes: BTreeMap<String, Vec<&Value>> = BTreeMap::new();
    for workload in array(&case["workloads"]) {
        classes
            .entry(likeness(workload))
            .or_default()
            .push(workload);
    }
    let nodes = node_likeness(case, scene);
    for class in classes.values() {
        let wanted: Vec<&Value> = class
            .iter()
            .filter(|w| !case["expect"]["workloads"][text(&w["name"])].is_null())
            .copied()
            .collect();
        let fits = |want: &Value, have: &Value| meets(case, want, &seen.of_workload(have), &nodes);
        // By name first, so that what is wrong is told of the right one.
        let wrong = wanted.iter().find_map(|w| fits(w, w).err());
        if let Some(wrong) = wrong
            && !assign(&wanted, class, &|want, have| fits(want, have).is_ok())
        {
            return Err(wrong);
        }
    }
    evicted(case, seen)?;
    shared_gpus(case, seen)?;
    node_gpus(case, cluster, seen)
}

/// Can every wanted outcome be met by a workload of its own? Matching by augmenting paths.
fn assign(wanted: &[&Value], having: &[&Value], fits: &dyn Fn(&Value, &Value) -> bool) -> bool {
    fn place(
        want: usize,
        edges: &[Vec<bool>],
        taken: &mut [Option<usize>],
        tried: &mut [bool],
    ) -> bool {
        for have in 0..taken.len() {
            if !edges[want][have] || std::mem::replace(&mut tried[have], true) {
                continue;
            }
            let free = match taken[have] {
                None => true,
                Some(other) => place(other, edges, taken, tried),
            };
            if free {
                taken[have] = Some(want);
                return true;
            }
        }
        false
    }
    let edges: Vec<Vec<bool>> = wanted
        .iter()
        .map(|want| having.iter().map(|have| fits(want, have)).collect())
        .collect();
    let mut taken = vec![None; having.len()];
    (0..wanted.len()).all(|want| {
        let mut tried = vec![false; having.len()];
        place(want, &edges, &mut taken, &mut tried)
    })
}

/// Does a workload stand as another one is wanted to?
fn meets(
    case: &Value,
    wanted: &Value,
    have: &[(&str, Status, Option<&Placed>)],
    nodes: &BTreeMap<String, String>,
) -> Result<(), String> {
    let name = text(&wanted["name"]);
    let want = &case["expect"]["workloads"][&name];
    let count = |status: Status| have.iter().filter(|(_, is, _)| *is == status).count() as u64;
    let found = format!(
        "{name}: {} running, {} nominated, {} releasing, {} pending",
        count(Status::Running),
        count(Status::Nominated),
        count(Status::Releasing),
        count(Status::Pending),
    );
    let wrong = || {
        Err(format!(
            "{found}; wanted {} ({} running, {} nominated)",
            text(&want["status"]),
            want["running_pods"],
            want["nominated_pods"],
        ))
    };
    let whole = want["running_pods"].is_u64();
    if whole && want["running_pods"].as_u64() != Some(count(Status::Running)) {
        return wrong();
    }
    let one_plan = !text(&case["id"]).starts_with("cycle/");
    if one_plan
        && want["nominated_pods"].is_u64()
        && want["nominated_pods"].as_u64() != Some(count(Status::Nominated))
    {
        return wrong();
    }
    let total = have.len() as u64;
    let as_wanted = match want["status"].as_str() {
        Some("running") => !whole || count(Status::Running) == total,
        Some("releasing") => !whole || count(Status::Releasing) == total,
        Some("pending") => !whole || count(Status::Releasing) + count(Status::Running) == 0,
        _ => true,
    };
    if !as_wanted {
        return wrong();
    }
    // Pods of a gang stand in for each other.
    let single = |status: &str| {
        let pods = want["pods"].as_object().into_iter().flatten();
        pods.filter(|(_, pod)| pod["status"] == status).count() as u64
    };
    let enough = single("running") <= count(Status::Running)
        && single("releasing") <= count(Status::Releasing)
        && single("pending") <= count(Status::Pending) + count(Status::Nominated);
    if !enough {
        return wrong();
    }
    if case["policy"]["placement"]["nodes"].is_null() || !want["nodes"].is_array() {
        return Ok(());
    }
    let like = |node: &String| nodes.get(node).cloned().unwrap_or_default();
    let used: BTreeSet<&String> = have
        .iter()
        .filter_map(|(_, _, placed)| placed.map(|placed| &placed.node))
        .collect();
    let mut is: Vec<String> = used.iter().map(|node| like(node)).collect();
    let asserted: BTreeSet<String> = array(&want["nodes"]).map(text).collect();
    let mut should: Vec<String> = asserted.iter().map(like).collect();
    is.sort();
    should.sort();
    let moved_unseen = have
        .iter()
        .any(|(_, status, placed)| *status == Status::Nominated && placed.is_none());
    let same = if whole {
        is == should
    } else {
        should.iter().all(|node| is.contains(node))
    };
    if same || moved_unseen {
        Ok(())
    } else {
        Err(format!("{name} is on {used:?}, wanted {asserted:?}"))
    }
}

/// What makes nodes interchangeable: room, labels that are asked for, what runs there, and the
/// like of the domains that they are in.
fn node_likeness(case: &Value, scene: &Scene) -> BTreeMap<String, String> {
    let mut by_pod: BTreeMap<String, String> = BTreeMap::new();
    let mut selected: BTreeSet<String> = BTreeSet::new();
    for workload in array(&case["workloads"]) {
        for pod in array(&workload["pods"]) {
            by_pod.insert(text(&pod["name"]), pod_likeness(pod) + &likeness(workload));
            selected.extend(objects::strings(&pod["node_selector"]).into_keys());
        }
    }
    let mut own: BTreeMap<String, String> = BTreeMap::new();
    for node in array(&case["nodes"]) {
        let name = text(&node["name"]);
        let mut here: Vec<&str> = scene
            .members
            .iter()
            .filter(|(_, member)| match &member.stand {
                Stand::Running(placed) | Stand::Leaving(placed) => placed.node == name,
                Stand::Pending => false,
            })
            .filter_map(|(pod, _)| by_pod.get(pod).map(String::as_str))
            .collect();
        here.sort_unstable();
        let labels: Vec<&Value> = selected.iter().map(|key| &node["labels"][key]).collect();
        let like = format!(
            "{} {} {labels:?} {here:?}",
            node["allocatable"], node["mig"]
        );
        own.insert(name, like);
    }
    // Outwards: a node is also what its domains are.
    let mut like = own.clone();
    for level in array(&case["topology"]["levels"]).map(text) {
        let mut domains: BTreeMap<String, Vec<&String>> = BTreeMap::new();
        for node in array(&case["nodes"]) {
            let domain = node["labels"][&level].to_string();
            domains
                .entry(domain)
                .or_default()
                .push(&own[&text(&node["name"])]);
        }
        for node in array(&case["nodes"]) {
            let mut members = domains[&node["labels"][&level].to_string()].clone();
            members.sort();
            let name = text(&node["name"]);
            if let Some(like) = like.get_mut(&name) {
                like.push_str(&format!(" | {members:?}"));
            }
        }
    }
    like
}

/// As many pods of each kind must have left their place as are asserted to have.
fn evicted(case: &Value, seen: &Seen) -> Result<(), String> {
    let mut wanted: BTreeMap<String, (usize, String)> = BTreeMap::new();
    let mut gone: BTreeMap<String, usize> = BTreeMap::new();
    let listed: BTreeSet<String> = array(&case["expect"]["evicted_pods"]).map(text).collect();
    for workload in array(&case["workloads"]) {
        for pod in array(&workload["pods"]) {
            let name = text(&pod["name"]);
            let kind = pod_likeness(pod) + &likeness(workload);
            if listed.contains(&name) {
                let entry = wanted.entry(kind.clone()).or_insert((0, name.clone()));
                entry.0 += 1;
            }
            let stays = match seen.pods.get(&name) {
                Some((Status::Running, Some(placed))) => pod["node"] == placed.node,
                _ => false,
            };
            if pod["state"] == "running" && !stays {
                *gone.entry(kind).or_default() += 1;
            }
        }
    }
    for (kind, (count, name)) in wanted {
        let left = gone.get(&kind).copied().unwrap_or(0);
        if left < count {
            return Err(format!(
                "{left} like {name} left their place, wanted {count}"
            ));
        }
    }
    Ok(())
}

/// Who shares a GPU with whom, where it is asserted.
fn shared_gpus(case: &Value, seen: &Seen) -> Result<(), String> {
    if case["policy"]["placement"]["gpus"].is_null() {
        return Ok(());
    }
    let mut wanted: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    let mut have: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for workload in array(&case["workloads"]) {
        let want = &case["expect"]["workloads"][text(&workload["name"])]["pods"];
        for pod in array(&workload["pods"]) {
            let name = text(&pod["name"]);
            let asserted = &want[&name];
            let Some(label) = asserted["gpu_ids"].get(0).map(text) else {
                continue;
            };
            let Some((_, Some(placed))) = seen.pods.get(&name) else {
                continue;
            };
            let kind = format!("{} {}", pod["gpu_fraction"], pod["gpu_memory_mib"]);
            // Of a pod that has only a place held, the GPU is asserted and not the node.
            let node = asserted["node"].as_str().unwrap_or(&placed.node);
            wanted
                .entry((node.to_owned(), label))
                .or_default()
                .push(kind.clone());
            let device = format!("{} {}", placed.node, placed.devices);
            have.entry(device).or_default().push(kind);
        }
    }
    let sorted = |groups: Vec<Vec<String>>| {
        let mut groups = groups;
        groups.iter_mut().for_each(|group| group.sort());
        groups.sort();
        groups
    };
    let wanted = sorted(wanted.into_values().collect());
    let have = sorted(have.into_values().collect());
    if wanted == have {
        Ok(())
    } else {
        Err(format!("GPUs are shared as {have:?}, wanted {wanted:?}"))
    }
}

/// The devices that an annotation names.
fn ids(annotation: &str) -> Vec<String> {
    let chosen: Value = serde_json::from_str(annotation).unwrap_or_default();
    let containers = chosen.as_object().into_iter().flatten();
    let lists = containers.flat_map(|(_, by_resource)| array(&by_resource[GPU]));
    lists.map(text).collect()
}

/// Idle and releasing GPUs, and GPUs given to a workload, where asserted.
fn node_gpus(case: &Value, cluster: &Cluster, seen: &Seen) -> Result<(), String> {
    for (node, want) in case["expect"]["node_gpus"]
        .as_object()
        .into_iter()
        .flatten()
    {
        let total = array(&case["nodes"])
            .find(|n| n["name"] == *node)
            .map_or(0, gpus);
        // By device: a GPU that somebody still runs on is not releasing.
        let mut held: BTreeSet<String> = BTreeSet::new();
        let mut left: BTreeSet<String> = BTreeSet::new();
        for (name, member) in &cluster.members {
            let (Stand::Running(placed) | Stand::Leaving(placed)) = &member.stand else {
                continue;
            };
            if placed.node != *node {
                continue;
            }
            let into = if matches!(member.stand, Stand::Running(_)) {
                &mut held
            } else {
                &mut left
            };
            let requests = &member.manifest["spec"]["containers"][0]["resources"]["requests"];
            let unnamed = amounts(requests).get(GPU).unsigned_abs();
            match ids(&placed.devices) {
                known if !known.is_empty() => into.extend(known),
                _ => into.extend((0..unnamed).map(|i| format!("{name} {i}"))),
            }
        }
        let idle = total.saturating_sub(held.union(&left).count() as u64);
        let leaving = left.difference(&held).count() as u64;
        let differs = |key: &str, is: u64| want[key].as_f64().is_some_and(|n| n != is as f64);
        if differs("idle", idle) || differs("releasing", leaving) {
            return Err(format!(
                "{node}: {idle} GPUs idle, {leaving} releasing, wanted {want}"
            ));
        }
    }
    for workload in array(&case["workloads"]) {
        let want = &case["expect"]["workloads"][text(&workload["name"])]["gpus_accepted"];
        let Some(want) = want
            .as_str()
            .and_then(|n| n.parse::<f64>().ok())
            .or(want.as_f64())
        else {
            continue;
        };
        let memory = |node: Option<&String>| {
            let of = |at: &Value| at["gpu_memory_mib"].as_f64();
            let on = array(&case["nodes"]).find(|at| node.is_some_and(|name| at["name"] == **name));
            let first = || array(&case["nodes"]).find_map(of);
            on.and_then(of).or_else(first).unwrap_or(100.0)
        };
        let given: f64 = array(&workload["pods"])
            .filter(|pod| {
                let status = seen
                    .pods
                    .get(&text(&pod["name"]))
                    .map(|(status, _)| *status);
                matches!(status, Some(Status::Running | Status::Nominated))
            })
            .map(|pod| {
                let whole = text(&pod["requests"][GPU]).parse().unwrap_or(0.0);
                let part = pod["gpu_fraction"].as_f64();
                let placed = seen.pods.get(&text(&pod["name"]));
                let node = placed.and_then(|(_, placed)| placed.as_ref());
                let memory = memory(node.map(|placed| &placed.node));
                let part = part.or(pod["gpu_memory_mib"].as_f64().map(|mib| mib / memory));
                part.unwrap_or(whole)
            })
            .sum();
        if (given - want).abs() > 1e-6 {
            return Err(format!(
                "{} was given {given} GPUs, wanted {want}",
                workload["name"]
            ));
        }
    }
    Ok(())
}
