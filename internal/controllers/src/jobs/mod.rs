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

use kube::{Client, Resource, core::NamespaceResourceScope};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;

use crate::Context;

/// A namespaced object's place: namespace and name.
pub(crate) type Key = (String, String);

/// Starts the controllers of PyTorchJobs and of plain Jobs; they end when the context
/// says so.
#[must_use]
pub fn spawn(ctx: &Context) -> Vec<JoinHandle<()>> {
    let ports = ports::Book::new(ctx.config.rendezvous_ports.clone());
    vec![
        tokio::spawn(runner::run(ctx.clone(), pytorch::PyTorch::new(ports))),
        tokio::spawn(runner::run(ctx.clone(), batch::Batch)),
    ]
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
