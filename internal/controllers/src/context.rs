//! What every control loop gets: the client, the settings and the signal to stop.

use std::collections::BTreeSet;
use std::sync::Arc;

use scheduler::Config as SchedulerConfig;

use crate::job_kind::JobKind;

/// The context of every control loop.
#[derive(Clone)]
pub struct Context {
    /// The resource API: the embedded engine in process, or a real kube-apiserver.
    pub client: kube::Client,
    /// Settings that do not change while the server runs.
    pub config: Arc<Config>,
    /// Turns true when the server is stopping.
    pub stop: tokio::sync::watch::Receiver<bool>,
}

/// Settings of the control loops.
#[derive(Clone, Debug)]
pub struct Config {
    /// The scheduler's settings: its scheduler names and its policies. A pod that a job controller
    /// creates from a template without `schedulerName` gets the first of the names.
    pub scheduler: SchedulerConfig,
    /// The kinds of jobs to control; other kinds belong to other operators.
    pub jobs: BTreeSet<JobKind>,
    /// Whether to run the loops that Kubernetes' own controllers and kubelets run in a cluster:
    /// garbage collection, namespaces, endpoints, claims, node life cycle, disruption budget
    /// statuses.
    pub core_controllers: bool,
    /// How long a node may be silent before its pods are declared lost.
    pub node_grace: std::time::Duration,
    /// The first and last rendezvous port for nodes whose pods share the host's network. An empty
    /// range means that every pod has a network of its own.
    pub rendezvous_ports: std::ops::RangeInclusive<u16>,
    /// The certificate of the server's authority, as PEM, which every namespace has as the ConfigMap
    /// `kube-root-ca.crt`. None in a Kubernetes cluster, whose own controller publishes it.
    pub root_ca: Option<String>,
}
