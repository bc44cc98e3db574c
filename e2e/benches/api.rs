//! Compares the resource API with a real kube-apiserver and etcd: the same client code over HTTPS,
//! alternating in one run, as ratios. Both flush every acknowledged write (etcd by default).
//!
//! `make bench` runs it with the release binary.

use std::sync::Arc;
use std::time::{Duration, Instant};

use e2e::{Platform, Setup, Target, Write, cpu_seconds, resident_mib};
use futures::AsyncReadExt;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};

/// Writers at once.
const WRITERS: usize = 32;

/// Pods created per measurement, of Muster and of kube-apiserver; the rate is compared.
const OUR_PODS: usize = 12_000;
const THEIR_PODS: usize = 3_000;

/// Pods created before anything is measured.
const WARM: usize = 200;

/// How often the two alternate.
const TURNS: usize = 3;

/// How long both stay idle before their idle size is read.
const SETTLE: Duration = Duration::from_secs(5);

/// The length of the list.
const LISTED: usize = 10_000;

/// Watchers, and updates that each of them must see.
const WATCHERS: usize = 100;
const UPDATES: usize = 1_000;

async fn client_of(kubeconfig: Kubeconfig) -> Client {
    let options = KubeConfigOptions::default();
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .expect("a config");
    config.read_timeout = None;
    Client::try_from(config).expect("a client")
}

type Request = http::Request<Vec<u8>>;

fn request(method: &str, path: &str, kind: &str, body: Vec<u8>) -> Request {
    let request = http::Request::builder().method(method).uri(path);
    request
        .header("content-type", kind)
        .body(body)
        .expect("a request")
}

async fn get(client: &Client, path: &str) -> Result<usize, kube::Error> {
    Ok(client
        .request_text(request("GET", path, "application/json", Vec::new()))
        .await?
        .len())
}

fn pod(name: &str) -> Vec<u8> {
    serde_json::json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "bench", "job": "train"}},
        "spec": {
            "schedulerName": "nobody", "restartPolicy": "Never",
            "containers": [{
                "name": "c", "image": "registry.example/train:1", "command": ["python3", "train.py"],
                "env": [{"name": "RANK", "value": "0"}, {"name": "WORLD_SIZE", "value": "8"}],
                "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
            }],
        },
    })
    .to_string()
    .into_bytes()
}

/// Creates pods from all writers and answers pods a second.
async fn create(target: &Arc<Target>, prefix: &str, count: usize) -> f64 {
    let writes = (0..count)
        .map(|n| Write {
            method: http::Method::POST,
            path: "/api/v1/namespaces/default/pods".to_owned(),
            body: pod(&format!("{prefix}-{n}")).into(),
        })
        .collect();
    count as f64 / target.send_all(WRITERS, writes).await.as_secs_f64()
}

/// The seconds that one list of all pods takes, the best of three.
async fn list(client: &Client) -> (f64, usize) {
    let mut best = f64::MAX;
    let mut bytes = 0;
    for _ in 0..3 {
        let begin = Instant::now();
        bytes = get(client, "/api/v1/namespaces/default/pods?limit=10000")
            .await
            .expect("a list");
        best = best.min(begin.elapsed().as_secs_f64());
    }
    (best, bytes)
}

