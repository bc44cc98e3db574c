//! The interface between the agent and a container runtime, and its two implementations: processes
//! of the node, and images through CRI. Tests have their own.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use runtime::{
    AttachSession, ContainerId, ContainerSpec, ContainerStatus, CriRuntime, ExecCommand,
    ExecOutcome, ExecSession, ProcessRuntime, RuntimeError, Stats, WritableLayer,
};
use tokio::sync::broadcast;

use crate::lifecycle::StartBlock;

/// The engines that run the pods' containers.
pub struct Engines {
    /// Processes of this node.
    pub process: Arc<dyn ContainerEngine>,
    /// Images, if there is a container runtime.
    pub images: Option<Arc<dyn ContainerEngine>>,
}

/// Why a container was not started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotStarted {
    /// The run has failed: the restart policy decides on another try.
    Failed(String),
    /// A prerequisite is missing; the start is retried under any restart policy.
    Waiting(StartBlock),
}

/// Why an engine did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The runtime's error.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// The refusal of another engine, in a sentence.
    #[error("{0}")]
    Refused(String),
}

/// Runs containers.
pub trait ContainerEngine: Send + Sync + 'static {
    /// Its name in the node's information.
    fn name(&self) -> String;
    /// Whether its containers see their GPUs numbered from 0, whichever they were allocated.
    fn renumbers_devices(&self) -> bool;
    /// Fetches the prerequisites of a container; may take minutes and is cancelled by dropping the
    /// future.
    fn fetch<'a>(&'a self, _spec: &'a ContainerSpec) -> BoxFuture<'a, Result<(), NotStarted>> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// Starts a container; returns when it runs or can't.
    fn start(&self, spec: ContainerSpec) -> BoxFuture<'_, Result<ContainerStatus, NotStarted>>;
    /// Ends a container; returns when the request is saved, not when the container has ended.
    fn stop<'a>(
        &'a self,
        id: &'a ContainerId,
        grace: Duration,
    ) -> BoxFuture<'a, Result<(), EngineError>>;
    /// Removes the records of a container that has ended.
    fn remove<'a>(&'a self, id: &'a ContainerId) -> BoxFuture<'a, Result<(), EngineError>>;
    /// Runs a command in a container.
    fn exec<'a>(
        &'a self,
        id: &'a ContainerId,
        command: Vec<String>,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<ExecOutcome, EngineError>>;
    /// Starts a command in a container whose input and output the caller holds.
    fn exec_session(
        &self,
        _id: &ContainerId,
        _command: ExecCommand,
    ) -> Result<ExecSession, EngineError> {
        Err(no_exec())
    }
    /// Attaches a client to a running container's own output, and with `stdin` to its input.
    fn attach<'a>(
        &'a self,
        _id: &'a ContainerId,
        _stdin: bool,
    ) -> BoxFuture<'a, Result<AttachSession, EngineError>> {
        Box::pin(std::future::ready(Err(no_attach())))
    }
    /// The numbers of a running container's processes on this node, where they are known.
    fn processes(&self, _id: &ContainerId) -> Vec<i32> {
        Vec::new()
    }
    /// What a running container uses now; none if the engine does not know.
    fn usage<'a>(&'a self, _id: &'a ContainerId) -> BoxFuture<'a, Option<Stats>> {
        Box::pin(std::future::ready(None))
    }
    /// Finds the containers of an earlier agent.
    fn recover(&self) -> BoxFuture<'_, Result<Vec<ContainerStatus>, EngineError>>;
    /// Why it can start no isolated container, if it can't; `read_only_host`: such a container must
    /// see the host's own files read-only.
    fn unfit(&self, _read_only_host: bool) -> Option<String> {
        None
    }
    /// Whether it can run containers as other users than the agent's own.
    fn changes_users(&self) -> bool {
        false
    }
    /// The state of all containers.
    fn list(&self) -> Vec<ContainerStatus>;
    /// Changes of containers; a receiver that lags reads [`ContainerEngine::list`].
    fn changes(&self) -> broadcast::Receiver<ContainerStatus>;
    /// What containers wrote to their own file systems, for engines that store that apart from the
    /// pods' volumes.
    fn layers(&self) -> BoxFuture<'_, Result<Vec<WritableLayer>, EngineError>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }
    /// Notifies the engine that the pod has no containers any more.
    fn release<'a>(&'a self, _pod_uid: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }
}

