//! Compares where pods stand with what a case asserts. Workloads, pods and nodes that the case does not tell apart stand
//! in for each other.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::array;
use super::gpus::{node_gpus, shared_gpus};
use super::outcome::{Seen, Status};
use crate::cluster::{Cluster, Scene, Stand, text};
use crate::engine::Placed;
use crate::objects;

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

pub(super) fn compare(
    case: &Value,
    scene: &Scene,
    cluster: &Cluster,
    seen: &Seen,
) -> Result<(), String> {
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
