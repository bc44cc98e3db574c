//! The job controllers: watches of jobs and of what they made feed the pure reconcilers
//! of `workloads`; their answers are carried out. Owns the wiring; it decides nothing
//! about jobs itself.

mod apply;
mod batch;
mod difference;
mod mirror;
mod ports;
mod pytorch;
mod queue;
mod runner;

use std::time::Duration;

use kube::{Client, Resource, core::NamespaceResourceScope};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;

use crate::Context;

/// A namespaced object's place: namespace and name.
pub(crate) type Key = (String, String);

/// How long a controller that panicked is left alone before it is started again.
const RESTART_AFTER: Duration = Duration::from_secs(1);

/// A kind of job that can be controlled here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobKind {
    /// `batch/v1` Job. In a Kubernetes cluster it is kube-controller-manager's.
    Job,
    /// `kubeflow.org/v1` PyTorchJob.
    PyTorchJob,
}

impl JobKind {
    /// All of them.
    pub const ALL: [JobKind; 2] = [JobKind::Job, JobKind::PyTorchJob];

    /// As manifests spell it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            JobKind::Job => "Job",
            JobKind::PyTorchJob => "PyTorchJob",
        }
    }
}

/// Starts the controllers of the configured kinds; they end when the context says so. Must be
/// called within a tokio runtime.
#[must_use]
pub fn spawn(ctx: &Context) -> Vec<JoinHandle<()>> {
    let start = |kind: &JobKind| match kind {
        JobKind::Job => tokio::spawn(kept_running(ctx.clone(), || batch::Batch)),
        JobKind::PyTorchJob => {
            let config = ctx.config.clone();
            let make = move || {
                let ports = ports::Book::new(config.rendezvous_ports.clone());
                pytorch::PyTorch::new(ports, config.scheduler.scheduler_names.first().cloned())
            };
            tokio::spawn(kept_running(ctx.clone(), make))
        }
    };
    ctx.config.jobs.iter().map(start).collect()
}

/// Runs a controller until the context says stop, again after a panic: it starts from
/// what the API says, so nothing is lost with it.
async fn kept_running<W: runner::Workload>(mut ctx: Context, make: impl Fn() -> W) {
    loop {
        let ended = crate::again::apart(runner::run(ctx.clone(), make())).await;
        let Err(error) = ended else { return };
        tracing::error!(
            controller = W::COMPONENT, %error,
            "a job controller ended unexpectedly and is started again"
        );
        tokio::select! {
            // Told, or nobody is left to tell: either way it is over.
            _ = ctx.stop.wait_for(|stop| *stop) => return,
            () = tokio::time::sleep(RESTART_AFTER) => {}
        }
    }
}

/// What the runner needs of an object's type.
pub(crate) trait Object:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + std::fmt::Debug
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
}

impl<K> Object for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + Serialize
        + DeserializeOwned
        + Send
        + Sync
        + 'static
{
}

/// The namespace and name of an object.
pub(crate) fn key_of<K: Resource>(object: &K) -> Key {
    let meta = object.meta();
    (
        meta.namespace.clone().unwrap_or_default(),
        meta.name.clone().unwrap_or_default(),
    )
}

/// The objects of one kind in one namespace.
pub(crate) fn api<K: Object>(client: &Client, namespace: &str) -> kube::Api<K> {
    kube::Api::namespaced(client.clone(), namespace)
}
