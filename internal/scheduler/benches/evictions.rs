//! How long it takes to find whom to evict: a gang of 512 GPUs that is entitled to them, from 4,000
//! running pods of a queue beyond its share; and whom to move: two nodes are cleared for a gang where
//! every node has half of its GPUs free.

use criterion::{BatchSize, Bencher, Criterion, criterion_group, criterion_main};
use jiff::Timestamp;
use scheduler::{Actions, Config, Event, Scheduler};
use serde_json::{Value, json};

const NODES: usize = 500;
const GPUS_EACH: usize = 8;
const WANTED: usize = 512;

fn read<T: serde::de::DeserializeOwned>(value: Value) -> Box<T> {
    Box::new(serde_json::from_value(value).expect("the benchmark's objects are well formed"))
}

fn node(i: usize) -> Event {
    Event::NodeChanged(read(json!({
        "metadata": {"name": format!("node-{i:05}")},
        "status": {"allocatable": {"cpu": "128", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": GPUS_EACH.to_string()}},
    })))
}

fn queue(name: &str, gpus: usize) -> Event {
    Event::QueueChanged(read(json!({
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": name},
        "spec": {"deserved": {"nvidia.com/gpu": gpus.to_string(), "cpu": "1000000", "memory": "1000Ti"}},
    })))
}

fn gang(
    name: &str,
    queue: &str,
    members: usize,
    gpus: usize,
    bound: impl Fn(usize) -> Option<usize>,
) -> Vec<Event> {
    let mut events = vec![Event::PodGroupChanged(read(json!({
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "ns", "uid": name},
        "spec": {"minMember": members, "queue": queue},
    })))];
    for i in 0..members {
        let mut pod = json!({
            "metadata": {"name": format!("{name}-{i}"), "namespace": "ns", "uid": format!("{name}-{i}"),
                "annotations": {"scheduling.k8s.io/group-name": name}},
            "spec": {"schedulerName": "muster", "containers": [{"name": "main", "resources":
                {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"nvidia.com/gpu": gpus.to_string()}}}]},
        });
        if let Some(node) = bound(i) {
            pod["spec"]["nodeName"] = json!(format!("node-{node:05}"));
            pod["status"] = json!({"phase": "Running", "startTime": "2026-01-01T00:00:00Z"});
        }
        events.push(Event::PodChanged(read(pod)));
    }
    events
}

/// 4,000 running pods in gangs of `size`; a gang of 512 GPUs in pods of `each` waits.
fn told(size: usize, each: usize) -> Scheduler {
    let mut scheduler = Scheduler::new(Config::default());
    for event in (0..NODES).map(node) {
        scheduler.apply(event);
    }
    scheduler.apply(queue("greedy", 1000));
    scheduler.apply(queue("entitled", 3000));
    let gpus = NODES * GPUS_EACH;
    for at in 0..gpus / size {
        // Neighbours in a gang are not neighbours on a node.
        let place = |i: usize| Some((at * size + i) * 7 % gpus / GPUS_EACH);
        for event in gang(&format!("old-{at:05}"), "greedy", size, 1, place) {
            scheduler.apply(event);
        }
    }
    scheduler.plan(Timestamp::UNIX_EPOCH);
    for event in gang("new", "entitled", WANTED / each, each, |_| None) {
        scheduler.apply(event);
    }
    scheduler
}

/// Times the plan that what was told asks for.
fn time_plan(b: &mut Bencher, told: &Scheduler) {
    b.iter_batched(
        || told.clone(),
        |mut scheduler| scheduler.plan(Timestamp::UNIX_EPOCH),
        BatchSize::LargeInput,
    );
}

fn reclaim(c: &mut Criterion) {
    let mut cases = c.benchmark_group("reclaim 512 GPUs from 4,000 pods");
    cases.sample_size(10);
    for (size, each) in [(1, 1), (8, 1), (1, 8), (4, 8)] {
        let told = told(size, each);
        let plan = told.clone().plan(Timestamp::UNIX_EPOCH);
        println!(
            "gangs of {size}, pods of {each}: {} evictions",
            plan.evictions.len()
        );
        cases.bench_function(format!("gangs of {size}, wanted in pods of {each}"), |b| {
            time_plan(b, &told)
        });
    }
    cases.finish();
}

/// Half of each node's GPUs are held, one by one, by gangs of four across four nodes; a gang of two
/// pods that need one node each waits.
fn scattered(nodes: usize) -> Scheduler {
    let mut scheduler = Scheduler::new(Config {
        actions: Actions {
            consolidate: true,
            ..Actions::default()
        },
        ..Config::default()
    });
    for event in (0..nodes).map(node) {
        scheduler.apply(event);
    }
    scheduler.apply(queue("all", nodes * GPUS_EACH));
    for at in 0..nodes {
        let place = |i: usize| Some((at + i * nodes / 4) % nodes);
        for event in gang(&format!("old-{at:05}"), "all", 4, 1, place) {
            scheduler.apply(event);
        }
    }
    scheduler.plan(Timestamp::UNIX_EPOCH);
    for event in gang("new", "all", 2, GPUS_EACH, |_| None) {
        scheduler.apply(event);
    }
    scheduler
}

fn consolidate(c: &mut Criterion) {
    let mut cases = c.benchmark_group("two nodes of those that are half held");
    cases.sample_size(10);
    for nodes in [100, 1_000, 10_000] {
        let told = scattered(nodes);
        let plan = told.clone().plan(Timestamp::UNIX_EPOCH);
        println!("{nodes} nodes: {} moves", plan.evictions.len());
        cases.bench_function(format!("cleared among {nodes}"), |b| time_plan(b, &told));
    }
    cases.finish();
}

criterion_group!(benches, reclaim, consolidate);
criterion_main!(benches);
