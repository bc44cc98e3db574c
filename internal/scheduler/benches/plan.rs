//! How long plans take with nothing but the scheduler in the way: a cluster's first plan, one
//! without news, one for a single newcomer on a full cluster.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use jiff::Timestamp;
use scheduler::{Config, Event, Scheduler};
use serde_json::{Value, json};

const NODES: usize = 1_000;
const GPUS_EACH: usize = 8;
const PODS: usize = 8_000;
const GANG_MAX: usize = 64;

fn read<T: serde::de::DeserializeOwned>(value: Value) -> Box<T> {
    Box::new(serde_json::from_value(value).expect("the benchmark's objects are well formed"))
}

fn node(i: usize) -> Event {
    let name = format!("node-{i:05}");
    let gpus: Vec<Value> = (0..GPUS_EACH)
        .map(|g| json!({"id": format!("GPU-{i}-{g}"), "index": g, "numa": g * 2 / GPUS_EACH, "healthy": true}))
        .collect();
    Event::NodeChanged(read(json!({
        "metadata": {"name": name, "annotations": {"muster.io/inventory": json!({"gpus": gpus}).to_string()}},
        "status": {"allocatable": {"cpu": "128", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": GPUS_EACH.to_string()}},
    })))
}

fn group(name: &str, members: usize) -> Event {
    Event::PodGroupChanged(read(json!({
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "ns", "uid": name},
        "spec": {"minMember": members},
    })))
}

fn pod(name: &str, group: &str, cpus: usize) -> Event {
    Event::PodChanged(read(json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name, "annotations": {"scheduling.k8s.io/group-name": group}},
        "spec": {"schedulerName": "muster", "containers": [{"name": "main", "resources":
            {"requests": {"cpu": cpus.to_string(), "memory": "16Gi"}, "limits": {"nvidia.com/gpu": "1"}}}]},
    })))
}

/// Gangs of 1 to 64 one-GPU members, eight shapes of pods, as many as the cluster holds.
fn events() -> Vec<Event> {
    let mut events: Vec<Event> = (0..NODES).map(node).collect();
    let (mut made, mut gang) = (0, 0);
    while made < PODS {
        let members = (gang * 37 % GANG_MAX + 1).min(PODS - made);
        let name = format!("gang-{gang:05}");
        events.push(group(&name, members));
        events.extend((0..members).map(|i| pod(&format!("{name}-{i}"), &name, 4 + gang % 8)));
        made += members;
        gang += 1;
    }
    events
}

fn told() -> Scheduler {
    let mut scheduler = Scheduler::new(Config::default());
    for event in events() {
        scheduler.apply(event);
    }
    scheduler
}

fn plans(c: &mut Criterion) {
    let now = Timestamp::UNIX_EPOCH;
    let fresh = told();
    let bound = fresh.clone().plan(now).binds.len();
    assert!(
        bound > PODS * 9 / 10,
        "only {bound} of {PODS} pods were placed"
    );
    println!("{bound} of {PODS} pods are placed");

    let mut group = c.benchmark_group("plan");
    group.sample_size(20);
    group.throughput(Throughput::Elements(bound as u64));
    group.bench_function("8,000 pods in gangs of 1 to 64 on 1,000 nodes", |b| {
        b.iter_batched(
            || fresh.clone(),
            |mut s| (s.plan(now), s),
            BatchSize::LargeInput,
        );
    });
    group.throughput(Throughput::Elements((PODS + NODES) as u64));
    let all = events();
    group.bench_function("taking in the events of that cluster", |b| {
        b.iter_batched(
            || (Scheduler::new(Config::default()), all.clone()),
            |(mut s, events)| {
                events.into_iter().for_each(|event| s.apply(event));
                s
            },
            BatchSize::LargeInput,
        );
    });
    group.throughput(Throughput::Elements(1));
    let mut full = fresh.clone();
    full.plan(now);
    group.bench_function("nothing changed", |b| b.iter(|| full.plan(now)));
    group.bench_function("one pod comes to the full cluster and goes", |b| {
        let events = [super_group(), pod("late", "late", 4)];
        b.iter(|| {
            for event in &events {
                full.apply(event.clone());
            }
            let plan = full.plan(now);
            full.apply(Event::PodGone("ns".into(), "late".into()));
            plan
        });
    });
    group.finish();
}

fn super_group() -> Event {
    group("late", 1)
}

criterion_group!(benches, plans);
criterion_main!(benches);
