//! What the agent needs of a container runtime, and the two that it has: processes of the node,
//! and images through CRI. Tests bring their own.

use std::time::Duration;

use futures::future::BoxFuture;
use runtime::{
    ContainerId, ContainerSpec, ContainerStatus, CriRuntime, ExecOutcome, ProcessRuntime,
};
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
    fn stop<'a>(
        &'a self,
        id: &'a ContainerId,
        grace: Duration,
    ) -> BoxFuture<'a, Result<(), String>>;
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

macro_rules! engine {
    ($runtime:ty, name: $name:expr, renumbers: $renumbers:literal, release: $release:expr) => {
        impl Engine for $runtime {
            fn name(&self) -> String {
                ($name)(self)
            }

            fn renumbers_devices(&self) -> bool {
                $renumbers
            }

            fn start(&self, spec: ContainerSpec) -> BoxFuture<'_, Result<ContainerStatus, String>> {
                Box::pin(async move { <$runtime>::start(self, spec).await.map_err(text) })
            }

            fn stop<'a>(
                &'a self,
                id: &'a ContainerId,
                grace: Duration,
            ) -> BoxFuture<'a, Result<(), String>> {
                Box::pin(async move { self.request_stop(id, grace).await.map_err(text) })
            }

            fn remove<'a>(&'a self, id: &'a ContainerId) -> BoxFuture<'a, Result<(), String>> {
                Box::pin(async move { <$runtime>::remove(self, id).await.map_err(text) })
            }

            fn exec<'a>(
                &'a self,
                id: &'a ContainerId,
                command: Vec<String>,
                timeout: Duration,
            ) -> BoxFuture<'a, Result<ExecOutcome, String>> {
                Box::pin(async move {
                    <$runtime>::exec(self, id, command, timeout)
                        .await
                        .map_err(text)
                })
            }

            fn recover(&self) -> BoxFuture<'_, Result<Vec<ContainerStatus>, String>> {
                Box::pin(async move { <$runtime>::recover(self).await.map_err(text) })
            }

            fn list(&self) -> Vec<ContainerStatus> {
                <$runtime>::list(self)
            }

            fn changes(&self) -> broadcast::Receiver<ContainerStatus> {
                <$runtime>::changes(self)
            }

            fn release<'a>(&'a self, pod_uid: &'a str) -> BoxFuture<'a, ()> {
                ($release)(self, pod_uid)
            }
        }
    };
}

engine!(
    ProcessRuntime,
    name: |_: &ProcessRuntime| concat!("muster-process://", env!("CARGO_PKG_VERSION")).to_owned(),
    renumbers: false,
    release: nothing_to_release
);

engine!(
    CriRuntime,
    name: |runtime: &CriRuntime| runtime.version().to_owned(),
    renumbers: true,
    release: release_sandbox
);

fn nothing_to_release<'a>(_: &'a ProcessRuntime, _: &'a str) -> BoxFuture<'a, ()> {
    Box::pin(std::future::ready(()))
}

fn release_sandbox<'a>(runtime: &'a CriRuntime, pod_uid: &'a str) -> BoxFuture<'a, ()> {
    Box::pin(async move {
        if let Err(error) = runtime.release(pod_uid).await {
            tracing::warn!(pod_uid, %error, "a pod's sandbox was not removed");
        }
    })
}

fn text(error: runtime::RuntimeError) -> String {
    error.to_string()
}
