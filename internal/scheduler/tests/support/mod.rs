//! Objects and small questions for the scheduler's tests. Judges nothing.
#![allow(dead_code, reason = "each test uses a part of these helpers")]
#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

pub mod cluster;

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use proptest::test_runner::Config as ProptestConfig;
use resources::kinds::{PodGroup, Queue};
use resources::report::PlacementReport;
use resources::splitmix::SplitMix;
use scheduler::{Config, Event, Plan, Scheduler};
use serde_json::{Value, json};

pub fn scheduler() -> Scheduler {
    Scheduler::new(Config::default())
}

/// So many cases, enough for every run; PROPTEST_CASES asks for more. Shrunk failures are kept as
/// tests by name, not in files.
pub fn cases(enough: u32) -> ProptestConfig {
    let all = ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    if std::env::var_os("PROPTEST_CASES").is_some() {
        all
    } else {
        ProptestConfig {
            cases: enough,
            ..all
        }
    }
}

pub fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

/// The time so many seconds after it.
pub fn at(seconds: i64) -> Timestamp {
    now() + SignedDuration::from_secs(seconds)
}

/// Plans at that time, after a change without any effect: a plan reports nothing where nothing
/// changed.
pub fn look(s: &mut Scheduler, second: i64) -> Plan {
    s.apply(queue_with("nudge", |_| {}));
    s.apply(Event::QueueGone("nudge".into()));
    s.plan(at(second))
}

/// Events in an order that follows from the seed.
pub fn shuffled(mut events: Vec<Event>, seed: u64) -> Vec<Event> {
    SplitMix::new(seed).shuffle(&mut events);
    events
}

fn created(age: i64) -> String {
    (now() - jiff::SignedDuration::from_secs(age)).to_string()
}

pub fn node_with(name: &str, gpus: i64, change: impl FnOnce(&mut Value)) -> Event {
    let mut node = json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}, "annotations": {}},
        "spec": {},
        "status": {
            "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": gpus.to_string()},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    });
    change(&mut node);
    Event::NodeChanged(Box::new(serde_json::from_value::<Node>(node).unwrap()))
}

pub fn node(name: &str, gpus: i64) -> Event {
    node_with(name, gpus, |_| {})
}

/// A node whose GPUs are known one by one, on two NUMA nodes.
pub fn described(name: &str, gpus: usize, healthy: impl Fn(usize) -> bool) -> Event {
    let list: Vec<Value> = (0..gpus)
        .map(|i| json!({"id": format!("{name}-{i}"), "index": i, "numa": i * 2 / gpus, "healthy": healthy(i)}))
        .collect();
    node_with(name, gpus as i64, |node| {
        node["metadata"]["annotations"]["muster.io/inventory"] =
            json!(json!({ "gpus": list }).to_string());
    })
}

pub fn pod_object(
    name: &str,
    group: Option<&str>,
    gpus: i64,
    change: impl FnOnce(&mut Value),
) -> Pod {
    let mut pod = json!({
        "metadata": {
            "name": name, "namespace": "ns", "uid": format!("uid-{name}"),
            "creationTimestamp": created(100), "annotations": {},
        },
        "spec": {
            "schedulerName": "muster",
            "containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}],
        },
    });
    if gpus > 0 {
        pod["spec"]["containers"][0]["resources"]["limits"] =
            json!({"nvidia.com/gpu": gpus.to_string()});
    }
    if let Some(group) = group {
        pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] = json!(group);
    }
    change(&mut pod);
    serde_json::from_value(pod).unwrap()
}

pub fn pod_with(
    name: &str,
    group: Option<&str>,
    gpus: i64,
    change: impl FnOnce(&mut Value),
) -> Event {
    Event::PodChanged(Box::new(pod_object(name, group, gpus, change)))
}

pub fn pod(name: &str, group: &str, gpus: i64) -> Event {
    pod_with(name, Some(group), gpus, |_| {})
}

