//! A rush: empty nodes, pods that each request one GPU, and one binder for all of them. Owns the setup and the
//! measurement at a real kube-apiserver, from its own audit log; the callers hold the limits.

mod audit;
mod ground;
mod shape;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;

use crate::{Cluster, Setup, Target, Write, cpu_seconds, eventually};
use audit::{Audit, Entry};
pub use shape::Shape;

/// Requests in flight during the setup.
const MAKERS: usize = 32;
/// Concurrent bindings of the plain client.
const PLAIN_IN_FLIGHT: usize = 64;
/// How long after its last write a binder counts as done.
const QUIET: Duration = Duration::from_secs(3);
/// The longest time for the bindings, or for the writes after them.
const LONGEST: Duration = Duration::from_secs(900);

/// The binder of the pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binder {
    /// A client that knows each pod's node and only sends the bindings, 64 at once: the limit of the API server
    /// itself.
    Plain,
    /// kube-scheduler, without its client's rate limits. It does not support gangs.
    KubeScheduler,
    /// `muster server kubernetes`.
    Muster,
}

impl Binder {
    /// Its name in a table.
    pub fn name(self) -> &'static str {
        match self {
            Binder::Plain => "API server's limit",
            Binder::KubeScheduler => "kube-scheduler",
            Binder::Muster => "muster",
        }
    }

    fn scheduler_name(self) -> &'static str {
        match self {
            Binder::Plain => "nobody",
            Binder::KubeScheduler => "default-scheduler",
            Binder::Muster => "muster",
        }
    }

    fn user(self) -> &'static str {
        match self {
            Binder::Plain => "admin",
            Binder::KubeScheduler => "system:kube-scheduler",
            Binder::Muster => "system:serviceaccount:muster-system:muster-server",
        }
    }

    /// Its program, unless it runs in this process.
    fn program(self) -> Option<&'static str> {
        match self {
            Binder::Plain => None,
            Binder::KubeScheduler => Some("kube-scheduler"),
            Binder::Muster => Some("muster"),
        }
    }
}

/// The nodes and the pods of a rush.
#[derive(Clone, Debug)]
pub struct Rush {
    /// Nodes.
    pub nodes: usize,
    /// GPUs of each node.
    pub gpus: usize,
    /// The pods, in gangs.
    pub shape: Shape,
    /// Whether kwok marks bound pods as running.
    pub kwok: bool,
}

/// The result of a rush.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Pods bound, each once.
    pub bound: usize,
    /// From the first binding to the last.
    pub span: Duration,
    /// From the binder's start to the last binding.
    pub after_start: Duration,
    /// Peak resident memory of the binder, in MiB; none for the plain client.
    pub peak_mib: Option<f64>,
    /// CPU time of the binder until its last write, in seconds.
    pub cpu: f64,
    /// CPU time of kube-apiserver and etcd until the last binding, in seconds.
    pub api_cpu: f64,
    /// The binder's writes other than bindings, by resource. Its lease is left out, because it is renewed by time.
    pub writes: BTreeMap<String, usize>,
}

impl Outcome {
    /// Bindings a second, from the first to the last.
    pub fn rate(&self) -> f64 {
        self.bound as f64 / self.span.as_secs_f64()
    }

    /// Writes per bound pod besides the binding.
    pub fn writes_a_pod(&self) -> f64 {
        self.writes.values().sum::<usize>() as f64 / self.bound as f64
    }
}

impl Rush {
    /// Creates a cluster with nodes, gangs and pods, and lets one binder bind them all. Fails if a pod is bound
    /// twice, or if not all are bound within a quarter of an hour.
    pub fn run(&self, binder: Binder) -> Outcome {
        let (pods, room) = (self.shape.pods(), self.nodes * self.gpus);
        assert!(
            pods <= room,
            "{pods} pods of one GPU do not fit {room} GPUs"
        );
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let cluster = Setup::default().audited().start();
        cluster.install_muster();
        let target = Arc::new(Target::of(&cluster.kubeconfig()));
        for stage in ground::stages(self, binder.scheduler_name()) {
            runtime.block_on(target.send_all(MAKERS, stage));
        }
        let cluster = if self.kwok {
            cluster.with_kwok()
        } else {
            cluster
        };
        std::thread::sleep(QUIET);

        let mut audit = Audit::behind(&cluster.audit_log());
        let api_before = api_cpu(&cluster);
        let own_before = cpu_seconds(std::process::id());
        let (cluster, started) = match binder {
            Binder::Plain => {
                let begin = Timestamp::now();
                runtime.block_on(target.send_all(PLAIN_IN_FLIGHT, self.bindings()));
                (cluster, begin)
            }
            Binder::KubeScheduler => started(cluster.with_scheduler(None), binder),
            Binder::Muster => started(cluster.with_muster(), binder),
        };
        let own = cpu_seconds(std::process::id()) - own_before;
        eventually("every pod is bound", LONGEST, || {
            // This fails if the binder has ended.
            let _ = binder.program().map(|program| cluster.cost(program));
            if audit.tried() < pods {
                return None;
            }
            audit.read();
            (audit.bindings().count() >= pods).then_some(())
        });
        let api_cpu = api_cpu(&cluster) - api_before;
        eventually("the binder has nothing left to write", LONGEST, || {
            audit.read();
            let last = audit.by(binder.user()).map(|entry| entry.at).max()?;
            let quiet = Timestamp::now().duration_since(last).unsigned_abs();
            (quiet > QUIET).then_some(())
        });
        let cost = binder.program().map(|program| cluster.cost(program));
        self.outcome(&audit, binder, started, cost, own, api_cpu)
    }

    /// A Binding for each pod, over the nodes in turn.
    fn bindings(&self) -> Vec<Write> {
        let names = self.shape.members();
        let all = names.enumerate().map(|(i, (_, pod))| {
            let path = format!("/api/v1/namespaces/default/pods/{pod}/binding");
            let binding = json!({
                "apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod},
                "target": {"kind": "Node", "name": ground::node_name(i % self.nodes)},
            });
            Write::create(&path, &binding)
        });
        all.collect()
    }

    fn outcome(
        &self,
        audit: &Audit,
        binder: Binder,
        started: Timestamp,
        cost: Option<crate::Cost>,
        own: f64,
        api_cpu: f64,
    ) -> Outcome {
        let mut times: Vec<Timestamp> = audit.bindings().map(|entry| entry.at).collect();
        times.sort_unstable();
        let pods: BTreeSet<&str> = audit.bindings().map(|entry| entry.name.as_str()).collect();
        assert_eq!(pods.len(), times.len(), "no pod is bound twice");
        let (first, last) = (times[0], times[times.len() - 1]);
        let mut writes = BTreeMap::new();
        let beside = |entry: &&Entry| entry.what != "pods/binding";
        for entry in audit.by(binder.user()).filter(beside) {
            *writes.entry(entry.what.clone()).or_insert(0) += 1;
        }
        Outcome {
            bound: pods.len(),
            span: last.duration_since(first).unsigned_abs(),
            after_start: last.duration_since(started).unsigned_abs(),
            peak_mib: cost.map(|cost| cost.peak_mib),
            cpu: cost.map_or(own, |cost| cost.cpu),
            api_cpu,
            writes,
        }
    }
}

fn api_cpu(cluster: &Cluster) -> f64 {
    cluster.cost("kube-apiserver").cpu + cluster.cost("etcd").cpu
}

fn started(cluster: Cluster, binder: Binder) -> (Cluster, Timestamp) {
    let program = binder.program().unwrap_or_default();
    let at = cluster.started(program);
    (cluster, at)
}
