//! The clusters and the work that the cases are measured on, and the clock that they are measured
//! by. Objects are made from templates, so that making them does not take longer than using them.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use nix::time::{ClockId, clock_gettime};
use resources::kinds::{PodGroup, Queue};
use scheduler::{Bind, Event};
use serde_json::{Value, json};

pub(crate) const GPUS_EACH: usize = 8;
const RACK: usize = 16;
const RACKS_A_SPINE: usize = 16;
const SPINES_A_ZONE: usize = 10;
/// Queues in three levels; the first few have others below them.
pub(crate) const QUEUES: usize = 50;
const INNER: usize = 15;
/// How many shapes of pods there are.
const SHAPES: usize = 8;
pub(crate) const ZONE: &str = "topology.kubernetes.io/zone";
pub(crate) const SPINE: &str = "muster.io/spine";

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("the benchmark's objects are well formed")
}

/// What this thread has worked so far.
pub(crate) fn worked() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("Linux has this clock");
    Duration::from(time)
}

/// How long something takes, and what comes of it.
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let before = worked();
    let done = work();
    (worked() - before, done)
}

/// The median of some runs, each of which says what it measured.
pub(crate) fn median(runs: usize, mut run: impl FnMut() -> Duration) -> Duration {
    let mut all: Vec<Duration> = (0..runs.max(1)).map(|_| run()).collect();
    all.sort_unstable();
    all[all.len() / 2]
}

/// What this process holds of the machine's memory, in bytes.
pub(crate) fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