macro_rules! engine {
    ($runtime:ty, name: $name:expr, renumbers: $renumbers:literal, fetch: $fetch:expr, release: $release:expr, unfit: $unfit:expr, users: $users:expr, layers: $layers:expr, exec: $exec:expr, attach: $attach:expr, processes: $processes:expr) => {
        impl ContainerEngine for $runtime {
            fn name(&self) -> String {
                ($name)(self)
            }

            fn renumbers_devices(&self) -> bool {
                $renumbers
            }

            fn fetch<'a>(
                &'a self,
                spec: &'a ContainerSpec,
            ) -> BoxFuture<'a, Result<(), NotStarted>> {
                ($fetch)(self, spec)
            }

            fn start(
                &self,
                spec: ContainerSpec,
            ) -> BoxFuture<'_, Result<ContainerStatus, NotStarted>> {
                Box::pin(async move { <$runtime>::start(self, spec).await.map_err(not_started) })
            }

            fn stop<'a>(
                &'a self,
                id: &'a ContainerId,
                grace: Duration,
            ) -> BoxFuture<'a, Result<(), EngineError>> {
                Box::pin(async move {
                    self.request_stop(id, grace)
                        .await
                        .map_err(EngineError::from)
                })
            }

            fn remove<'a>(&'a self, id: &'a ContainerId) -> BoxFuture<'a, Result<(), EngineError>> {
                Box::pin(async move {
                    <$runtime>::remove(self, id)
                        .await
                        .map_err(EngineError::from)
                })
            }

            fn exec<'a>(
                &'a self,
                id: &'a ContainerId,
                command: Vec<String>,
                timeout: Duration,
            ) -> BoxFuture<'a, Result<ExecOutcome, EngineError>> {
                Box::pin(async move {
                    <$runtime>::exec(self, id, command, timeout)
                        .await
                        .map_err(EngineError::from)
                })
            }

            fn exec_session(
                &self,
                id: &ContainerId,
                command: ExecCommand,
            ) -> Result<ExecSession, EngineError> {
                ($exec)(self, id, command)
            }

            fn attach<'a>(
                &'a self,
                id: &'a ContainerId,
                stdin: bool,
            ) -> BoxFuture<'a, Result<AttachSession, EngineError>> {
                ($attach)(self, id, stdin)
            }

            fn processes(&self, id: &ContainerId) -> Vec<i32> {
                ($processes)(self, id)
            }

            fn usage<'a>(&'a self, id: &'a ContainerId) -> BoxFuture<'a, Option<Stats>> {
                Box::pin(async move { self.stats(id).await.ok() })
            }

            fn recover(&self) -> BoxFuture<'_, Result<Vec<ContainerStatus>, EngineError>> {
                Box::pin(async move { <$runtime>::recover(self).await.map_err(EngineError::from) })
            }

            fn unfit(&self, read_only_host: bool) -> Option<String> {
                ($unfit)(self, read_only_host)
            }

            fn changes_users(&self) -> bool {
                ($users)(self)
            }

            fn list(&self) -> Vec<ContainerStatus> {
                <$runtime>::list(self)
            }

            fn changes(&self) -> broadcast::Receiver<ContainerStatus> {
                <$runtime>::changes(self)
            }

            fn layers(&self) -> BoxFuture<'_, Result<Vec<WritableLayer>, EngineError>> {
                ($layers)(self)
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
    fetch: nothing_to_fetch,
    release: nothing_to_release,
    unfit: |runtime: &ProcessRuntime, frozen| runtime.capabilities().unfit(frozen),
    users: |runtime: &ProcessRuntime| runtime.capabilities().users.works(),
    layers: no_layers,
    exec: |runtime: &ProcessRuntime, id: &ContainerId, command: ExecCommand| {
        runtime.exec_session(id, command).map_err(EngineError::from)
    },
    attach: attach_to_process,
    processes: ProcessRuntime::processes
);

engine!(
    CriRuntime,
    name: |runtime: &CriRuntime| runtime.version().to_owned(),
    renumbers: true,
    fetch: fetch_image,
    release: release_sandbox,
    unfit: |_: &CriRuntime, _| None,
    users: |_: &CriRuntime| true,
    layers: layers_of_images,
    exec: |_: &CriRuntime, _: &ContainerId, _: ExecCommand| Err(no_exec()),
    attach: attach_to_image,
    processes: |_: &CriRuntime, _: &ContainerId| Vec::new()
);

fn nothing_to_fetch<'a>(
    _: &'a ProcessRuntime,
    _: &'a ContainerSpec,
) -> BoxFuture<'a, Result<(), NotStarted>> {
    Box::pin(std::future::ready(Ok(())))
}

fn fetch_image<'a>(
    runtime: &'a CriRuntime,
    spec: &'a ContainerSpec,
) -> BoxFuture<'a, Result<(), NotStarted>> {
    Box::pin(async move {
        let image = spec.image.as_deref().unwrap_or_default();
        runtime.fetch(image, spec.pull).await.map_err(not_started)
    })
}

/// A container runtime that lacks an image or does not answer may recover; a refusal by this node
/// itself is permanent.
fn not_started(error: RuntimeError) -> NotStarted {
    let reason = match &error {
        RuntimeError::Image { reason, .. } => reason,
        RuntimeError::Cri { .. } => "CreateContainerError",
        _ => return NotStarted::Failed(error.to_string()),
    };
    NotStarted::Waiting(StartBlock {
        reason: reason.to_owned(),
        message: error.to_string(),
    })
}

/// A process writes only to the pod's volumes and to the node.
fn no_layers(_: &ProcessRuntime) -> BoxFuture<'_, Result<Vec<WritableLayer>, EngineError>> {
    Box::pin(std::future::ready(Ok(Vec::new())))
}

fn layers_of_images(
    runtime: &CriRuntime,
) -> BoxFuture<'_, Result<Vec<WritableLayer>, EngineError>> {
    Box::pin(async move { Ok(runtime.layers().await?) })
}

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

fn attach_to_process<'a>(
    runtime: &'a ProcessRuntime,
    id: &'a ContainerId,
    stdin: bool,
) -> BoxFuture<'a, Result<AttachSession, EngineError>> {
    Box::pin(async move { Ok(runtime.attach(id, stdin).await?) })
}

fn attach_to_image<'a>(
    _: &'a CriRuntime,
    _: &'a ContainerId,
    _: bool,
) -> BoxFuture<'a, Result<AttachSession, EngineError>> {
    Box::pin(std::future::ready(Err(no_attach())))
}

fn no_attach() -> EngineError {
    EngineError::Refused(
        "attach works in containers without an image only; `kubectl logs -f` shows the output of this one".to_owned(),
    )
}

fn no_exec() -> EngineError {
    EngineError::Refused(
        "exec works in containers without an image only; on the node, `crictl exec` runs a command \
         in this one"
            .to_owned(),
    )
}
