//! How long plans take with nothing but the scheduler in the way, on a cluster of three topology
//! levels: a first plan, one without news, one for a single newcomer on a full cluster, one large
//! gang that fits one domain and one that fits none.

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use jiff::Timestamp;
use scheduler::{Config, Event, Scheduler};
use serde_json::{Value, json};

const GPUS_EACH: usize = 8;
const RACK: usize = 16;
const RACKS_A_SPINE: usize = 16;
const SPINES_A_ZONE: usize = 10;
const GANG_MAX: usize = 512;
const QUEUES: usize = 50;

fn read<T: serde::de::DeserializeOwned>(value: Value) -> Box<T> {
    Box::new(serde_json::from_value(value).expect("the benchmark's objects are well formed"))
}

fn node(i: usize) -> Event {
    let name = format!("node-{i:05}");
    let gpus: Vec<Value> = (0..GPUS_EACH)
        .map(|g| json!({"id": format!("GPU-{i}-{g}"), "index": g, "numa": g * 2 / GPUS_EACH, "healthy": true}))
        .collect();
    let rack = i / RACK;
    let spine = rack / RACKS_A_SPINE;
    let labels = json!({
        "muster.io/rack": format!("rack-{rack}"), "muster.io/spine": format!("spine-{spine}"),
        "topology.kubernetes.io/zone": format!("zone-{}", spine / SPINES_A_ZONE),
    });
    Event::NodeChanged(read(json!({
        "metadata": {"name": name, "labels": labels,
            "annotations": {"muster.io/inventory": json!({"gpus": gpus}).to_string()}},
        "status": {"allocatable": {"cpu": "128", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": GPUS_EACH.to_string()}},
    })))
}

fn group(name: &str, members: usize, queue: usize, topology: Option<Value>) -> Event {
    let annotations = topology.map(|t| json!({"muster.io/topology": t.to_string()}));
    Event::PodGroupChanged(read(json!({
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "ns", "uid": name, "annotations": annotations},
        "spec": {"minMember": members, "queue": format!("queue-{queue}")},
    })))
}

fn pod(name: &str, group: &str, cpus: usize) -> Event {
    Event::PodChanged(read(json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name, "annotations": {"scheduling.k8s.io/group-name": group}},
        "spec": {"schedulerName": "muster", "containers": [{"name": "main", "resources":
            {"requests": {"cpu": cpus.to_string(), "memory": "16Gi"}, "limits": {"nvidia.com/gpu": "1"}}}]},
    })))
}

fn queue(i: usize) -> Event {
    // Three levels: five departments, ten teams, and the queues that take work.
    let parent = match i {
        0..5 => None,
        5..15 => Some(format!("queue-{}", i % 5)),
        _ => Some(format!("queue-{}", 5 + i % 10)),
    };
    Event::QueueChanged(read(json!({
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue",
        "metadata": {"name": format!("queue-{i}")}, "spec": {"weight": 1, "parent": parent},
    })))
}

/// Gangs of 1 to 512 one-GPU members, eight shapes of pods, in 35 leaf queues.
fn events(nodes: usize, pods: usize) -> Vec<Event> {
    let mut events: Vec<Event> = (0..nodes).map(node).collect();
    events.extend((0..QUEUES).map(queue));
    let (mut made, mut gang) = (0, 0);
    while made < pods {
        let members = (gang * 37 % GANG_MAX + 1).min(pods - made);
        let name = format!("gang-{gang:05}");
        events.push(group(&name, members, 15 + gang % (QUEUES - 15), None));
        events.extend((0..members).map(|i| pod(&format!("{name}-{i}"), &name, 4 + gang % 8)));
        made += members;
        gang += 1;
    }
    events
}

fn told(nodes: usize, pods: usize) -> Scheduler {
    let mut scheduler = Scheduler::new(Config::default());
    for event in events(nodes, pods) {
        scheduler.apply(event);
    }
    scheduler
}

/// A cluster without work, and one gang of 4,096 pods that must be in one domain of a level.
fn with_gang(nodes: usize, members: usize, level: &str) -> Scheduler {
    let mut scheduler = told(nodes, 0);
    scheduler.plan(Timestamp::UNIX_EPOCH);
    scheduler.apply(group("big", members, 20, Some(json!({"required": level}))));
    for i in 0..members {
        scheduler.apply(pod(&format!("big-{i}"), "big", 4));
    }
    scheduler
}

fn plans(c: &mut Criterion) {
    let now = Timestamp::UNIX_EPOCH;
    let mut group = c.benchmark_group("plan");
    group.sample_size(10);
    for nodes in [100, 1_000, 10_000] {
        let pods = nodes * 10;
        let fresh = told(nodes, pods);
        let bound = fresh.clone().plan(now).binds.len();
        println!("{nodes} nodes: {bound} of {pods} pods are placed");
        group.throughput(Throughput::Elements(bound as u64));
        group.bench_function(BenchmarkId::new("first plan", nodes), |b| {
            b.iter_batched(
                || fresh.clone(),
                |mut s| (s.plan(now), s),
                BatchSize::PerIteration,
            );
        });
        group.throughput(Throughput::Elements(1));
        let mut full = fresh;
        full.plan(now);
        // Not the catching up of classes that were last asked about early in that plan.
        full.apply(pod("late", "", 4));
        full.plan(now);
        group.bench_function(BenchmarkId::new("nothing changed", nodes), |b| {
            b.iter(|| full.plan(now));
        });
        group.bench_function(
            BenchmarkId::new("one pod comes to the full cluster", nodes),
            |b| {
                let mut i = 0;
                b.iter_batched_ref(
                    || {
                        i += 1;
                        let mut s = full.clone();
                        s.apply(pod(&format!("late-{i}"), "", 4));
                        s
                    },
                    |s| s.plan(now),
                    BatchSize::PerIteration,
                );
            },
        );
    }
    let members = 4_096;
    for (name, level, fits) in [
        (
            "a gang of 4,096 in one zone",
            "topology.kubernetes.io/zone",
            true,
        ),
        (
            "a gang of 4,096 that no spine holds",
            "muster.io/spine",
            false,
        ),
    ] {
        let fresh = with_gang(10_000, members, level);
        let plan = fresh.clone().plan(now);
        assert_eq!(plan.binds.len(), if fits { members } else { 0 });
        if let Some(report) = plan.reports.first() {
            println!("{}", report.binding);
        }
        group.bench_function(name, |b| {
            b.iter_batched(
                || fresh.clone(),
                |mut s| (s.plan(now), s),
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

criterion_group!(benches, plans);
criterion_main!(benches);