pub fn lone(name: &str, gpus: i64) -> Event {
    pod_with(name, None, gpus, |_| {})
}

pub fn task(name: &str, group: &str, gpus: i64, task: &str) -> Event {
    pod_with(name, Some(group), gpus, |pod| {
        pod["metadata"]["annotations"]["volcano.sh/task-spec"] = json!(task);
    })
}

pub fn pod_gone(name: &str) -> Event {
    Event::PodGone("ns".into(), name.into())
}

pub fn group_object(name: &str, min: i32, change: impl FnOnce(&mut Value)) -> PodGroup {
    let mut group = json!({
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}"), "creationTimestamp": created(100)},
        "spec": {"minMember": min},
    });
    change(&mut group);
    serde_json::from_value(group).unwrap()
}

pub fn group_with(name: &str, min: i32, change: impl FnOnce(&mut Value)) -> Event {
    Event::PodGroupChanged(Box::new(group_object(name, min, change)))
}

pub fn group(name: &str, min: i32) -> Event {
    group_with(name, min, |_| {})
}

/// A gang of so many members of so many GPUs each: its group and pods `name-i`.
pub fn gang(scheduler: &mut Scheduler, name: &str, members: usize, gpus: i64) {
    gang_in(scheduler, name, members, gpus, "default", 100);
}

pub fn gang_in(
    scheduler: &mut Scheduler,
    name: &str,
    members: usize,
    gpus: i64,
    queue: &str,
    age: i64,
) {
    scheduler.apply(group_with(name, members as i32, |group| {
        group["spec"]["queue"] = json!(queue);
        group["metadata"]["creationTimestamp"] = json!(created(age));
    }));
    for i in 0..members {
        scheduler.apply(pod(&format!("{name}-{i}"), name, gpus));
    }
}

pub fn queue_with(name: &str, change: impl FnOnce(&mut Value)) -> Event {
    let mut queue = json!({
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue",
        "metadata": {"name": name}, "spec": {"weight": 1},
    });
    change(&mut queue);
    Event::QueueChanged(Box::new(serde_json::from_value::<Queue>(queue).unwrap()))
}

pub fn priority_class(name: &str, value: i32) -> Event {
    let class = json!({"metadata": {"name": name}, "value": value});
    Event::PriorityClassChanged(Box::new(serde_json::from_value(class).unwrap()))
}

/// Pod name to node name.
pub fn bound(plan: &Plan) -> BTreeMap<String, String> {
    plan.binds
        .iter()
        .map(|bind| (bind.pod.name.clone(), bind.node.clone()))
        .collect()
}

pub fn report<'a>(plan: &'a Plan, group: &str) -> &'a PlacementReport {
    plan.reports
        .iter()
        .find(|report| report.group == group)
        .expect("the gang has a report")
}

pub fn nodes_used(plan: &Plan, prefix: &str) -> Vec<String> {
    let mut nodes: Vec<String> = plan
        .binds
        .iter()
        .filter(|bind| bind.pod.name.starts_with(prefix))
        .map(|bind| bind.node.clone())
        .collect();
    nodes.sort();
    nodes.dedup();
    nodes
}

/// Tells that what a plan bound runs since then.
pub fn run(s: &mut Scheduler, plan: &Plan, gpus: i64, since: Timestamp) {
    for bind in &plan.binds {
        s.apply(pod_with(
            &bind.pod.name,
            Some(&bind.group.name),
            gpus,
            |pod| {
                pod["spec"]["nodeName"] = json!(bind.node);
                pod["status"] = json!({"phase": "Running", "startTime": since.to_string()});
            },
        ));
    }
}

/// An object as the API has it.
pub fn read<T: serde::de::DeserializeOwned>(value: Value) -> Box<T> {
    Box::new(serde_json::from_value(value).unwrap())
}

/// A scheduler that is told of all claims, volumes and classes.
pub fn all_told() -> Scheduler {
    Scheduler::new(Config {
        volumes_told: true,
        ..Config::default()
    })
}
