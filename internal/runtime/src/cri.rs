//! Containers of images, through the socket of a container runtime (containerd, CRI-O) that
//! speaks the container runtime interface v1. The same shape as
//! [`crate::process::ProcessRuntime`].
//!
//! Owns the pods' sandboxes (with the node's network) and the containers labelled as this
//! owner's; others on the same runtime are not touched. The runtime keeps the containers,
//! so nothing is on disk here but their logs.

pub mod api;
mod calls;
pub mod convert;
mod sub_paths;
mod watch;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use jiff::Timestamp;
use tokio::sync::broadcast;
use tonic::transport::{Channel, Endpoint, Uri};

use crate::cgroup::{self, HierarchyLayout};
use crate::error::RuntimeError;
use crate::logs::{LogRead, read_logs};
use crate::process::{ExecOutcome, MAX_CHANGES, Stats};
use crate::spec::{ContainerId, ContainerSpec, LogSettings, PullPolicy, SpecError};
use crate::state::{ContainerExit, ContainerState, ContainerStatus};
use crate::waiting;
use sub_paths::{SubPathError, SubPaths};

/// How long a call may take that says nothing of it.
const CALL_LIMIT: Duration = Duration::from_secs(120);
/// How long connecting may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How long beyond its grace period a stop may take.
const STOP_SLACK: Duration = Duration::from_secs(30);

/// How a [`CriRuntime`] works.
#[derive(Clone, Debug)]
pub struct CriConfig {
    /// The runtime's socket, for instance `/run/containerd/containerd.sock`.
    pub socket: PathBuf,
    /// Whose containers these are: the node's name. Two agents on one runtime need two.
    pub owner: String,
    /// The runtime's handler (`nvidia`, `runc`); empty for its default.
    pub runtime_handler: String,
    /// A directory of the agent's alone, for the subPaths of containers that start. The container
    /// runtime must see what is mounted below it.
    pub sub_paths: PathBuf,
}

/// Runs containers of images. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct CriRuntime {
    shared: Arc<CriState>,
}

struct CriState {
    config: CriConfig,
    channel: Channel,
    /// What the runtime calls itself.
    version: String,
    /// The node's control groups.
    cgroups: HierarchyLayout,
    table: Mutex<BTreeMap<ContainerId, ContainerEntry>>,
    /// One sandbox is made at a time, so that a pod's containers share theirs.
    sandboxes: tokio::sync::Mutex<()>,
    changes: broadcast::Sender<ContainerStatus>,
}

/// What a container wrote to its own file system, over its image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WritableLayer {
    /// The pod's uid.
    pub pod_uid: String,
    /// The container's name.
    pub container: String,
    /// Bytes of the disk that it takes.
    pub bytes: u64,
    /// Its inodes.
    pub files: u64,
    /// A directory of the file system that it is on; empty if the runtime does not say.
    pub mountpoint: PathBuf,
}

struct ContainerEntry {
    /// The runtime's id for it; empty while it is being made.
    cri_id: String,
    status: ContainerStatus,
    log: LogSettings,
}

