//! Cases of Volcano's allocate action: which pods are bound, and how many.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::Outcome;
use crate::cluster::{Cluster, ORDERS, Scene, Stand, text};
use crate::engine::{Action, Placed, Placing};
use crate::objects;

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
        let outcome = judge(case, &cluster, &decisions.binds);
        match outcome {
            Outcome::Fail(why) => {
                let waits = decisions.waits.iter().map(|(_, why)| why.as_str());
                let waits: Vec<&str> = waits.collect();
                return Outcome::Fail(format!("order {order}: {why}; {}", waits.join("; ")));
            }
            Outcome::Noted(_) => worst = outcome,
            Outcome::Pass => {}
        }
    }
    worst
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Tiers as they occur, narrowest first: Muster counts them from 1.
fn tiers(case: &Value) -> Vec<i64> {
    let found: BTreeSet<i64> = array(&case["hypernodes"])
        .filter_map(|domain| domain["tier"].as_i64())
        .collect();
    found.into_iter().collect()
}

fn tier_key(tier: i64) -> String {
    format!("example.com/tier-{tier}")
}

/// A case's limit in tiers counted from 1: how many of the tiers that occur it allows.
fn topology(limits: &Value, tiers: &[i64]) -> Option<Value> {
    let mode = limits["mode"].as_str()?;
    let highest = limits["highest_tier_allowed"].as_i64();
    let allowed = highest.map(|highest| tiers.iter().filter(|tier| **tier <= highest).count());
    Some(json!({"mode": mode, "highestTierAllowed": allowed}))
}

/// How nodes are ranked: fuller ones first by `binpack`, or by `nodeorder` where its arguments
/// give more to the most than to the least requested; emptier ones where they say the opposite.
fn placing(case: &Value) -> Placing {
    let weight = |plugin: &Value, name: &str| {
        let given = &plugin["arguments"][name];
        let text = given.as_str().and_then(|text| text.parse().ok());
        given.as_f64().or(text)
    };
    let mut balance = None;
    for plugin in array(&case["plugins"]) {
        let part = match plugin["name"].as_str() {
            Some("binpack") => Some(weight(plugin, "binpack.weight").unwrap_or(1.0)),
            Some("nodeorder") => {
                let least = weight(plugin, "leastrequested.weight");
                let most = weight(plugin, "mostrequested.weight");
                least
                    .or(most)
                    .map(|_| most.unwrap_or(0.0) - least.unwrap_or(0.0))
            }
            _ => None,
        };
        if let Some(part) = part {
            *balance.get_or_insert(0.0) += part;
        }
    }
    match balance {
        Some(more) if more > 0.0 => Placing::Pack,
        Some(less) if less < 0.0 => Placing::Spread,
        _ => Placing::Default,
    }
}

fn scene(case: &Value) -> Scene {
    let mut scene = Scene::default();
    let tiers = tiers(case);
    scene.settings.topology = tiers.iter().rev().map(|tier| tier_key(*tier)).collect();
    scene.settings.actions = vec![Action::Allocate];
    scene.settings.placing = placing(case);
    for node in array(&case["nodes"]) {
        let name = text(&node["name"]);
        let mut labels = objects::strings(&node["labels"]);
        labels.insert("kubernetes.io/hostname".into(), name.clone());
        for domain in array(&case["hypernodes"]) {
            if array(&domain["nodes"]).any(|member| *member == json!(name)) {
                let tier = domain["tier"].as_i64().unwrap_or_default();
                labels.insert(tier_key(tier), text(&domain["name"]));
            }
        }
        scene.add(objects::node(&name, &labels, &node["allocatable"]));
    }
    for queue in array(&case["queues"]) {
        let mut object = objects::queue(&text(&queue["name"]), None, 0);
        object["spec"]["weight"] = queue["weight"].clone();
        if !queue["capability"].is_null() {
            object["spec"]["capability"] = queue["capability"].clone();
        }
        scene.add(object);
    }
    for group in array(&case["pod_groups"]) {
        let min = group["min_member"].as_u64().unwrap_or(0);
        let name = text(&group["name"]);
        let mut object = objects::group(&name, &text(&group["queue"]), min, 0);
        if group["min_task_member"]
            .as_object()
            .is_some_and(|tasks| !tasks.is_empty())
        {
            object["spec"]["minTaskMember"] = group["min_task_member"].clone();
        }
        if let Some(limits) = topology(&group["network_topology"], &tiers) {
            object["spec"]["networkTopology"] = limits;
        }
        let policies: Vec<Value> = array(&group["sub_groups"])
            .map(|sub| {
                let mut policy = json!({
                    "name": sub["name"],
                    "subGroupSize": sub["size"],
                    "minSubGroups": sub["min_sub_groups"],
                    "matchLabelKeys": sub["match_label_keys"],
                });
                if let Some(limits) = topology(&sub["network_topology"], &tiers) {
                    policy["networkTopology"] = limits;
                }
                policy
            })
            .collect();
        if !policies.is_empty() {
            object["spec"]["subGroupPolicy"] = json!(policies);
        }
        scene.add(object);
    }
    for pod in array(&case["pods"]) {
        let name = short(&text(&pod["name"]));
        let mut object = objects::pod(&name, pod["group"].as_str(), &pod["requests"]);
        object["metadata"]["labels"] = pod["labels"].clone();
        if let Some(task) = pod["task"].as_str() {
            objects::annotate(&mut object, resources::names::TASK_SPEC, &json!(task));
        }
        if pod["node_selector"]
            .as_object()
            .is_some_and(|selector| !selector.is_empty())
        {
            object["spec"]["nodeSelector"] = pod["node_selector"].clone();
        }
        if let Some(group) = array(&case["pod_groups"]).find(|one| one["name"] == pod["group"])
            && group["phase"] == "pending"
        {
            // Not let in yet.
            object["spec"]["schedulingGates"] = json!([{"name": "example.com/not-let-in"}]);
        }
        let stand = match pod["node"].as_str() {
            Some(node) => Stand::Running(Placed {
                pod: name.clone(),
                node: node.to_owned(),
                devices: String::new(),
            }),
            None => Stand::Pending,
        };
        scene.pod(object, stand);
    }
    scene
}

