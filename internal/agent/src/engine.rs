//! What the agent needs of a container runtime, and the process runtime as one. Another (CRI)
//! takes its place behind the same trait; tests bring their own.

use std::time::Duration;

use futures::future::BoxFuture;
use runtime::{ContainerId, ContainerSpec, ContainerStatus, ExecOutcome, ProcessRuntime};
use tokio::sync::broadcast;

/// Runs containers. Errors are sentences for the pod's status.
pub trait Engine: Send + Sync + 'static {
    /// How it names itself in the node's information.
    fn name(&self) -> String;
    /// Its containers are counted GPUs from 0, whichever they were given.
    fn renumbers_devices(&self) -> bool;
    /// Starts a container; returns when it runs or can't.
    fn start(&self, spec: ContainerSpec) -> BoxFuture<'_, Result<ContainerStatus, String>>;
    /// Ends a container; returns when the request is safe, not when it has ended.
    fn stop<'a>(&'a self, id: &'a ContainerId, grace: Duration)
    -> BoxFuture<'a, Result<(), String>>;
    /// Forgets a container that has ended.
    fn remove<'a>(&'a self, id: &'a ContainerId) -> BoxFuture<'a, Result<(), String>>;
    /// Runs a command in a container.
    fn exec<'a>(
        &'a self,
        id: &'a ContainerId,
        command: Vec<String>,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<ExecOutcome, String>>;
    /// Finds the containers of an agent that ran before this one.
    fn recover(&self) -> BoxFuture<'_, Result<Vec<ContainerStatus>, String>>;
    /// What is known of all containers.
    fn list(&self) -> Vec<ContainerStatus>;
    /// News of containers; a reader that falls behind reads [`Engine::list`].
    fn changes(&self) -> broadcast::Receiver<ContainerStatus>;
    /// The pod has no containers any more.
    fn release<'a>(&'a self, _pod_uid: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }
}

impl Engine for ProcessRuntime {
    fn name(&self) -> String {
        concat!("muster-process://", env!("CARGO_PKG_VERSION")).to_owned()
    }

    fn renumbers_devices(&self) -> bool {
        false
    }

    fn start(&self, spec: ContainerSpec) -> BoxFuture<'_, Result<ContainerStatus, String>> {
        Box::pin(async move { ProcessRuntime::start(self, spec).await.map_err(text) })
    }

    fn stop<'a>(
        &'a self,
        id: &'a ContainerId,
        grace: Duration,
    ) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move { self.request_stop(id, grace).await.map_err(text) })
    }

    fn remove<'a>(&'a self, id: &'a ContainerId) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move { ProcessRuntime::remove(self, id).await.map_err(text) })
    }

    fn exec<'a>(
        &'a self,
        id: &'a ContainerId,
        command: Vec<String>,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<ExecOutcome, String>> {
        Box::pin(async move {
            ProcessRuntime::exec(self, id, command, timeout)
                .await
                .map_err(text)
        })
    }

    fn recover(&self) -> BoxFuture<'_, Result<Vec<ContainerStatus>, String>> {
        Box::pin(async move { ProcessRuntime::recover(self).await.map_err(text) })
    }

    fn list(&self) -> Vec<ContainerStatus> {
        ProcessRuntime::list(self)
    }

    fn changes(&self) -> broadcast::Receiver<ContainerStatus> {
        ProcessRuntime::changes(self)
    }
}

fn text(error: runtime::RuntimeError) -> String {
    error.to_string()
}