impl CriRuntime {
    /// Connects, asks the runtime whether it is ready, and starts watching. Call it inside a
    /// tokio runtime, then [`CriRuntime::recover`].
    pub async fn connect(config: CriConfig) -> Result<CriRuntime, RuntimeError> {
        let endpoint = config.socket.display().to_string();
        let failed = |action: &str, detail: String| RuntimeError::Cri {
            endpoint: endpoint.clone(),
            action: action.into(),
            detail,
        };
        let socket = config.socket.clone();
        let connector = tower::service_fn(move |_: Uri| {
            let socket = socket.clone();
            async move {
                tokio::net::UnixStream::connect(socket)
                    .await
                    .map(hyper_util::rt::TokioIo::new)
            }
        });
        // The address is not used: the connector knows where to go.
        let channel = Endpoint::from_static("http://localhost")
            .connect_timeout(CONNECT_LIMIT)
            .connect_with_connector(connector)
            .await
            .map_err(|e| failed("connect", chain(&e)))?;
        let (changes, _) = broadcast::channel(MAX_CHANGES);
        let mut shared = CriState {
            config,
            channel,
            version: String::new(),
            cgroups: HierarchyLayout::detect(),
            table: Mutex::default(),
            sandboxes: tokio::sync::Mutex::default(),
            changes,
        };
        let version = shared
            .call(
                "version",
                CALL_LIMIT,
                shared.runtime().version(api::VersionRequest {
                    version: "v1".into(),
                }),
            )
            .await?;
        shared.version = format!("{}://{}", version.runtime_name, version.runtime_version);
        let status = shared
            .call(
                "status",
                CALL_LIMIT,
                shared
                    .runtime()
                    .status(api::StatusRequest { verbose: false }),
            )
            .await?;
        let unready = status
            .status
            .into_iter()
            .flat_map(|status| status.conditions)
            .find(|c| c.r#type == "RuntimeReady" && !c.status);
        if let Some(condition) = unready {
            return Err(failed(
                "status",
                format!("not ready: {} {}", condition.reason, condition.message),
            ));
        }
        sub_paths::clear(&shared.config.sub_paths)?;
        let runtime = CriRuntime {
            shared: Arc::new(shared),
        };
        watch::start(&runtime.shared);
        Ok(runtime)
    }

    /// The runtime's name and version, as `containerd://1.6.20`.
    pub fn version(&self) -> &str {
        &self.shared.version
    }

    /// Finds the containers that an earlier agent of the same owner left. Those that it made
    /// and did not come to start are removed: nothing has run in them.
    pub async fn recover(&self) -> Result<Vec<ContainerStatus>, RuntimeError> {
        let shared = &self.shared;
        shared.observe().await?;
        let unstarted: Vec<(ContainerId, String)> = {
            let table = shared.table();
            let made = table
                .iter()
                .filter(|(_, entry)| entry.status.state == ContainerState::Starting);
            made.map(|(id, entry)| (id.clone(), entry.cri_id.clone()))
                .collect()
        };
        for (id, container_id) in unstarted {
            let request = api::RemoveContainerRequest { container_id };
            shared
                .call(
                    "remove a container",
                    CALL_LIMIT,
                    shared.runtime().remove_container(request),
                )
                .await?;
            shared.table().remove(&id);
        }
        Ok(self.list())
    }

    /// Sees to it that an image is on the node; may take as long as a download, and can be
    /// called off by dropping it.
    pub async fn fetch(&self, image: &str, policy: PullPolicy) -> Result<(), RuntimeError> {
        self.shared.ensure_image(image, policy).await.map(drop)
    }

    /// Fetches the image if need be, makes the pod's sandbox if it has none, and starts the
    /// container. One that was made and could not start is [`ContainerState::Exited`] with
    /// [`crate::ExitReason::StartError`]; an error means that there is none.
    pub async fn start(&self, spec: ContainerSpec) -> Result<ContainerStatus, RuntimeError> {
        spec.validate()?;
        let shared = &self.shared;
        let Some(image) = spec.image.clone().filter(|image| !image.is_empty()) else {
            return Err(RuntimeError::Spec(SpecError {
                field: "image".into(),
                value: String::new(),
                detail: "write an image, which a container runtime needs".into(),
            }));
        };
        let id = spec.id.clone();
        if shared.table().contains_key(&id) {
            return Err(RuntimeError::Exists(id));
        }
        if let Some(dir) = spec.log.path.parent() {
            std::fs::create_dir_all(dir).map_err(RuntimeError::io("make", dir))?;
        }
        let image_ref = shared.ensure_image(&image, spec.pull).await?;
        let unusable = |detail: String| SpecError {
            field: "mounts".into(),
            value: id.to_string(),
            detail,
        };
        // Kept until the container has mounts of its own.
        let bound = shared.bind_sub_paths(&spec).await;
        let bound = bound.map_err(|error| unusable(error.to_string()))?;
        let means = convert::Means {
            owner: &shared.config.owner,
            image: &image_ref,
            sub_paths: bound.places(),
            unified: matches!(shared.cgroups, HierarchyLayout::V2(_)),
        };
        let config =
            convert::container(&spec, &means).map_err(|error| unusable(error.to_string()))?;
        let (pod_sandbox_id, sandbox_config) = shared.ensure_sandbox(&spec).await?;
        let request = api::CreateContainerRequest {
            pod_sandbox_id,
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        let made = shared
            .call(
                "create a container",
                CALL_LIMIT,
                shared.runtime().create_container(request),
            )
            .await?;
        let entry = ContainerEntry {
            cri_id: made.container_id.clone(),
            status: ContainerStatus::of(&spec, None),
            log: spec.log.clone(),
        };
        shared.table().insert(id.clone(), entry);
        let request = api::StartContainerRequest {
            container_id: made.container_id.clone(),
        };
        if let Err(error) = shared
            .call(
                "start a container",
                CALL_LIMIT,
                shared.runtime().start_container(request),
            )
            .await
        {
            let message = match error {
                RuntimeError::Cri { detail, .. } => detail,
                other => other.to_string(),
            };
            shared.settle(
                &id,
                ContainerState::Exited(ContainerExit::start_error(message, Timestamp::now())),
            );
        } else if let Err(error) = shared.inspect(&made.container_id).await {
            // It is started all the same; the next round of asking sees it.
            tracing::warn!(container = %id, "{error}");
        } else {
            self.limit_processes(&id, spec.limits.pids_max);
        }
        drop(bound);
        self.status(&id).ok_or(RuntimeError::NotFound(id))
    }

    /// Bounds the processes of a container that has just started, where the runtime could not.
    fn limit_processes(&self, id: &ContainerId, most: Option<u64>) {
        let HierarchyLayout::V1(mounts) = &self.shared.cgroups else {
            return;
        };
        let state = self.status(id).map(|status| status.state);
        let (Some(ContainerState::Running { process, .. }), Some(most)) = (state, most) else {
            return;
        };
        let limited = cgroup::limit_processes_v1(mounts, process.pid, most);
        // One that has ended needs none.
        if let Some(error) = limited.err().filter(|_| process.is_alive()) {
            tracing::warn!(container = %id, %error, "the container's processes are not bounded");
        }
    }

    /// What is known of a container.
    pub fn status(&self, id: &ContainerId) -> Option<ContainerStatus> {
        self.shared
            .table()
            .get(id)
            .map(|entry| entry.status.clone())
    }

    /// What is known of all.
    pub fn list(&self) -> Vec<ContainerStatus> {
        self.shared
            .table()
            .values()
            .map(|entry| entry.status.clone())
            .collect()
    }

    /// Each change of a container's status from now on, noticed within about a second. A
    /// receiver that falls behind gets `Lagged` and reads [`CriRuntime::list`].
    pub fn changes(&self) -> broadcast::Receiver<ContainerStatus> {
        self.shared.changes.subscribe()
    }

    /// Waits for a container's end.
    pub async fn wait(&self, id: &ContainerId) -> Result<ContainerExit, RuntimeError> {
        waiting::exit(id, self.changes(), || self.status(id)).await
    }

    /// The image's stop signal, then SIGKILL after `grace`; returns once it has ended. Unlike
    /// with processes the request is not kept: after a restart the agent asks again.
    pub async fn stop(
        &self,
        id: &ContainerId,
        grace: Duration,
    ) -> Result<ContainerExit, RuntimeError> {
        let Some(cri_id) = self.shared.running(id)? else {
            return self.wait(id).await;
        };
        let timeout = i64::try_from(grace.as_secs()).unwrap_or(i64::MAX);
        let request = api::StopContainerRequest {
            container_id: cri_id.clone(),
            timeout,
        };
        let limit = grace.saturating_add(STOP_SLACK);
        self.shared
            .call(
                "stop a container",
                limit,
                self.shared.runtime().stop_container(request),
            )
            .await?;
        self.shared.inspect(&cri_id).await?;
        self.wait(id).await
    }

    /// Asks for a stop and does not wait for it; a failure is logged.
    pub async fn request_stop(
        &self,
        id: &ContainerId,
        grace: Duration,
    ) -> Result<(), RuntimeError> {
        self.shared.running(id)?;
        let (runtime, id) = (self.clone(), id.clone());
        tokio::spawn(async move {
            if let Err(error) = runtime.stop(&id, grace).await {
                tracing::warn!(container = %id, "cannot stop: {error}");
            }
        });
        Ok(())
    }

    /// Removes a container that has ended; its log stays.
    pub async fn remove(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let shared = &self.shared;
        if shared.running(id)?.is_some() {
            return Err(RuntimeError::StillRunning(id.clone()));
        }
        let Some(cri_id) = shared.table().get(id).map(|entry| entry.cri_id.clone()) else {
            return Ok(());
        };
        let request = api::RemoveContainerRequest {
            container_id: cri_id,
        };
        shared
            .call(
                "remove a container",
                CALL_LIMIT,
                shared.runtime().remove_container(request),
            )
            .await?;
        shared.table().remove(id);
        Ok(())
    }

    /// Ends and removes a pod's sandboxes, once its containers are removed.
    pub async fn release(&self, pod_uid: &str) -> Result<(), RuntimeError> {
        let shared = &self.shared;
        let _one = shared.sandboxes.lock().await;
        for sandbox in shared.sandboxes_of(pod_uid).await? {
            let stop = api::StopPodSandboxRequest {
                pod_sandbox_id: sandbox.id.clone(),
            };
            shared
                .call(
                    "stop a sandbox",
                    CALL_LIMIT,
                    shared.runtime().stop_pod_sandbox(stop),
                )
                .await?;
            let remove = api::RemovePodSandboxRequest {
                pod_sandbox_id: sandbox.id,
            };
            shared
                .call(
                    "remove a sandbox",
                    CALL_LIMIT,
                    shared.runtime().remove_pod_sandbox(remove),
                )
                .await?;
        }
        shared
            .table()
            .retain(|_, entry| entry.status.pod.uid != pod_uid);
        Ok(())
    }

    /// Runs a command inside a running container; no input.
    pub async fn exec(
        &self,
        id: &ContainerId,
        command: Vec<String>,
        timeout: Duration,
    ) -> Result<ExecOutcome, RuntimeError> {
        let cri_id = self
            .shared
            .running(id)?
            .ok_or_else(|| RuntimeError::NotRunning(id.clone()))?;
        // Whole seconds only, and 0 would be no limit.
        let seconds = i64::try_from(timeout.as_millis().div_ceil(1000))
            .unwrap_or(i64::MAX)
            .max(1);
        let request = api::ExecSyncRequest {
            container_id: cri_id,
            cmd: command,
            timeout: seconds,
        };
        let limit = timeout.saturating_add(STOP_SLACK);
        match tokio::time::timeout(limit, self.shared.runtime().exec_sync(request)).await {
            Err(_) => Ok(ExecOutcome::TimedOut),
            Ok(Err(status)) if status.code() == tonic::Code::DeadlineExceeded => {
                Ok(ExecOutcome::TimedOut)
            }
            Ok(Err(status)) => Err(self.shared.fault("run a command", status.message())),
            Ok(Ok(answer)) => {
                let answer = answer.into_inner();
                Ok(ExecOutcome::Exited {
                    code: answer.exit_code,
                    output: [answer.stdout, answer.stderr].concat(),
                })
            }
        }
    }

    /// What a running container uses now.
    pub async fn stats(&self, id: &ContainerId) -> Result<Stats, RuntimeError> {
        let shared = &self.shared;
        let cri_id = shared
            .running(id)?
            .ok_or_else(|| RuntimeError::NotRunning(id.clone()))?;
        let request = api::ContainerStatsRequest {
            container_id: cri_id,
        };
        let answer = shared
            .call(
                "count usage",
                CALL_LIMIT,
                shared.runtime().container_stats(request),
            )
            .await?;
        let stats = answer.stats.unwrap_or_default();
        let value = |value: Option<api::UInt64Value>| value.map_or(0, |value| value.value);
        let memory = stats.memory.unwrap_or_default();
        Ok(Stats {
            cpu_nanos: value(stats.cpu.and_then(|cpu| cpu.usage_core_nano_seconds)),
            memory_working_set: value(memory.working_set_bytes),
            memory_rss: value(memory.rss_bytes),
            processes: 0,
        })
    }

    /// The writable layers of this owner's containers, also of those that have ended.
    pub async fn layers(&self) -> Result<Vec<WritableLayer>, RuntimeError> {
        let shared = &self.shared;
        let label_selector =
            HashMap::from([(convert::OWNER.to_string(), shared.config.owner.clone())]);
        let filter = Some(api::ContainerStatsFilter {
            label_selector,
            ..api::ContainerStatsFilter::default()
        });
        let request = api::ListContainerStatsRequest { filter };
        let answer = shared
            .call(
                "list what containers use",
                CALL_LIMIT,
                shared.runtime().list_container_stats(request),
            )
            .await?;
        let table = shared.table();
        let known: HashMap<&str, &ContainerStatus> = table
            .values()
            .map(|entry| (entry.cri_id.as_str(), &entry.status))
            .collect();
        let listed = answer.stats.into_iter();
        Ok(listed
            .filter_map(|stats| convert::layer(stats, &known))
            .collect())
    }

    /// A container's log; see [`LogRead`]. Following ends with the container.
    pub fn logs(
        &self,
        id: &ContainerId,
        options: LogRead,
    ) -> Result<BoxStream<'static, std::io::Result<Bytes>>, RuntimeError> {
        let status = self
            .status(id)
            .ok_or_else(|| RuntimeError::NotFound(id.clone()))?;
        let (shared, id) = (self.shared.clone(), id.clone());
        let finished = move || {
            shared
                .table()
                .get(&id)
                .is_none_or(|entry| entry.status.exit().is_some())
        };
        Ok(read_logs(status.log_path, options, finished))
    }
}

impl CriState {
    /// Binds a container's subPaths, in the background: a volume's server may be slow.
    async fn bind_sub_paths(&self, spec: &ContainerSpec) -> Result<SubPaths, SubPathError> {
        let (top, spec) = (self.config.sub_paths.clone(), spec.clone());
        tokio::task::spawn_blocking(move || SubPaths::bind(&top, &spec))
            .await
            .unwrap_or_else(|error| Err(SubPathError::Ended(error)))
    }
}

/// An error and what caused it: tonic's own text says only "transport error".
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}