/// Names are unique without their namespaces in every case; all live in one namespace here.
fn short(name: &str) -> String {
    name.rsplit('/').next().unwrap_or(name).to_owned()
}

fn judge(case: &Value, cluster: &Cluster, binds: &[Placed]) -> Outcome {
    if !cluster.faults.is_empty() {
        return Outcome::Fail(cluster.faults.join(", "));
    }
    if let Some(broken) = broken_limit(case, cluster) {
        return Outcome::Fail(broken);
    }
    let pending = array(&case["pods"])
        .filter(|pod| pod["state"] == "pending")
        .count();
    let wanted = case["expect"]["bind_count"].as_u64().unwrap_or(0) as usize;
    let facts: BTreeMap<String, &Value> = array(&case["pods"])
        .map(|pod| (short(&text(&pod["name"])), pod))
        .collect();
    if let Some(bindings) = case["expect"]["bindings"].as_object() {
        let kind = |pod: &str, node: &str| {
            let fact = facts.get(pod);
            let part = |key: &str| fact.map(|fact| fact[key].to_string());
            (
                part("group"),
                part("task"),
                part("requests"),
                node.to_owned(),
            )
        };
        let mut want: Vec<_> = bindings
            .iter()
            .map(|(pod, node)| kind(&short(pod), &text(node)))
            .collect();
        let mut have: Vec<_> = binds
            .iter()
            .map(|bind| kind(&bind.pod, &bind.node))
            .collect();
        want.sort();
        have.sort();
        if want == have {
            return Outcome::Pass;
        }
        return Outcome::Fail(format!("bound {have:?}, wanted {want:?}"));
    }
    if let Some(want) = case["expect"]["bind_counts_per_tier1_hypernode"].as_array() {
        let mut have: Vec<u64> = array(&case["hypernodes"])
            .filter(|domain| domain["tier"] == 1)
            .map(|domain| {
                let inside = |bind: &&Placed| array(&domain["nodes"]).any(|n| *n == bind.node);
                binds.iter().filter(inside).count() as u64
            })
            .collect();
        have.sort_unstable();
        let mut want: Vec<u64> = want.iter().filter_map(Value::as_u64).collect();
        want.sort_unstable();
        have.retain(|n| *n > 0);
        want.retain(|n| *n > 0);
        if have != want {
            return Outcome::Fail(format!("per lowest domain {have:?}, wanted {want:?}"));
        }
    }
    match binds.len() {
        n if n == wanted => Outcome::Pass,
        n if n > wanted && wanted > 0 && wanted < pending => {
            Outcome::Noted(format!("{n} bound where upstream binds {wanted}"))
        }
        n => Outcome::Fail(format!("{n} bound, wanted {wanted}")),
    }
}

/// Is a hard limit broken by the pods that are on nodes now?
fn broken_limit(case: &Value, cluster: &Cluster) -> Option<String> {
    for group in array(&case["pod_groups"]) {
        let mine: Vec<&Value> = array(&case["pods"])
            .filter(|pod| pod["group"] == group["name"])
            .collect();
        if let Some(broken) = beyond(case, cluster, &mine, &group["network_topology"]) {
            return Some(broken);
        }
        for sub in array(&group["sub_groups"]) {
            let keys: Vec<String> = array(&sub["match_label_keys"]).map(text).collect();
            let mut parts: BTreeMap<Vec<String>, Vec<&Value>> = BTreeMap::new();
            for pod in &mine {
                let values: Option<Vec<String>> = keys
                    .iter()
                    .map(|key| pod["labels"][key].as_str().map(str::to_owned))
                    .collect();
                if let Some(values) = values {
                    parts.entry(values).or_default().push(pod);
                }
            }
            let broken = parts
                .values()
                .find_map(|part| beyond(case, cluster, part, &sub["network_topology"]));
            if broken.is_some() {
                return broken;
            }
        }
    }
    None
}

fn beyond(case: &Value, cluster: &Cluster, pods: &[&Value], limits: &Value) -> Option<String> {
    if limits["mode"] != "hard" {
        return None;
    }
    let highest = limits["highest_tier_allowed"].as_i64()?;
    let nodes: BTreeSet<&str> = pods
        .iter()
        .filter_map(
            |pod| match &cluster.members.get(&short(&text(&pod["name"])))?.stand {
                Stand::Running(placed) => Some(placed.node.as_str()),
                _ => None,
            },
        )
        .collect();
    let holds = |domain: &Value| {
        domain["tier"].as_i64().is_some_and(|tier| tier <= highest)
            && nodes
                .iter()
                .all(|node| array(&domain["nodes"]).any(|member| member == node))
    };
    if nodes.len() <= 1 || array(&case["hypernodes"]).any(holds) {
        return None;
    }
    Some(format!(
        "spread over {nodes:?}, beyond the hard tier {highest}"
    ))
}
