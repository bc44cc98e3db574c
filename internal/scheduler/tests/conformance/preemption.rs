//! Kueue's preemption cases: which workloads must give way to the one that comes in. Quota is
//! all that binds there, so the machines are one node as large as all quota together.

use std::collections::{BTreeMap, BTreeSet};

use resources::amounts::Amounts;
use serde_json::{Map, Value, json};

use crate::Outcome;
use crate::cluster::{Cluster, ORDERS, Scene, Stand, amounts, made, start, text};
use crate::engine::{Decisions, Evicted, Placed};
use crate::objects;

const NODE: &str = "pool";
const PLENTY: &str = "1000000";

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
        match judge(case, &cluster, &decisions) {
            Outcome::Fail(why) => return Outcome::Fail(format!("order {order}: {why}")),
            Outcome::Noted(why) => worst = Outcome::Noted(why),
            Outcome::Pass => {}
        }
    }
    worst
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// A flavor's resource as a resource of its own; the default flavor's keeps its name.
fn resource(key: &str) -> String {
    match key.split_once('/') {
        Some(("default", name)) => name.to_owned(),
        Some((flavor, name)) => format!("{flavor}.example.com/{name}"),
        None => key.to_owned(),
    }
}

fn list(quota: &Value) -> Value {
    let entries = quota.as_object().into_iter().flatten();
    Value::Object(
        entries
            .map(|(key, amount)| (resource(key), amount.clone()))
            .collect(),
    )
}

/// Every resource that the case speaks of.
fn all_resources(case: &Value) -> BTreeSet<String> {
    let quotas = array(&case["queues"])
        .chain(array(&case["cohorts"]))
        .map(|queue| &queue["nominal"]);
    let asked = array(&case["admitted"])
        .chain([&case["incoming"]])
        .map(|workload| &workload["requests"]);
    quotas
        .chain(asked)
        .filter_map(Value::as_object)
        .flat_map(|list| list.keys().map(|key| resource(key)))
        .collect()
}

struct Tree<'a> {
    case: &'a Value,
}

impl Tree<'_> {
    fn children<'b>(&'b self, cohort: &'b str) -> impl Iterator<Item = &'b Value> {
        let queues = array(&self.case["queues"]).filter(move |queue| queue["cohort"] == cohort);
        let cohorts = array(&self.case["cohorts"]).filter(move |inner| inner["parent"] == cohort);
        queues.chain(cohorts)
    }

    /// Its own quota and that of everything below it.
    fn total(&self, node: &Value) -> Amounts {
        let mut total = amounts(&list(&node["nominal"]));
        if node.get("cohort").is_none() {
            for child in self.children(&text(&node["name"])) {
                total.add(&self.total(child));
            }
        }
        total
    }

    /// What is admitted in it.
    fn used(&self, node: &Value) -> Amounts {
        let mut used = Amounts::new();
        if node.get("cohort").is_some() {
            let mine = array(&self.case["admitted"]).filter(|w| w["queue"] == node["name"]);
            mine.for_each(|workload| used.add(&amounts(&list(&workload["requests"]))));
        } else {
            for child in self.children(&text(&node["name"])) {
                used.add(&self.used(child));
            }
        }
        used
    }
}

/// A cohort and a queue may have one name.
fn cohort_name(name: &str) -> String {
    format!("cohort-{name}")
}

fn written(sum: &Amounts) -> Value {
    serde_json::to_value(sum.to_k8s()).unwrap_or_default()
}