pub(crate) fn node(i: usize) -> Event {
    let gpus: Vec<Value> = (0..GPUS_EACH)
        .map(|g| json!({"id": format!("GPU-{i:05}-{g}"), "index": g, "numa": g * 2 / GPUS_EACH, "healthy": true}))
        .collect();
    let rack = i / RACK;
    let spine = rack / RACKS_A_SPINE;
    let labels = json!({
        "kubernetes.io/hostname": format!("node-{i:05}"),
        "muster.io/rack": format!("rack-{rack}"), SPINE: format!("spine-{spine}"),
        ZONE: format!("zone-{}", spine / SPINES_A_ZONE),
    });
    Event::NodeChanged(Box::new(read::<Node>(json!({
        "metadata": {"name": format!("node-{i:05}"), "labels": labels,
            "annotations": {"muster.io/inventory": json!({"gpus": gpus}).to_string()}},
        "status": {"allocatable": {"cpu": "128", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": GPUS_EACH.to_string()}},
    }))))
}

/// Five departments, ten teams, and the queues that take work.
pub(crate) fn queue(i: usize) -> Event {
    let parent = match i {
        0..5 => None,
        5..INNER => Some(format!("queue-{}", i % 5)),
        _ => Some(format!("queue-{}", 5 + i % 10)),
    };
    queue_named(
        &format!("queue-{i}"),
        json!({"weight": 1, "parent": parent}),
    )
}

pub(crate) fn queue_named(name: &str, spec: Value) -> Event {
    Event::QueueChanged(Box::new(read::<Queue>(json!({
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue",
        "metadata": {"name": name}, "spec": spec,
    }))))
}

/// A queue that takes work.
pub(crate) fn leaf(n: usize) -> String {
    format!("queue-{}", INNER + n % (QUEUES - INNER))
}

pub(crate) fn group(name: &str, members: usize, queue: &str, required: Option<&str>) -> Event {
    group_with(name, members, queue, required, json!({}))
}

/// A gang whose status says that it runs.
pub(crate) fn running_group(name: &str, members: usize, queue: &str) -> Event {
    let message = format!("the gang has its minimum: {members} members have a node");
    let placed =
        json!({"type": "Scheduled", "status": "True", "reason": "GangPlaced", "message": message});
    let status = json!({"phase": "Running", "running": members, "conditions": [placed]});
    group_with(name, members, queue, None, status)
}

fn group_with(
    name: &str,
    members: usize,
    queue: &str,
    required: Option<&str>,
    status: Value,
) -> Event {
    let topology = required.map(|level| json!({"required": level}).to_string());
    Event::PodGroupChanged(Box::new(read::<PodGroup>(json!({
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "ns", "uid": name,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": topology.map(|topology| json!({"muster.io/topology": topology}))},
        "spec": {"minMember": members, "queue": queue}, "status": status,
    }))))
}

/// Pods of a few shapes, made from one object each.
pub(crate) struct Pods(Vec<Pod>);

impl Pods {
    pub(crate) fn new() -> Pods {
        let shape = |shape: usize| {
            read::<Pod>(json!({
                "metadata": {"namespace": "ns", "creationTimestamp": "2026-01-01T00:00:00Z",
                    "labels": {"training.kubeflow.org/replica-type": "worker"},
                    "annotations": {}},
                "spec": {"schedulerName": "muster", "containers": [{"name": "main", "resources":
                    {"requests": {"cpu": (4 + shape).to_string(), "memory": "16Gi"},
                     "limits": {"nvidia.com/gpu": "1"}}}]},
            }))
        };
        Pods((0..SHAPES).map(shape).collect())
    }

    /// One pod: of a gang, or of its own in a queue.
    pub(crate) fn make(
        &self,
        name: &str,
        group: Option<&str>,
        queue: Option<&str>,
        shape: usize,
    ) -> Pod {
        let mut pod = self.0[shape % SHAPES].clone();
        pod.metadata.name = Some(name.to_owned());
        pod.metadata.uid = Some(name.to_owned());
        let notes = pod.metadata.annotations.get_or_insert_default();
        if let Some(group) = group {
            notes.insert("scheduling.k8s.io/group-name".into(), group.to_owned());
        }
        if let Some(queue) = queue {
            notes.insert("scheduling.volcano.sh/queue-name".into(), queue.to_owned());
        }
        pod
    }

    pub(crate) fn event(
        &self,
        name: &str,
        group: Option<&str>,
        queue: Option<&str>,
        shape: usize,
    ) -> Event {
        Event::PodChanged(Box::new(self.make(name, group, queue, shape)))
    }

    /// One that a plan bound, as it is told of once it runs. `kind` is its shape and its queue's
    /// number.
    pub(crate) fn bound(&self, bind: &Bind, kind: usize) -> Event {
        let group = (!bind.group.lone).then_some(bind.group.name.as_str());
        let queue = leaf(kind);
        let queue = group.is_none().then_some(queue.as_str());
        let pod = self.make(&bind.pod.name, group, queue, kind);
        runs(pod, &bind.node, &json!(bind.devices))
    }

    /// One that runs on a GPU of a node.
    pub(crate) fn running(
        &self,
        name: &str,
        group: &str,
        shape: usize,
        node: usize,
        gpu: usize,
    ) -> Event {
        let pod = self.make(name, Some(group), None, shape);
        let devices = json!({"main": {"nvidia.com/gpu": [format!("GPU-{node:05}-{gpu}")]}});
        runs(pod, &format!("node-{node:05}"), &devices)
    }
}

fn runs(mut pod: Pod, node: &str, devices: &Value) -> Event {
    let notes = pod.metadata.annotations.get_or_insert_default();
    notes.insert("muster.io/devices".into(), devices.to_string());
    if let Some(spec) = &mut pod.spec {
        spec.node_name = Some(node.to_owned());
    }
    pod.status = Some(read(
        json!({"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}),
    ));
    Event::PodChanged(Box::new(pod))
}

/// Tells of nodes and queues.
pub(crate) fn tell_cluster(nodes: usize, mut tell: impl FnMut(Event)) {
    (0..nodes).for_each(|i| tell(node(i)));
    (0..QUEUES).for_each(|i| tell(queue(i)));
}

/// Tells of so many waiting pods in gangs of 1 to `largest` one-GPU members, in eight shapes, in 35
/// queues.
pub(crate) fn tell_gangs(pods: &Pods, count: usize, largest: usize, mut tell: impl FnMut(Event)) {
    let (mut made, mut gang) = (0, 0);
    while made < count {
        let members = (gang * 37 % largest + 1).min(count - made);
        let name = format!("gang-{gang:05}");
        tell(group(&name, members, &leaf(gang), None));
        for i in 0..members {
            tell(pods.event(&format!("{name}-{i}"), Some(&name), None, gang));
        }
        made += members;
        gang += 1;
    }
}
