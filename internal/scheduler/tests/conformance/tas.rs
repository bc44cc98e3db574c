//! Kueue's topology cases: does a workload fit these domains, and in which shape.

use std::collections::{BTreeMap, BTreeSet};

use resources::amounts::Amounts;
use serde_json::{Map, Value, json};

use crate::Outcome;
use crate::cluster::{Cluster, ORDERS, Scene, Stand, amounts, text};
use crate::engine::{Action, Placed};
use crate::objects;

const HOST: &str = "kubernetes.io/hostname";
const QUEUE: &str = "queue";
const GROUP: &str = "workload";

pub fn run(case: &Value) -> Outcome {
    let scene = scene(case);
    let mut worst = Outcome::Pass;
    let mut first = None;
    for order in 0..ORDERS {
        let mut cluster = Cluster::new(&scene, order);
        let decisions = cluster.plan();
        if *first.get_or_insert_with(|| decisions.clone()) != decisions {
            return Outcome::Fail(format!("order {order}: another plan than in order 0"));
        }
        match judge(case, &scene, &cluster) {
            Outcome::Fail(why) => {
                let waits: Vec<&str> = decisions.waits.iter().map(|(_, w)| w.as_str()).collect();
                return Outcome::Fail(format!("order {order}: {why}; {}", waits.join("; ")));
            }
            Outcome::Noted(why) => worst = Outcome::Noted(why),
            Outcome::Pass => {}
        }
    }
    worst
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn levels(case: &Value) -> Vec<String> {
    array(&case["levels"]).map(text).collect()
}

/// Do the domains end at machines, or are machines added up?
fn ends_at_hosts(case: &Value) -> bool {
    levels(case).last().is_some_and(|level| level == HOST)
}

fn feature(case: &Value, name: &str) -> bool {
    case["features"][name] == true
}

/// The values of a node's labels along the levels; none for a node outside the tree.
fn path(levels: &[String], labels: &BTreeMap<String, String>) -> Option<Vec<String>> {
    levels
        .iter()
        .map(|level| labels.get(level).cloned())
        .collect()
}

fn scene(case: &Value) -> Scene {
    let mut scene = Scene::default();
    let levels = levels(case);
    scene.settings.topology = levels.iter().filter(|l| *l != HOST).cloned().collect();
    scene.settings.actions = vec![Action::Allocate];
    if ends_at_hosts(case) {
        for node in array(&case["nodes"]) {
            scene.add(node_object(case, node));
        }
    } else {
        add_pools(&mut scene, case, &levels);
    }
    scene.add(objects::queue(QUEUE, None, 0));
    for pod in array(&case["existing_pods"]) {
        let mut object = objects::pod(&text(&pod["name"]), None, &pod["requests"]);
        object["spec"]["schedulerName"] = json!("another");
        let phase = pod["phase"].as_str().unwrap_or("Pending");
        let over = phase == "Succeeded" || phase == "Failed";
        match pod["node"]
            .as_str()
            .filter(|_| pod["counts"] != false || over)
        {
            Some(node) => object["spec"]["nodeName"] = json!(node_named(case, node)),
            // On no node, or on one that it takes no room of.
            None => continue,
        }
        object["status"] = json!({"phase": phase});
        scene.add(object);
    }
    for (use_, other) in array(&case["used_by_others"]).enumerate() {
        let node = node_in(case, &domain(other)).expect("a node in the domain used");
        for at in 0..other["count"].as_u64().unwrap_or(1) {
            let name = format!("other-{use_}-{at}");
            let mut object = objects::pod(&name, None, &other["requests"]);
            object["spec"]["nodeName"] = json!(node);
            object["status"] = json!({"phase": "Running"});
            scene.add(object);
        }
    }
    add_workload(&mut scene, case);
    scene
}

fn domain(assigned: &Value) -> Vec<String> {
    array(&assigned["domain"]).map(text).collect()
}

fn unhealthy(case: &Value, node: &Value) -> bool {
    let named = |value: &Value| *value == node["name"] || *value == node["labels"][HOST];
    array(&case["workload"]["unhealthy_nodes"]).any(named)
}

fn node_object(case: &Value, node: &Value) -> Value {
    let name = text(&node["name"]);
    let labels = objects::strings(&node["labels"]);
    let mut object = objects::node(&name, &labels, &node["allocatable"]);
    object["spec"]["unschedulable"] = node["unschedulable"].clone();
    if array(&node["taints"]).next().is_some() {
        object["spec"]["taints"] = node["taints"].clone();
    }
    if node["ready"] == false || unhealthy(case, node) {
        object["status"]["conditions"][0]["status"] = json!("False");
    }
    object
}

/// Where machines are added up: one node for each narrowest domain, as large as its machines.
fn add_pools(scene: &mut Scene, case: &Value, levels: &[String]) {
    let mut pools: BTreeMap<Vec<String>, (BTreeMap<String, String>, Amounts)> = BTreeMap::new();
    let wanted = objects::strings(&case["pool"]["node_labels"]);
    for node in array(&case["nodes"]) {
        let labels = objects::strings(&node["labels"]);
        let in_pool = wanted
            .iter()
            .all(|(key, value)| labels.get(key) == Some(value));
        let usable = node["ready"] != false && node["unschedulable"] != true && in_pool;
        let Some(path) = path(levels, &labels).filter(|_| usable) else {
            continue;
        };
        let (_, sum) = pools.entry(path).or_insert((labels, Amounts::new()));
        sum.add(&amounts(&node["allocatable"]));
    }
    for (path, (mut labels, sum)) in pools {
        let name = path.join(".");
        labels.retain(|key, _| levels.contains(key));
        labels.extend(wanted.clone());
        let sum = serde_json::to_value(sum.to_k8s()).unwrap_or_default();
        scene.add(objects::node(&name, &labels, &sum));
    }
}

/// A node by its name or by its hostname label.
fn node_named(case: &Value, name: &str) -> String {
    let found = array(&case["nodes"])
        .find(|node| node["name"] == name || node["labels"][HOST] == name)
        .map(
            |node| match path(&levels(case), &objects::strings(&node["labels"])) {
                Some(path) if !ends_at_hosts(case) => path.join("."),
                _ => text(&node["name"]),
            },
        );
    found.unwrap_or_else(|| name.to_owned())
}

fn node_in(case: &Value, domain: &[String]) -> Option<String> {
    if !ends_at_hosts(case) {
        return Some(domain.join("."));
    }
    let levels = levels(case);
    let tail = &levels[levels.len().checked_sub(domain.len())?..];
    array(&case["nodes"])
        .find(|node| {
            let labels = objects::strings(&node["labels"]);
            path(tail, &labels).is_some_and(|path| path == domain)
        })
        .map(|node| text(&node["name"]))
}

fn request(set: &Value) -> Option<Value> {
    let asked = &set["topology_request"];
    let mut topology = Map::new();
    for key in ["required", "preferred"] {
        if let Some(level) = asked[key].as_str() {
            topology.insert(key.into(), json!(level));
        }
    }
    // A leader that shares its group's domain names a layer without a size for its workers.
    let leads = set["group"].is_string() && set["count"] == 1;
    let slices: Vec<Value> = array(&asked["slice_layers"])
        .filter(|layer| !(leads && layer["size"].is_null()))
        .map(|layer| {
            let mut slice = Map::new();
            slice.insert("level".into(), layer["level"].clone());
            if !layer["size"].is_null() {
                slice.insert("size".into(), layer["size"].clone());
            }
            Value::Object(slice)
        })
        .collect();
    if !slices.is_empty() {
        topology.insert("slices".into(), json!(slices));
    }
    match set["algorithm"].as_str() {
        Some("least-free-capacity") => topology.insert("unconstrained".into(), json!(true)),
        Some("balanced") => topology.insert("balanced".into(), json!(true)),
        _ => None,
    };
    (!topology.is_empty()).then_some(Value::Object(topology))
}

fn add_workload(scene: &mut Scene, case: &Value) {
    let sets: Vec<&Value> = array(&case["pod_sets"]).collect();
    let total: u64 = sets.iter().filter_map(|set| set["count"].as_u64()).sum();
    let mut group = objects::group(GROUP, QUEUE, total, 0);
    let tasks: Map<String, Value> = sets
        .iter()
        .map(|set| (text(&set["name"]), set["count"].clone()))
        .collect();
    group["spec"]["minTaskMember"] = Value::Object(tasks);
    if let [only] = sets.as_slice() {
        if let Some(topology) = request(only) {
            objects::annotate(&mut group, "muster.io/topology", &topology);
        }
    } else {
        let parts = parts(&sets);
        objects::annotate(&mut group, "muster.io/sub-groups", &json!(parts));
    }
    scene.add(group);
    for set in sets.iter().copied() {
        add_pods(scene, case, set, sets.len() > 1);
    }
}

/// Pod sets as sub-groups; those of one group hang below one that has the domain.
fn parts(sets: &[&Value]) -> Vec<Value> {
    let mut parts = Vec::new();
    let mut groups: BTreeSet<String> = BTreeSet::new();
    for set in sets {
        let mut part = json!({"name": set["name"], "minMember": set["count"]});
        let mut topology = request(set);
        if let Some(group) = set["group"].as_str() {
            part["parent"] = json!(group);
            if groups.insert(group.to_owned()) {
                let mut whole = json!({"name": group});
                let mut shared = topology.clone().unwrap_or(json!({}));
                if let Some(shared) = shared.as_object_mut() {
                    shared.remove("slices");
                }
                if shared != json!({}) {
                    whole["topology"] = shared;
                }
                parts.push(whole);
            }
            topology = topology
                .map(|topology| json!({"slices": topology["slices"]}))
                .filter(|topology| !topology["slices"].is_null());
        }
        if let Some(topology) = topology {
            part["topology"] = topology;
        }
        parts.push(part);
    }
    parts
}

fn add_pods(scene: &mut Scene, case: &Value, set: &Value, several: bool) {
    let name = text(&set["name"]);
    let count = set["count"].as_u64().unwrap_or(0) as usize;
    let on_hosts = ends_at_hosts(case);
    let current = match case["kind"].as_str() {
        Some("elastic") => &set["previous_assignment"],
        Some("node-replacement") => &case["workload"]["current_assignment"][&name],
        _ => &Value::Null,
    };
    let stays = case["workload"]["relocatable"] == false;
    let mut seats: Vec<Option<String>> = Vec::new();
    for assigned in array(current) {
        let domain = domain(assigned);
        let node = node_in(case, &domain);
        let lost =
            array(&case["nodes"]).any(|n| Some(text(&n["name"])) == node && unhealthy(case, n));
        let node = node.filter(|_| !lost || stays);
        for _ in 0..assigned["count"].as_u64().unwrap_or(0) {
            seats.push(node.clone());
        }
    }
    if case["kind"] == "elastic" && seats.iter().any(Option::is_none) {
        // A domain that is gone: everything is placed afresh.
        seats.clear();
    }
    // What is cut is the workload's own doing: the last ones go.
    seats.resize(count, None);
    for (at, seat) in seats.into_iter().enumerate() {
        let pod_name = format!("{name}-{at}");
        let mut pod = objects::pod(&pod_name, Some(GROUP), &set["requests"]);
        objects::annotate(&mut pod, resources::names::TASK_SPEC, &json!(name));
        if several {
            objects::annotate(&mut pod, "muster.io/sub-group", &json!(name));
        }
        if on_hosts {
            choose_nodes(&mut pod, case, set);
        }
        let stand = match seat {
            Some(node) => Stand::Running(Placed {
                pod: pod_name,
                node,
                devices: String::new(),
            }),
            None => Stand::Pending,
        };
        scene.pod(pod, stand);
    }
}

/// The pool's and the pod set's own choice of nodes. A pool's nodes have all levels' labels.
fn choose_nodes(pod: &mut Value, case: &Value, set: &Value) {
    let mut selector = objects::strings(&case["pool"]["node_labels"]);
    selector.extend(objects::strings(&set["node_selector"]));
    if !selector.is_empty() {
        pod["spec"]["nodeSelector"] = json!(selector);
    }
    if array(&set["tolerations"]).next().is_some() {
        pod["spec"]["tolerations"] = set["tolerations"].clone();
    }
    let term = |all_of: &Value| {
        let expressions = array(all_of)
            .map(|e| json!({"key": e["key"], "operator": e["op"], "values": e["values"]}));
        expressions.collect::<Vec<Value>>()
    };
    let in_tree: Vec<Value> = levels(case)
        .iter()
        .map(|level| json!({"key": level, "operator": "Exists"}))
        .collect();
    let asked = &set["node_affinity"];
    let mut terms: Vec<Value> = array(&asked["required_any_of"])
        .map(|all_of| {
            let mut expressions = term(all_of);
            expressions.extend(in_tree.clone());
            json!({"matchExpressions": expressions})
        })
        .collect();
    if terms.is_empty() {
        terms.push(json!({"matchExpressions": in_tree}));
    }
    let mut affinity = json!({
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
    });
    if feature(case, "TASRespectNodeAffinityPreferred") {
        let preferred: Vec<Value> = array(&asked["preferred"])
            .map(|p| {
                let expressions = term(&p["all_of"]);
                json!({"weight": p["weight"], "preference": {"matchExpressions": expressions}})
            })
            .collect();
        if !preferred.is_empty() {
            affinity["preferredDuringSchedulingIgnoredDuringExecution"] = json!(preferred);
        }
    }
    pod["spec"]["affinity"] = json!({"nodeAffinity": affinity});
}

type Assignment = BTreeMap<Vec<String>, u64>;

fn assignment(list: &Value) -> Assignment {
    let mut counts = Assignment::new();
    for assigned in array(list) {
        let n = assigned["count"].as_u64().unwrap_or(0);
        *counts.entry(domain(assigned)).or_default() += n;
    }
    counts
}

/// Domains used at each level, and how many pods each narrowest one has, in falling order.
fn shape(assignment: &Assignment, levels: usize) -> (Vec<usize>, Vec<u64>) {
    let wide = |level: usize| {
        let prefixes: BTreeSet<&[String]> = assignment
            .keys()
            .map(|path| &path[..=level.min(path.len() - 1)])
            .collect();
        prefixes.len()
    };
    let mut counts: Vec<u64> = assignment.values().copied().collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    ((0..levels).map(wide).collect(), counts)
}

fn judge(case: &Value, scene: &Scene, cluster: &Cluster) -> Outcome {
    if !cluster.faults.is_empty() {
        return Outcome::Fail(cluster.faults.join(", "));
    }
    let levels = levels(case);
    let domains: BTreeMap<String, Vec<String>> = scene
        .objects
        .iter()
        .filter(|object| object["kind"] == "Node")
        .filter_map(|node| {
            let labels = objects::strings(&node["metadata"]["labels"]);
            Some((text(&node["metadata"]["name"]), path(&levels, &labels)?))
        })
        .collect();
    let mut have: BTreeMap<String, Assignment> = BTreeMap::new();
    let mut waiting = 0;
    let mut new = 0;
    for (name, member) in &cluster.members {
        let set = name.rsplit_once('-').map_or(name.as_str(), |(set, _)| set);
        let Stand::Running(placed) = &member.stand else {
            waiting += 1;
            continue;
        };
        new += usize::from(scene.members[name].stand == Stand::Pending);
        let Some(domain) = domains.get(&placed.node) else {
            return Outcome::Fail(format!("{name} is on {}, outside the tree", placed.node));
        };
        // The expected domains of one-level trees and of previous assignments may be short.
        *have
            .entry(set.to_owned())
            .or_default()
            .entry(domain.clone())
            .or_default() += 1;
    }
    let expect = &case["expect"];
    if expect["fits"] == false {
        return match new {
            0 => Outcome::Pass,
            n => Outcome::Fail(format!(
                "{n} placed, wanted none ({})",
                text(&expect["reason"])
            )),
        };
    }
    if waiting > 0 {
        return Outcome::Fail(format!("{waiting} wait, wanted all placed"));
    }
    if let Err(broken) = valid(case, &levels, &have) {
        return Outcome::Fail(broken);
    }
    let mut answers = [&expect["assignments"]]
        .into_iter()
        .chain(array(&expect["alternatives"]));
    let same = answers.any(|answer| {
        have.iter()
            .all(|(set, mine)| assignment(&answer[set]) == *mine)
    });
    if same {
        return Outcome::Pass;
    }
    let wanted = &expect["assignments"];
    for (set, mine) in &have {
        let listed = assignment(&wanted[set]);
        let (want, is) = (shape(&listed, levels.len()), shape(mine, levels.len()));
        if want != is {
            return Outcome::Fail(format!(
                "{set}: domains {:?} counts {:?} ({}), wanted {:?} {:?} ({})",
                is.0,
                is.1,
                brief(mine),
                want.0,
                want.1,
                brief(&listed),
            ));
        }
    }
    Outcome::Pass
}

fn brief(assignment: &Assignment) -> String {
    let parts = assignment
        .iter()
        .take(8)
        .map(|(path, n)| format!("{}:{n}", path.join("/")));
    parts.collect::<Vec<_>>().join(" ")
}

/// Are the required domains and the slices kept?
fn valid(
    case: &Value,
    levels: &[String],
    have: &BTreeMap<String, Assignment>,
) -> Result<(), String> {
    let depth = |level: &Value| levels.iter().position(|known| level == known);
    let mut grouped: BTreeMap<String, (usize, Assignment)> = BTreeMap::new();
    for set in array(&case["pod_sets"]) {
        let name = text(&set["name"]);
        let Some(mine) = have.get(&name) else {
            continue;
        };
        let asked = &set["topology_request"];
        if let Some(depth) = depth(&asked["required"]) {
            let group = set["group"]
                .as_str()
                .map_or(name.clone(), |g| format!("group {g}"));
            let (_, all) = grouped.entry(group).or_insert((depth, Assignment::new()));
            for (path, n) in mine {
                *all.entry(path.clone()).or_default() += n;
            }
        }
        let leads = set["group"].is_string() && set["count"] == 1;
        for layer in array(&asked["slice_layers"]).filter(|_| !leads) {
            let (Some(depth), Some(size)) = (depth(&layer["level"]), layer["size"].as_u64()) else {
                continue;
            };
            let mut sums: BTreeMap<&[String], u64> = BTreeMap::new();
            for (path, n) in mine {
                *sums.entry(&path[..=depth]).or_default() += n;
            }
            if let Some((path, n)) = sums.iter().find(|(_, n)| **n % size != 0) {
                return Err(format!(
                    "{n} of {name} in {}: no multiple of {size}",
                    path.join("/")
                ));
            }
        }
    }
    for (name, (depth, all)) in grouped {
        if shape(&all, levels.len()).0[depth] != 1 {
            return Err(format!("{name} is in several domains: {}", brief(&all)));
        }
    }
    Ok(())
}