fn scene(case: &Value) -> Scene {
    let mut scene = Scene::default();
    let tree = Tree { case };
    let resources = all_resources(case);
    let mut room = Amounts::new();
    let queues = array(&case["queues"]).chain(array(&case["cohorts"]));
    for (age, queue) in queues.enumerate() {
        let inner = queue.get("cohort").is_none();
        let name = text(&queue["name"]);
        let parent = if inner {
            &queue["parent"]
        } else {
            &queue["cohort"]
        };
        let parent = parent.as_str().map(cohort_name);
        let name = if inner { cohort_name(&name) } else { name };
        let mut object = objects::queue(&name, parent.as_deref(), age);
        let total = tree.total(queue);
        let mut deserved = Map::new();
        for resource in &resources {
            deserved.insert(resource.clone(), json!("0"));
        }
        for (resource, amount) in written(&total).as_object().into_iter().flatten() {
            deserved.insert(resource.clone(), amount.clone());
        }
        if parent.is_none() {
            // Nobody to borrow from.
            object["spec"]["capability"] = Value::Object(deserved.clone());
            let used = tree.used(queue);
            let mut needed = total.clone();
            needed.raise(&used);
            room.add(&needed);
        }
        deserved.insert("pods".into(), json!(PLENTY));
        object["spec"]["deserved"] = Value::Object(deserved);
        for (key, name) in [
            ("borrowing_limit", "muster.io/borrowing-limit"),
            ("lending_limit", "muster.io/lending-limit"),
        ] {
            let limit = list(&queue[key]);
            if limit.as_object().is_some_and(|limit| !limit.is_empty()) {
                objects::annotate(&mut object, name, &limit);
            }
        }
        if let Some(weight) = queue["fair_weight"].as_str() {
            objects::annotate(&mut object, "muster.io/surplus-weight", &json!(weight));
        }
        objects::annotate(&mut object, "muster.io/preemption", &policy(case, queue));
        scene.add(object);
    }
    room.add(&amounts(&json!({"pods": "1000"})));
    let labels = BTreeMap::from([("kubernetes.io/hostname".to_owned(), NODE.to_owned())]);
    scene.add(objects::node(NODE, &labels, &written(&room)));
    let mut classes: BTreeSet<i64> = BTreeSet::new();
    for workload in array(&case["admitted"]).chain([&case["incoming"]]) {
        classes.insert(workload["priority"].as_i64().unwrap_or(0));
        add_workload(&mut scene, workload);
    }
    for class in classes {
        scene.add(objects::priority_class(class));
    }
    scene
}

/// The tiers of fair sharing where a case names none: both, as upstream.
const BOTH: [&str; 2] = ["LessThanOrEqualToFinalShare", "LessThanInitialShare"];

fn policy(case: &Value, queue: &Value) -> Value {
    let given = &queue["preemption_policy"];
    let sharing = &case["fair_sharing"];
    let named = array(&sharing["strategies"]).next().is_some();
    let fair = match (sharing.is_null(), named) {
        (true, _) => Value::Null,
        (false, true) => sharing["strategies"].clone(),
        (false, false) => json!(BOTH),
    };
    json!({
        "withinQueue": given["withinClusterQueue"].as_str().unwrap_or("Never"),
        "reclaim": given["reclaimWithinCohort"].as_str().unwrap_or("Never"),
        "borrow": given["borrowWithinCohort"],
        "fair": fair,
        "fairWithinDeserved": sharing["preempt_within_nominal"] != false,
    })
}

fn add_workload(scene: &mut Scene, workload: &Value) {
    let name = text(&workload["name"]);
    let count = count_of(workload);
    let priority = workload["priority"].as_i64().unwrap_or(0);
    let mut group = objects::group(&name, &text(&workload["queue"]), count, 0);
    group["spec"]["priorityClassName"] = json!(objects::class_name(priority));
    let created = match workload["created_s"].as_i64() {
        Some(seconds) => (start() + jiff::SignedDuration::from_secs(seconds)).to_string(),
        None => made(0),
    };
    group["metadata"]["creationTimestamp"] = json!(created);
    scene.add(group);
    let admitted = workload["admitted_order"].as_i64();
    let requests: Vec<(String, Value)> = list(&workload["requests"])
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, amount)| (key.clone(), amount.clone()))
        .collect();
    for at in 0..count {
        // A resource to each pod while there are any; a lone pod asks for all.
        let mine = requests
            .iter()
            .enumerate()
            .filter(|(place, _)| *place as u64 % count == at);
        let mine: Map<String, Value> = mine.map(|(_, (key, n))| (key.clone(), n.clone())).collect();
        let pod_name = pod_name(&name, at, count);
        let mut pod = objects::pod(&pod_name, Some(&name), &Value::Object(mine));
        pod["metadata"]["creationTimestamp"] = json!(created);
        pod["spec"]["priority"] = json!(priority);
        pod["spec"]["priorityClassName"] = json!(objects::class_name(priority));
        let placed = Placed {
            pod: pod_name.clone(),
            node: NODE.to_owned(),
            devices: String::new(),
        };
        let stand = match admitted {
            None => Stand::Pending,
            Some(order) => {
                pod["status"] = json!({"startTime": made(7200 + order)});
                if workload["already_evicted"] == true {
                    Stand::Leaving(placed)
                } else {
                    Stand::Running(placed)
                }
            }
        };
        scene.pod(pod, stand);
    }
}

fn count_of(workload: &Value) -> u64 {
    workload["pod_count"].as_u64().unwrap_or(1).max(1)
}

fn pod_name(workload: &str, at: u64, count: u64) -> String {
    if count == 1 {
        workload.to_owned()
    } else {
        format!("{workload}-{at}")
    }
}

fn reason(kueue: &str) -> &str {
    match kueue {
        "InClusterQueue" => "Preempted",
        "InCohortReclamation" => "Reclaimed",
        "InCohortReclaimWhileBorrowing" => "ReclaimedWhileBorrowing",
        "InCohortFairSharing" => "FairShare",
        other => other,
    }
}

