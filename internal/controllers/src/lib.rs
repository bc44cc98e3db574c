//! The controllers' shell: watches feed pure reconcilers and the scheduler; what they
//! answer is written back. It decides nothing itself: decisions live in `scheduler` and
//! `workloads`.

pub mod jobs;
pub mod notes;
pub mod scheduling;
pub mod upkeep;

use std::sync::Arc;

/// What every control loop is given.
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
    /// The `schedulerName` values that Muster's scheduler answers to.
    pub scheduler_names: Vec<String>,
    /// How long a node may be silent before its pods are declared lost.
    pub node_grace: std::time::Duration,
    /// The first and last port handed out for rendezvous on nodes whose pods share the
    /// host's network.
    pub rendezvous_ports: std::ops::RangeInclusive<u16>,
}
