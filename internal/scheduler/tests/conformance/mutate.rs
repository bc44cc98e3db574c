//! Cases with something changed that no answer may depend on: names, the order of lists, units,
//! what is there and takes no part. Each keeps its own expectation.

use std::collections::{BTreeMap, BTreeSet};

use resources::amounts::Amounts;
use resources::quantity::Quantity;
use serde_json::{Map, Value, json};

use crate::cluster::text;

/// Each way in which a case can be told differently, with a word on it.
pub fn all(suite: &str, case: &Value) -> Vec<(&'static str, Value)> {
    let mut all = vec![("other names", renamed(suite, case))];
    match suite {
        "kai" => kai(case, &mut all),
        "kueue-tas" => tas(case, &mut all),
        "kueue-preemption" => preemption(case, &mut all),
        _ => volcano(case, &mut all),
    }
    all
}

fn with(case: &Value, change: impl FnOnce(&mut Value)) -> Value {
    let mut other = case.clone();
    change(&mut other);
    other
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn array_mut(value: &mut Value) -> impl Iterator<Item = &mut Value> {
    value.as_array_mut().into_iter().flatten()
}

fn reverse(value: &mut Value) {
    if let Some(list) = value.as_array_mut() {
        list.reverse();
    }
}

// ---- names ----

/// Every name becomes another one, so that their order is the other way round. Where nothing else
/// tells members of a gang apart they go by their names, and so do gangs in Volcano's suite: there
/// the order stays.
fn renamed(suite: &str, case: &Value) -> Value {
    let mut kinds: Vec<BTreeSet<String>> = Vec::new();
    let lists: &[&str] = match suite {
        "kai" => &["nodes", "queues", "workloads"],
        "kueue-tas" => &["nodes"],
        "kueue-preemption" => &["queues", "cohorts", "admitted"],
        _ => &["nodes", "queues", "pod_groups", "hypernodes"],
    };
    for list in lists {
        kinds.push(array(&case[*list]).map(|one| text(&one["name"])).collect());
    }
    if suite == "kai" {
        let pods = array(&case["workloads"]).flat_map(|workload| array(&workload["pods"]));
        kinds.push(pods.map(|pod| text(&pod["name"])).collect());
    }
    let levels = match suite {
        "kai" => &case["topology"]["levels"],
        _ => &case["levels"],
    };
    for level in array(levels).map(text) {
        let of = array(&case["nodes"]).map(|node| text(&node["labels"][&level]));
        kinds.push(of.filter(|value| !value.is_empty()).collect());
    }
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    let pods = 3;
    for (kind, old) in kinds.into_iter().enumerate() {
        let mut old: Vec<String> = old.into_iter().collect();
        if suite != "volcano-allocate" && !(suite == "kai" && kind == pods) {
            old.reverse();
        }
        for (at, name) in old.into_iter().enumerate() {
            // The number at the end of a pod's name is its rank.
            let number = name.rsplit(['-', '_']).next().unwrap_or_default();
            let rank = number
                .parse::<u32>()
                .map_or(String::new(), |n| format!("-{n}"));
            let new = format!("{}{at:03}{rank}", char::from(b'm' + kind as u8));
            names.entry(name).or_insert(new);
        }
    }
    renaming(case, &names, false)
}

/// Names stand in values, and as keys below what is expected.
fn renaming(value: &Value, names: &BTreeMap<String, String>, keys: bool) -> Value {
    let named = |name: &String| names.get(name).unwrap_or(name).clone();
    match value {
        Value::String(name) => json!(named(name)),
        Value::Array(list) => list.iter().map(|one| renaming(one, names, keys)).collect(),
        Value::Object(map) => {
            let entries = map.iter().map(|(key, value)| {
                let kept = ["id", "suite", "source", "status", "state", "phase", "kind"];
                let below = keys || key == "expect";
                let new = match kept.contains(&key.as_str()) {
                    true => value.clone(),
                    false => renaming(value, names, below),
                };
                (if keys { named(key) } else { key.clone() }, new)
            });
            Value::Object(entries.collect())
        }
        other => other.clone(),
    }
}

// ---- units ----

/// Multiplies the resources that `which` names in a list of amounts.
fn times(list: &mut Value, factor: i64, which: impl Fn(&str) -> bool) {
    for (name, amount) in list.as_object_mut().into_iter().flatten() {
        let Some(old) = amount
            .as_str()
            .and_then(|text| text.parse::<Quantity>().ok())
        else {
            continue;
        };
        if which(name) {
            let milli = i128::from(old.milli()) * i128::from(factor);
            let whole = milli / 1000;
            *amount = json!(if milli % 1000 == 0 {
                whole.to_string()
            } else {
                format!("{milli}m")
            });
        }
    }
}

// ---- the suites ----

const GPU: &str = "nvidia.com/gpu";

fn kai_amounts(case: &Value, factor: i64, which: fn(&str) -> bool) -> Value {
    with(case, |case| {
        for node in array_mut(&mut case["nodes"]) {
            times(&mut node["allocatable"], factor, which);
        }
        for queue in array_mut(&mut case["queues"]) {
            times(&mut queue["guarantee"], factor, which);
            times(&mut queue["capability"], factor, which);
        }
        for workload in array_mut(&mut case["workloads"]) {
            for pod in array_mut(&mut workload["pods"]) {
                times(&mut pod["requests"], factor, which);
            }
        }
        let expected = case["expect"]["node_gpus"].as_object_mut();
        for (_, gpus) in expected.into_iter().flatten().filter(|_| which(GPU)) {
            for key in ["idle", "releasing"] {
                if let Some(old) = gpus[key].as_i64() {
                    gpus[key] = json!(old * factor);
                }
            }
        }
    })
}

fn kai(case: &Value, all: &mut Vec<(&'static str, Value)>) {
    all.push(turned(case, &["nodes", "workloads"]));
    all.push((
        "thrice the cpu and memory",
        kai_amounts(case, 3, |name| name == "cpu" || name == "memory"),
    ));
    let pods = || array(&case["workloads"]).flat_map(|workload| array(&workload["pods"]));
    let shares =
        pods().any(|pod| !pod["gpu_fraction"].is_null() || !pod["gpu_memory_mib"].is_null());
    // Twice as many are divided by other weights with other remainders.
    let weighted = array(&case["queues"]).any(|queue| queue["weight"].as_i64() > Some(1));
    if !shares && !weighted {
        all.push(("twice the GPUs", kai_amounts(case, 2, |name| name == GPU)));
    }
    all.push((
        "other priorities in the same order, other ages",
        with(case, |case| {
            for workload in array_mut(&mut case["workloads"]) {
                let old = workload["priority"].as_i64().unwrap_or(0);
                workload["priority"] = json!(old * 3 + 7);
                let old = workload["age_rank"].as_i64().unwrap_or(0);
                workload["age_rank"] = json!(old * 7 + 3);
            }
        }),
    ));
    let node = |name: &str, gpus: &str, room: &str| {
        json!({
            "name": name, "labels": {"kai.scheduler/type": name}, "taints": [],
            "allocatable": {"cpu": room, "memory": room, "nvidia.com/gpu": gpus, "pods": room},
            "gpu_memory_mib": 100, "mig": null,
        })
    };
    all.push((
        "a node without room and a queue without work",
        with(case, |case| {
            push(&mut case["nodes"], node("aaa", "0", "0"));
            let parent = array(&case["queues"])
                .last()
                .map_or(Value::Null, |q| q["parent"].clone());
            let queue = json!({
                "name": "aaa", "parent": parent, "weight": 3, "priority": null,
                "guarantee": {GPU: "0"}, "capability": {},
            });
            push(&mut case["queues"], queue);
        }),
    ));
    // Where somebody must give way, more GPUs are more to share.
    if array(&case["expect"]["evicted_pods"]).next().is_none() {
        all.push((
            "a busy node of a queue's own",
            with(case, |case| {
                let mut busy = node("zzz", "3", "10");
                busy["allocatable"]["memory"] = json!("10G");
                busy["allocatable"]["pods"] = json!("1");
                push(&mut case["nodes"], busy);
                let queue = |name: &str, parent: Value| {
                    json!({
                        "name": name, "parent": parent, "weight": 0, "priority": null,
                        "guarantee": {GPU: "3", "cpu": "10", "memory": "10G"}, "capability": {},
                    })
                };
                push(&mut case["queues"], queue("zzz", Value::Null));
                push(&mut case["queues"], queue("zzz-in", json!("zzz")));
                let workload = json!({
                    "name": "zzz", "queue": "zzz-in", "priority": 100, "preemptible": false,
                    "min_member": 1, "age_rank": 0, "subgroups": [], "topology_request": null,
                    "pods": [{
                        "name": "zzz-0", "state": "running", "node": "zzz", "gpu_ids": null,
                        "requests": {"cpu": "10", "memory": "10G", GPU: "3"},
                        "gpu_fraction": null, "gpu_memory_mib": null, "subgroup": null,
                        "node_selector": {},
                    }],
                });
                push(&mut case["workloads"], workload);
            }),
        ));
    }
}

/// The case with these lists the other way round.
fn turned(case: &Value, lists: &[&str]) -> (&'static str, Value) {
    let turned = with(case, |case| {
        for list in lists {
            reverse(&mut case[*list]);
        }
    });
    ("lists the other way round", turned)
}

fn push(list: &mut Value, one: Value) {
    if let Some(list) = list.as_array_mut() {
        list.push(one);
    }
}

fn tas(case: &Value, all: &mut Vec<(&'static str, Value)>) {
    all.push(turned(case, &["nodes", "existing_pods"]));
    all.push((
        "thrice the amounts",
        with(case, |case| {
            let not_pods = |name: &str| name != "pods";
            for node in array_mut(&mut case["nodes"]) {
                times(&mut node["allocatable"], 3, not_pods);
            }
            for list in ["existing_pods", "used_by_others", "pod_sets"] {
                for one in array_mut(&mut case[list]) {
                    times(&mut one["requests"], 3, not_pods);
                }
            }
        }),
    ));
    all.push((
        "a domain of a node that is not ready",
        with(case, |case| {
            let mut node = case["nodes"][0].clone();
            if !node.is_object() {
                return;
            }
            node["name"] = json!("zzz");
            node["ready"] = json!(false);
            let levels: Vec<String> = array(&case["levels"]).map(text).collect();
            for level in levels {
                node["labels"][&level] = json!("zzz");
            }
            push(&mut case["nodes"], node);
        }),
    ));
    all.push((
        "a domain without room",
        with(case, |case| {
            let mut node = case["nodes"][0].clone();
            if !node.is_object() {
                return;
            }
            node["name"] = json!("aaa");
            times(&mut node["allocatable"], 0, |_| true);
            let levels: Vec<String> = array(&case["levels"]).map(text).collect();
            for level in levels {
                node["labels"][&level] = json!("aaa");
            }
            push(&mut case["nodes"], node);
        }),
    ));
}

fn preemption(case: &Value, all: &mut Vec<(&'static str, Value)>) {
    all.push(turned(case, &["queues", "cohorts", "admitted"]));
    all.push((
        "thrice the amounts",
        with(case, |case| {
            for list in ["queues", "cohorts", "admitted"] {
                for one in array_mut(&mut case[list]) {
                    for key in ["nominal", "borrowing_limit", "lending_limit", "requests"] {
                        times(&mut one[key], 3, |_| true);
                    }
                }
            }
            times(&mut case["incoming"]["requests"], 3, |_| true);
            times(&mut case["expect"]["freed"], 3, |_| true);
        }),
    ));
    all.push((
        "higher priorities and older workloads",
        with(case, |case| {
            let raise = |value: &mut Value| {
                if let Some(old) = value.as_i64() {
                    *value = json!(old + 1000);
                }
            };
            for workload in array_mut(&mut case["admitted"]) {
                raise(&mut workload["priority"]);
                if let Some(old) = workload["admitted_order"].as_i64() {
                    workload["admitted_order"] = json!(old * 5 + 2);
                }
            }
            raise(&mut case["incoming"]["priority"]);
            raise(&mut case["expect"]["max_victim_priority"]);
            for queue in array_mut(&mut case["queues"]) {
                let borrow = &mut queue["preemption_policy"]["borrowWithinCohort"];
                if borrow.is_object() {
                    raise(&mut borrow["maxPriorityThreshold"]);
                }
            }
        }),
    ));
    all.push((
        "a queue without quota or work, and a full one without a cohort",
        with(case, |case| {
            let cohort = array(&case["queues"])
                .find(|queue| queue["name"] == case["incoming"]["queue"])
                .map_or(Value::Null, |queue| queue["cohort"].clone());
            let queue = |name: &str, cohort: Value, nominal: Value| {
                json!({
                    "name": name, "cohort": cohort, "fair_weight": null, "nominal": nominal,
                    "borrowing_limit": {}, "lending_limit": {},
                    "preemption_policy": {
                        "withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any",
                        "borrowWithinCohort": null,
                    },
                })
            };
            let asked: Map<String, Value> = case["incoming"]["requests"]
                .as_object()
                .cloned()
                .unwrap_or_default();
            push(&mut case["queues"], queue("aaa", cohort, json!({})));
            push(&mut case["queues"], queue("zzz", Value::Null, json!(asked)));
            let workload = json!({
                "name": "zzz-1", "queue": "zzz", "priority": -1000, "requests": asked,
                "pod_count": 1, "admitted_order": 9, "created_s": null, "already_evicted": false,
            });
            push(&mut case["admitted"], workload);
        }),
    ));
}

fn volcano(case: &Value, all: &mut Vec<(&'static str, Value)>) {
    all.push(turned(case, &["nodes", "hypernodes", "pod_groups"]));
    all.push((
        "thrice the amounts",
        with(case, |case| {
            let not_pods = |name: &str| name != "pods";
            for node in array_mut(&mut case["nodes"]) {
                times(&mut node["allocatable"], 3, not_pods);
            }
            for queue in array_mut(&mut case["queues"]) {
                times(&mut queue["capability"], 3, not_pods);
            }
            for pod in array_mut(&mut case["pods"]) {
                times(&mut pod["requests"], 3, not_pods);
            }
        }),
    ));
    all.push((
        "a domain without room and a queue without work",
        with(case, |case| {
            let room: Amounts = [("pods".to_owned(), 0)].into_iter().collect();
            let node = json!({
                "name": "aaa", "labels": {},
                "allocatable": serde_json::to_value(room.to_k8s()).unwrap_or_default(),
            });
            push(&mut case["nodes"], node);
            let queue = json!({"name": "aaa", "weight": 5, "capability": null});
            push(&mut case["queues"], queue);
            let tiers: BTreeSet<i64> = array(&case["hypernodes"])
                .filter_map(|domain| domain["tier"].as_i64())
                .collect();
            let parent = array(&case["hypernodes"])
                .max_by_key(|domain| domain["tier"].as_i64())
                .map(|domain| text(&domain["name"]));
            let (Some(lowest), Some(parent)) = (tiers.first(), parent) else {
                return;
            };
            if tiers.len() < 2 {
                return;
            }
            push(
                &mut case["hypernodes"],
                json!({"name": "aaa-s", "tier": lowest, "parent": parent, "nodes": ["aaa"]}),
            );
            for domain in array_mut(&mut case["hypernodes"]) {
                if domain["name"] == parent.as_str() {
                    push(&mut domain["nodes"], json!("aaa"));
                }
            }
        }),
    ));
}