/// The seconds until every watcher has seen every update.
async fn fan_out(client: &Client) -> f64 {
    let collection = "/api/v1/namespaces/default/configmaps";
    let body =
        br#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"fan"},"data":{"n":"-"}}"#
            .to_vec();
    client
        .request_text(request("POST", collection, "application/json", body))
        .await
        .expect("created");
    let ready = Arc::new(tokio::sync::Barrier::new(WATCHERS + 1));
    let watchers: Vec<_> = (0..WATCHERS)
        .map(|_| {
            let (client, ready) = (client.clone(), ready.clone());
            tokio::spawn(async move {
                let path = format!("{collection}?watch=1&fieldSelector=metadata.name%3Dfan");
                let stream = client
                    .request_stream(request("GET", &path, "application/json", Vec::new()))
                    .await;
                let mut stream = Box::pin(stream.expect("a watch"));
                let mut chunk = vec![0u8; 64 * 1024];
                let mut lines = 0;
                // The first line is the object as it is.
                while lines < UPDATES + 1 {
                    let read = stream.read(&mut chunk).await.expect("events");
                    assert!(read > 0, "a watch ended early");
                    let before = lines;
                    lines += chunk[..read].iter().filter(|byte| **byte == b'\n').count();
                    if before == 0 && lines > 0 {
                        ready.wait().await;
                    }
                }
            })
        })
        .collect();
    ready.wait().await;
    let begin = Instant::now();
    for n in 0..UPDATES {
        let body = format!(r#"{{"data":{{"n":"{n}"}}}}"#).into_bytes();
        let path = format!("{collection}/fan");
        client
            .request_text(request(
                "PATCH",
                &path,
                "application/merge-patch+json",
                body,
            ))
            .await
            .expect("patched");
    }
    for watcher in watchers {
        watcher.await.expect("a watcher");
    }
    begin.elapsed().as_secs_f64()
}

/// The printed table: one measurement per row, with Muster's value, kube-apiserver's, and the
/// ratio.
struct Table(Vec<[String; 4]>);

impl Table {
    fn new() -> Table {
        let head = ["", "muster", "kube-apiserver + etcd", "times better"];
        Table(vec![head.map(str::to_string)])
    }

    fn row(&mut self, what: impl Into<String>, ours: f64, theirs: f64, better: f64) {
        let figure = |value: f64| match value {
            small if small < 10.0 => format!("{small:.2}"),
            large => format!("{large:.0}"),
        };
        let row = [
            what.into(),
            figure(ours),
            figure(theirs),
            format!("{better:.1}"),
        ];
        // The run takes minutes, so that each figure is printed as soon as it is known.
        eprintln!("{}: {} beside {}", row[0], row[1], row[2]);
        self.0.push(row);
    }

    fn print(&self) {
        let width = |column: usize| {
            let cells = self.0.iter().map(|row| row[column].len());
            cells.max().unwrap_or_default()
        };
        let widths = [width(0), width(1), width(2), width(3)];
        for row in &self.0 {
            println!(
                "{:<a$}  {:>b$}  {:>c$}  {:>d$}",
                row[0],
                row[1],
                row[2],
                row[3],
                a = widths[0],
                b = widths[1],
                c = widths[2],
                d = widths[3]
            );
        }
    }
}

fn main() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(compare());
}

async fn compare() {
    let platform = Platform::server(&[]);
    let kubeconfig = Kubeconfig::read_from(platform.kubeconfig()).expect("a kubeconfig");
    let our_target = Arc::new(Target::of(&platform.kubeconfig()));
    let ours = client_of(kubeconfig).await;
    let kubernetes = Setup::default().durable().start();
    let kubeconfig = Kubeconfig::read_from(kubernetes.kubeconfig()).expect("a kubeconfig");
    let their_target = Arc::new(Target::of(&kubernetes.kubeconfig()));
    let theirs = client_of(kubeconfig).await;
    let mut table = Table::new();
    let resident = |table: &mut Table, what: &str| {
        let our = resident_mib(platform.pid());
        let their = kubernetes.resident_mib();
        table.row(format!("resident {what}, MiB"), our, their, their / our);
    };
    tokio::time::sleep(SETTLE).await;
    resident(&mut table, "idle");

    create(&our_target, "warm", WARM).await;
    create(&their_target, "warm", WARM).await;
    let mut turns = Vec::new();
    let mut client_costs = Vec::new();
    for turn in 0..TURNS {
        let before = cpu_seconds(std::process::id());
        let our = create(&our_target, &format!("t{turn}"), OUR_PODS).await;
        let between = cpu_seconds(std::process::id());
        let their = create(&their_target, &format!("t{turn}"), THEIR_PODS).await;
        client_costs.push((
            (between - before) / OUR_PODS as f64 * 1e6,
            (cpu_seconds(std::process::id()) - between) / THEIR_PODS as f64 * 1e6,
        ));
        turns.push((our, their, our / their));
        let what = format!(
            "pods created a second, {WRITERS} writers, turn {}",
            turn + 1
        );
        table.row(what, our, their, our / their);
    }
    turns.sort_by(|a, b| a.2.total_cmp(&b.2));
    let (our, their, median) = turns[TURNS / 2];
    table.row("the median turn (5 times is asked for)", our, their, median);

    let (our, their) = client_costs[TURNS / 2];
    table.row("the client's own CPU a pod, µs", our, their, their / our);

    let theirs_there = TURNS * THEIR_PODS + WARM;
    create(&their_target, "fill", LISTED.saturating_sub(theirs_there)).await;
    let (our, our_bytes) = list(&ours).await;
    let (their, their_bytes) = list(&theirs).await;
    table.row(
        format!(
            "list of {LISTED} pods, ms ({:.1} MB and {:.1} MB)",
            our_bytes as f64 / 1e6,
            their_bytes as f64 / 1e6
        ),
        our * 1e3,
        their * 1e3,
        their / our,
    );
    let our = fan_out(&ours).await;
    let their = fan_out(&theirs).await;
    let what = format!("{UPDATES} updates to {WATCHERS} watchers, seconds");
    table.row(what, our, their, their / our);
    let ours_there = TURNS * OUR_PODS + WARM;
    resident(
        &mut table,
        &format!("with {ours_there} and {} pods", LISTED.max(theirs_there)),
    );
    table.print();
}
