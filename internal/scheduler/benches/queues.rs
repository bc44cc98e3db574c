//! How long a plan takes with 50 queues in three levels and 100,000 waiting pods in gangs of 1 to
//! 512 on 10,000 nodes: `NODES`, `PODS`, `GANG_MAX` and `POLICY` in the environment change it.
//! Prints one line a run; the state is built once and cloned. Rates are by CPU time.

use std::time::Instant;

use jiff::Timestamp;
use scheduler::{Config, Event, Scheduler};
use serde_json::{Value, json};

const RUNS: usize = 3;

fn given(name: &str, default: usize) -> usize {
    let word = std::env::var(name).ok();
    word.and_then(|word| word.parse().ok()).unwrap_or(default)
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> Box<T> {
    Box::new(serde_json::from_value(value).expect("the benchmark's objects are well formed"))
}

fn node(i: usize) -> Event {
    Event::NodeChanged(read(json!({
        "metadata": {"name": format!("node-{i:05}")},
        "status": {"allocatable": {"cpu": "128", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": "8"}},
    })))
}

/// 2 divisions, 8 departments, 40 teams.
fn queues(policy: &str, gpus: usize) -> Vec<Event> {
    let mut events = Vec::new();
    let mut put = |name: String, parent: String, i: usize, part: usize| {
        let deserved = json!({"nvidia.com/gpu": (gpus / part).to_string()});
        events.push(Event::QueueChanged(read(json!({
            "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue",
            "metadata": {"name": name, "annotations": {"muster.io/policy": policy}},
            "spec": {"weight": i % 4 + 1, "parent": parent, "deserved": deserved,
                "capability": {"nvidia.com/gpu": gpus.to_string()}},
        }))));
    };
    for i in 0..2 {
        put(format!("division-{i}"), String::new(), i, 4);
    }
    for i in 0..8 {
        put(
            format!("department-{i}"),
            format!("division-{}", i % 2),
            i,
            16,
        );
    }
    for i in 0..40 {
        put(format!("team-{i}"), format!("department-{}", i % 8), i, 80);
    }
    events
}

fn gang(name: &str, members: usize, queue: &str, cpus: usize) -> Vec<Event> {
    let group = json!({
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "ns", "uid": name},
        "spec": {"minMember": members, "queue": queue},
    });
    let mut events = vec![Event::PodGroupChanged(read(group))];
    for i in 0..members {
        let name_of = format!("{name}-{i}");
        events.push(Event::PodChanged(read(json!({
            "metadata": {"name": name_of, "namespace": "ns", "uid": name_of,
                "annotations": {"scheduling.k8s.io/group-name": name}},
            "spec": {"schedulerName": "muster", "containers": [{"name": "main", "resources":
                {"requests": {"cpu": cpus.to_string(), "memory": "16Gi"},
                 "limits": {"nvidia.com/gpu": "1"}}}]},
        }))));
    }
    events
}

/// What this thread has worked, for machines that others work on too.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = stat.split(' ').next().and_then(|word| word.parse().ok());
    nanos.unwrap_or(0.0) / 1e9
}

fn main() {
    let (nodes, pods) = (given("NODES", 10_000), given("PODS", 100_000));
    let gang_max = given("GANG_MAX", 512);
    let policy = std::env::var("POLICY").unwrap_or_else(|_| "priority".into());
    let mut scheduler = Scheduler::new(Config::default());
    (0..nodes).for_each(|i| scheduler.apply(node(i)));
    let told = Instant::now();
    for event in queues(&policy, nodes * 8) {
        scheduler.apply(event);
    }
    let (mut made, mut n) = (0, 0);
    while made < pods {
        let members = (n * 37 % gang_max + 1).min(pods - made);
        let name = format!("gang-{n:06}");
        for event in gang(&name, members, &format!("team-{}", n % 40), 1 + n % 8) {
            scheduler.apply(event);
        }
        made += members;
        n += 1;
    }
    println!("{made} pods in {n} gangs told in {:.2?}", told.elapsed());
    for _ in 0..RUNS {
        let mut scheduler = scheduler.clone();
        let (began, worked) = (Instant::now(), cpu_seconds());
        let plan = scheduler.plan(Timestamp::UNIX_EPOCH);
        let (took, worked) = (began.elapsed(), cpu_seconds() - worked);
        let bound = plan.binds.len();
        let rate = bound as f64 / worked;
        let waiting = plan.reports.len();
        println!(
            "{bound} bound, {waiting} gangs wait: {took:.2?}, {:.0} ms of CPU, {rate:.0} pods/s of CPU",
            worked * 1e3
        );
    }
}