fn judge(case: &Value, cluster: &Cluster, decisions: &Decisions) -> Outcome {
    if !cluster.faults.is_empty() {
        return Outcome::Fail(cluster.faults.join(", "));
    }
    let expect = &case["expect"];
    let incoming = &case["incoming"];
    let name = text(&incoming["name"]);
    let count = count_of(incoming);
    let in_room = (0..count).all(|at| {
        let pod = pod_name(&name, at, count);
        let told = decisions.binds.iter().chain(&decisions.nominated);
        told.into_iter().any(|placed| placed.pod == pod)
    });
    let owners: BTreeMap<String, String> = array(&case["admitted"])
        .flat_map(|workload| {
            let name = text(&workload["name"]);
            let count = count_of(workload);
            (0..count).map(move |at| (pod_name(&name, at, count), name.clone()))
        })
        .collect();
    let victims: BTreeMap<String, String> = decisions
        .evictions
        .iter()
        .map(|Evicted { pod, why }| (owners.get(pod).unwrap_or(pod).clone(), why.clone()))
        .collect();
    let wanted = expect["count"].as_u64().unwrap_or(0);
    if wanted == 0 {
        return match (victims.is_empty(), in_room) {
            (false, _) => Outcome::Fail(format!("evicts {victims:?}, wanted nobody")),
            (true, true) if expect["fits_without_preemption"] == false => {
                Outcome::Fail("let in without quota for it".into())
            }
            _ => Outcome::Pass,
        };
    }
    let leaving: BTreeSet<String> = array(&case["admitted"])
        .filter(|workload| workload["already_evicted"] == true)
        .map(|workload| text(&workload["name"]))
        .collect();
    let answers = [&expect["preempted"]]
        .into_iter()
        .chain(array(&expect["alternatives"]));
    let mut names_agree = None;
    for answer in answers {
        let answer: BTreeMap<String, String> = answer
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(name, _)| !leaving.contains(*name))
            .map(|(name, why)| {
                (
                    name.clone(),
                    reason(why.as_str().unwrap_or_default()).into(),
                )
            })
            .collect();
        if answer == victims {
            if in_room {
                return Outcome::Pass;
            }
            return Outcome::Fail("the right victims, but no room held for the incoming".into());
        }
        if answer.keys().eq(victims.keys()) {
            names_agree = Some(answer);
        }
    }
    if let Some(answer) = names_agree {
        return Outcome::Fail(format!("for the reasons {victims:?}, wanted {answer:?}"));
    }
    let listed = format!("evicts {victims:?}, wanted {}", expect["preempted"]);
    if victims.is_empty() || !in_room {
        let state = decisions.waits.iter().map(|(_, why)| why.as_str());
        let state: Vec<&str> = state.collect();
        return Outcome::Fail(format!("{listed}; {}", state.join("; ")));
    }
    match cost(case, &victims) {
        Ok(()) => Outcome::Noted(listed),
        Err(why) => Outcome::Fail(format!("{listed}; {why}")),
    }
}

/// Do other victims cost as much as the listed ones, and take nobody's own quota?
fn cost(case: &Value, victims: &BTreeMap<String, String>) -> Result<(), String> {
    let expect = &case["expect"];
    let lost: Vec<&Value> = array(&case["admitted"])
        .filter(|workload| victims.contains_key(&text(&workload["name"])))
        .collect();
    let count = lost.len() as u64;
    if expect["count"].as_u64() != Some(count) {
        return Err(format!("{count} victims"));
    }
    let mut freed = Amounts::new();
    for workload in &lost {
        freed.add(&amounts(&list(&workload["requests"])));
    }
    let wanted = amounts(&list(&expect["freed"]));
    if wanted.iter().any(|(name, n)| freed.get(name) != n) {
        return Err(format!("frees {freed}, wanted {wanted}"));
    }
    let highest = lost.iter().filter_map(|w| w["priority"].as_i64()).max();
    if highest != expect["max_victim_priority"].as_i64() {
        return Err(format!("highest priority lost {highest:?}"));
    }
    let tree = Tree { case };
    for queue in array(&case["queues"]).filter(|queue| queue["name"] != case["incoming"]["queue"]) {
        let own = tree.total(queue);
        let used = tree.used(queue);
        let loses = lost
            .iter()
            .any(|workload| workload["queue"] == queue["name"]);
        if loses && used.iter().all(|(name, n)| n <= own.get(name)) {
            return Err(format!("{} is within its quota and loses", queue["name"]));
        }
    }
    Ok(())
}
