//! The cost of pod isolation, and of request limits, authorization and audit: the start time of a pod and the rate of
//! creates, compared for two binaries that alternate in one run.
//!
//! `e2e/bench-closed BEFORE` runs it. `MUSTER_BEFORE` and `MUSTER_AFTER` name the binaries; each turn of a binary is
//! its own process (`MUSTER_BINARY`, which the harness reads) with its own servers.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use e2e::{Platform, Target, Write, resident_mib, run};
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{PostParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use serde_json::{Value, json};

/// Turns of each binary.
const TURNS: usize = 3;

/// Pods that are started in sequence in a turn, after the uncounted warm-up pods.
const STARTS: usize = 30;
const WARM_STARTS: usize = 3;

/// Objects created of each kind in a turn, after uncounted warm-up objects, and the concurrent writers.
const CREATES: usize = 6_000;
const WARM_CREATES: usize = 300;
const WRITERS: usize = 32;

/// How long a pod may take to run.
const START_MAX: u32 = 60;

/// Set for the process of one turn.
const TURN: &str = "MUSTER_BENCH_TURN";

const PODS: &str = "/api/v1/namespaces/default/pods";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn pod(name: &str, scheduler: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "bench"}},
        "spec": {
            "restartPolicy": "Never", "schedulerName": scheduler,
            "containers": [{
                "name": "c", "command": ["sleep", "600"],
                "env": [{"name": "RANK", "value": "0"}, {"name": "WORLD_SIZE", "value": "8"}],
                "resources": {"requests": {"cpu": "10m", "memory": "8Mi"}},
            }],
        },
    })
}

fn config_map(name: &str) -> Value {
    let data = json!({"a": "x".repeat(200), "b": "y".repeat(200)});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

async fn pods_of(platform: &Platform) -> Api<Pod> {
    let kubeconfig = Kubeconfig::read_from(platform.kubeconfig()).expect("a kubeconfig");
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await;
    let mut config = config.expect("a config");
    config.read_timeout = None;
    Api::default_namespaced(Client::try_from(config).expect("a client"))
}

/// The time from the create request of a pod to the event that it runs.
async fn start(pods: &Api<Pod>, name: &str) -> Duration {
    let pod = serde_json::from_value(pod(name, "default-scheduler")).expect("a pod");
    let begin = Instant::now();
    let made = pods.create(&PostParams::default(), &pod).await;
    let version = made.expect("created").metadata.resource_version;
    let own = format!("metadata.name={name}");
    let parameters = WatchParams::default().fields(&own).timeout(START_MAX);
    let events = pods
        .watch(&parameters, &version.expect("a version"))
        .await
        .expect("a watch");
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.try_next().await.expect("events") {
        if let WatchEvent::Added(pod) | WatchEvent::Modified(pod) = event
            && pod
                .status
                .is_some_and(|status| status.phase.as_deref() == Some("Running"))
        {
            return begin.elapsed();
        }
    }
    panic!("{name} does not run within {START_MAX} s");
}

/// Objects created a second.
async fn creates(
    target: &Arc<Target>,
    path: &str,
    count: usize,
    object: impl Fn(usize) -> Value,
) -> f64 {
    let writes = (0..count).map(|at| Write::create(path, &object(at)));
    let taken = target.send_all(WRITERS, writes.collect()).await;
    count as f64 / taken.as_secs_f64()
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// One turn of the binary in `MUSTER_BINARY`: prints a line for each measurement, with the value after a tab.
async fn turn() {
    let platform = Platform::up(&[]);
    let pods = pods_of(&platform).await;
    let mut starts = Vec::new();
    for at in 0..WARM_STARTS + STARTS {
        let taken = start(&pods, &format!("start-{at}")).await;
        starts.push(taken.as_secs_f64() * 1e3);
    }
    println!(
        "start of a pod, ms\t{}",
        median(starts.split_off(WARM_STARTS))
    );
    drop(platform);

    let platform = Platform::server(&[]);
    let target = Arc::new(Target::of(&platform.kubeconfig()));
    for (kind, path) in [("ConfigMaps", CONFIG_MAPS), ("pods", PODS)] {
        let object = |prefix: &'static str| {
            move |at: usize| match kind {
                "pods" => pod(&format!("{prefix}-{at}"), "nobody"),
                _ => config_map(&format!("{prefix}-{at}")),
            }
        };
        creates(&target, path, WARM_CREATES, object("warm")).await;
        let rate = creates(&target, path, CREATES, object("made")).await;
        println!("{kind} created a second\t{rate}");
    }
    println!("resident afterwards, MiB\t{}", resident_mib(platform.pid()));
}

/// The two binaries: their names in the table and their paths.
fn binaries() -> [(&'static str, PathBuf); 2] {
    [("before", "MUSTER_BEFORE"), ("after", "MUSTER_AFTER")].map(|(name, variable)| {
        let path = std::env::var_os(variable).map(PathBuf::from);
        let path = path.filter(|path| path.exists());
        let path = path.unwrap_or_else(|| panic!("{variable}: name a muster binary that exists"));
        (name, path)
    })
}

fn compare() {
    let binaries = binaries();
    let this = std::env::current_exe().expect("this program's path");
    let mut order: Vec<String> = Vec::new();
    let mut found: BTreeMap<(String, &str), Vec<f64>> = BTreeMap::new();
    for number in 1..=TURNS {
        for (name, binary) in &binaries {
            let mut turn = Command::new(&this);
            turn.env(TURN, "1").env("MUSTER_BINARY", binary);
            let out = run(&mut turn).ok();
            for (measure, value) in out.lines().filter_map(|line| line.split_once('\t')) {
                let value: f64 = value.parse().expect("a number");
                eprintln!("turn {number}, {name}: {measure}: {value:.1}");
                if !order.iter().any(|known| known == measure) {
                    order.push(measure.to_owned());
                }
                let key = (measure.to_owned(), *name);
                found.entry(key).or_default().push(value);
            }
        }
    }
    println!(
        "{:<28} {:>10} {:>10} {:>9}",
        format!("median of {TURNS} turns"),
        "before",
        "after",
        "change"
    );
    for measure in order {
        let of = |name: &'static str| {
            let values = found.get(&(measure.clone(), name)).cloned();
            median(values.unwrap_or_else(|| vec![f64::NAN]))
        };
        let (before, after) = (of("before"), of("after"));
        let change = (after / before - 1.0) * 100.0;
        println!("{measure:<28} {before:>10.1} {after:>10.1} {change:>+8.1}%");
    }
}

fn main() {
    if std::env::var_os(TURN).is_none() {
        return compare();
    }
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(turn());
}
