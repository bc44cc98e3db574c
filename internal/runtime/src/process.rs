//! Containers as processes of this machine, each under its shim. Owns the containers'
//! directories (`ROOT/ID/`), the table of what is known of them, and the news of it.
//!
//! Nothing is kept here that is not also on disk: a new [`ProcessRuntime`] over the same
//! root finds every container again by [`ProcessRuntime::recover`].

mod attach;
mod commands;
mod interactive;
mod shared;
mod watch;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use jiff::Timestamp;
use tokio::sync::broadcast;

pub use attach::{AttachInput, AttachOutput, AttachSession};
pub use commands::{ExecOutcome, Stats};
pub use interactive::{ExecCommand, ExecInput, ExecOutput, ExecSession, Terminal};

use crate::capabilities::{Capabilities, ProbeReply, Support};
use crate::cgroup::HierarchyLayout;
use crate::environment::SERVICE_MANAGER_VARIABLES;
use crate::error::RuntimeError;
use crate::logs::{LogRead, read_logs};
use crate::shim::supervise::{CGROUP_PARENT, DEFAULT_CGROUP_PARENT};
use crate::shim::{STAGE, STAGE_PROBE};
use crate::spec::{ContainerId, ContainerSpec, SpecError};
use crate::state::{
    ContainerExit, ContainerState, ContainerStatus, SHIM_LOG, STOP_FILE, StopRequest, save,
};
use crate::waiting;

/// Changes that are kept for a slow receiver; beyond this number, the receiver learns that it missed some.
pub const MAX_CHANGES: usize = 1024;
/// How long a shim may take to say that its container runs or cannot: mounting network
/// volumes is part of it.
const START_LIMIT: Duration = Duration::from_secs(120);
/// How long beyond the grace period a stop is waited for.
const STOP_SLACK: Duration = Duration::from_secs(15);
/// How long the trying of namespaces may take.
const PROBE_LIMIT: Duration = Duration::from_secs(10);

/// How a [`ProcessRuntime`] works.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where containers' directories are; made if missing. One runtime at a time may use it.
    pub root: PathBuf,
    /// The command that is the shim once a directory is added: this program and `shim`.
    pub shim_command: Vec<OsString>,
    /// The cgroup, below each hierarchy's root, that containers' cgroups are made in.
    pub cgroup_parent: String,
}

impl Config {
    /// Containers in `root`, shims by `shim_command`, cgroups in `muster`.
    pub fn new(root: PathBuf, shim_command: Vec<OsString>) -> Config {
        Config {
            root,
            shim_command,
            cgroup_parent: DEFAULT_CGROUP_PARENT.into(),
        }
    }
}

/// Runs containers as processes. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct ProcessRuntime {
    shared: Arc<ProcessState>,
}

struct ProcessState {
    config: Config,
    capabilities: Capabilities,
    table: Mutex<ProcessTable>,
    /// Held while a container's files are looked at or removed.
    looking: Mutex<()>,
    changes: broadcast::Sender<ContainerStatus>,
    watcher: watch::DirectoryWatcher,
}

#[derive(Default)]
struct ProcessTable {
    known: BTreeMap<ContainerId, ProcessEntry>,
    /// Counts containers made; an id that is used again gets another number.
    made: u64,
}

struct ProcessEntry {
    /// [`ProcessTable::made`] when it was.
    number: u64,
    /// Whether its shim has been started a moment ago: its silence means nothing yet.
    starting: bool,
    spec: Arc<ContainerSpec>,
    status: ContainerStatus,
}

impl ProcessRuntime {
    /// Makes the root, finds out what works here, and starts watching. Call it inside a
    /// tokio runtime, then [`ProcessRuntime::recover`].
    pub async fn new(config: Config) -> Result<ProcessRuntime, RuntimeError> {
        if config.shim_command.is_empty() {
            return Err(RuntimeError::Spec(SpecError {
                field: "shim_command".into(),
                value: String::new(),
                detail: "write this program and its shim command".into(),
            }));
        }
        fs::create_dir_all(&config.root).map_err(RuntimeError::io("make", &config.root))?;
        let root = config
            .root
            .canonicalize()
            .map_err(RuntimeError::io("resolve", &config.root))?;
        let config = Config { root, ..config };
        let tried = probe(&config).await;
        let (layout, parent) = (HierarchyLayout::detect(), config.cgroup_parent.clone());
        let probed =
            tokio::task::spawn_blocking(move || Capabilities::probe(&layout, &parent, tried));
        let capabilities = probed.await.map_err(|e| RuntimeError::Io {
            action: "probe",
            path: "/sys/fs/cgroup".into(),
            source: std::io::Error::other(e),
        })?;
        let (changes, _) = broadcast::channel(MAX_CHANGES);
        let shared = ProcessState {
            config,
            capabilities,
            table: Mutex::default(),
            looking: Mutex::default(),
            changes,
            watcher: watch::DirectoryWatcher::new(),
        };
        let runtime = ProcessRuntime {
            shared: Arc::new(shared),
        };
        watch::start(&runtime.shared)?;
        Ok(runtime)
    }

    /// What works on this machine.
    pub fn capabilities(&self) -> &Capabilities {
        &self.shared.capabilities
    }

    /// Reads back every container in the root, as after a restart of the agent. One whose
    /// shim is gone without a word is given up: what is left of it is killed and it counts
    /// as ended ([`crate::ExitReason::ContainerStatusUnknown`]). One that never got its shim
    /// is removed, as if it had never been asked for, and may be started again. A directory that
    /// cannot be read is logged and left alone.
    pub async fn recover(&self) -> Result<Vec<ContainerStatus>, RuntimeError> {
        let shared = self.shared.clone();
        blocking(move || shared.recover()).await?
    }

    /// Starts a container and waits until its command runs, or cannot: then the status is
    /// [`ContainerState::Exited`] with [`crate::ExitReason::StartError`]. An error means that
    /// there is no such container afterwards, or (a timeout) that it has been given up.
    pub async fn start(&self, spec: ContainerSpec) -> Result<ContainerStatus, RuntimeError> {
        spec.validate()?;
        let id = spec.id.clone();
        let changes = self.changes();
        let shared = self.shared.clone();
        let number = blocking(move || shared.prepare(spec)).await??;
        let mut child = match self.spawn_shim(&id) {
            Ok(child) => child,
            Err(e) => {
                self.shared.forget(&id);
                return Err(e);
            }
        };
        let shared = self.shared.clone();
        let watched = id.clone();
        tokio::spawn(async move {
            // Reaps the shim, and notices at once when it dies before its container.
            let _ = child.wait().await;
            shared.started(&watched, number);
            let _ = blocking(move || shared.observe(&watched)).await;
        });
        let settled = waiting::until(&id, changes, || {
            let settled = |status: &ContainerStatus| status.state != ContainerState::Starting;
            Ok(self.status(&id).filter(settled))
        });
        let outcome = tokio::time::timeout(START_LIMIT, settled).await;
        self.shared.started(&id, number);
        match outcome {
            Ok(status) => status,
            Err(_) => {
                // The caller gets a timeout, so the container must not start later.
                let _ = self.request_stop(&id, Duration::ZERO).await;
                Err(RuntimeError::Timeout {
                    what: format!("starting container {id}"),
                    limit: START_LIMIT,
                    look_at: self.shared.dir(&id).join(SHIM_LOG),
                })
            }
        }
    }

    fn spawn_shim(&self, id: &ContainerId) -> Result<tokio::process::Child, RuntimeError> {
        let dir = self.shared.dir(id);
        let log_path = dir.join(SHIM_LOG);
        let log = fs::File::create(&log_path).map_err(RuntimeError::io("make", &log_path))?;
        let log_too = log
            .try_clone()
            .map_err(RuntimeError::io("open", &log_path))?;
        self.shim_command(&dir)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(log_too)
            .kill_on_drop(false)
            .spawn()
            .map_err(|source| RuntimeError::Shim {
                command: format!("{:?}", self.shared.config.shim_command),
                source,
            })
    }

    fn shim_command(&self, dir: &Path) -> tokio::process::Command {
        shim_command(&self.shared.config, dir)
    }

    /// What is known of a container.
    pub fn status(&self, id: &ContainerId) -> Option<ContainerStatus> {
        self.shared
            .table()
            .known
            .get(id)
            .map(|entry| entry.status.clone())
    }

    /// What is known of all.
    pub fn list(&self) -> Vec<ContainerStatus> {
        self.shared
            .table()
            .known
            .values()
            .map(|entry| entry.status.clone())
            .collect()
    }

    /// Each change of a container's status from now on. A receiver that falls more than
    /// [`MAX_CHANGES`] behind gets `Lagged`; it then reads [`ProcessRuntime::list`].
    pub fn changes(&self) -> broadcast::Receiver<ContainerStatus> {
        self.shared.changes.subscribe()
    }

    /// Waits for a container's end.
    pub async fn wait(&self, id: &ContainerId) -> Result<ContainerExit, RuntimeError> {
        waiting::exit(id, self.changes(), || self.status(id)).await
    }

    /// SIGTERM to the container's processes, SIGKILL to what is left after `grace`, and
    /// waits for the end. The request is on disk before this waits: it is carried out even
    /// if the caller goes away, and a later one can only shorten the time left. A container
    /// that has ended already is fine.
    pub async fn stop(
        &self,
        id: &ContainerId,
        grace: Duration,
    ) -> Result<ContainerExit, RuntimeError> {
        self.request_stop(id, grace).await?;
        let limit = grace + STOP_SLACK;
        tokio::time::timeout(limit, self.wait(id))
            .await
            .unwrap_or_else(|_| {
                Err(RuntimeError::Timeout {
                    what: format!("stopping container {id} (a process may be stuck in the kernel)"),
                    limit,
                    look_at: self.shared.dir(id).join(SHIM_LOG),
                })
            })
    }

    /// Asks for a stop and does not wait for it.
    pub async fn request_stop(
        &self,
        id: &ContainerId,
        grace: Duration,
    ) -> Result<(), RuntimeError> {
        let status = self
            .status(id)
            .ok_or_else(|| RuntimeError::NotFound(id.clone()))?;
        if status.exit().is_some() {
            return Ok(());
        }
        let dir = self.shared.dir(id);
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        blocking(move || save(&dir, STOP_FILE, &StopRequest { grace_ms })).await?
    }

    /// Kills at once and waits for the end.
    pub async fn kill(&self, id: &ContainerId) -> Result<ContainerExit, RuntimeError> {
        self.stop(id, Duration::ZERO).await
    }

    /// Forgets a container that has ended and removes its directory and cgroup. Its log
    /// stays: it belongs to the caller.
    pub async fn remove(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let status = self
            .status(id)
            .ok_or_else(|| RuntimeError::NotFound(id.clone()))?;
        if status.exit().is_none() {
            return Err(RuntimeError::StillRunning(id.clone()));
        }
        let shared = self.shared.clone();
        let id = id.clone();
        blocking(move || shared.remove(&id)).await?
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
                .known
                .get(&id)
                .is_none_or(|entry| entry.status.exit().is_some())
        };
        Ok(read_logs(status.log_path, options, finished))
    }
}

fn shim_command(config: &Config, dir: &Path) -> tokio::process::Command {
    let mut words = config.shim_command.iter();
    let mut command = tokio::process::Command::new(words.next().cloned().unwrap_or_default());
    command
        .args(words)
        .arg(dir)
        .env_remove(STAGE)
        .env(CGROUP_PARENT, &config.cgroup_parent);
    for name in SERVICE_MANAGER_VARIABLES {
        command.env_remove(name);
    }
    command
}

async fn probe(config: &Config) -> ProbeReply {
    let mut command = shim_command(config, &config.root);
    command
        .env(STAGE, STAGE_PROBE)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let unknown = |why: String| ProbeReply {
        namespaces: Support::No(why.clone()),
        isolation: Support::No(why.clone()),
        read_only_host: Support::No(why),
    };
    match tokio::time::timeout(PROBE_LIMIT, command.output()).await {
        Err(_) => unknown(format!("the shim did not answer within {PROBE_LIMIT:?}")),
        Ok(Err(e)) => unknown(format!("the shim cannot be started: {e}")),
        Ok(Ok(output)) => serde_json::from_slice(&output.stdout).unwrap_or_else(|_| {
            unknown(format!(
                "the shim answered {:?}",
                String::from_utf8_lossy(&output.stderr).trim()
            ))
        }),
    }
}

/// Runs file and kernel work off the async threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, RuntimeError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|e| RuntimeError::Io {
            action: "work on",
            path: PathBuf::from("containers"),
            source: std::io::Error::other(e),
        })
}

/// The end given to a container whose end no process observed.
fn lost(message: &str, started_at: Option<Timestamp>) -> ContainerExit {
    ContainerExit::unknown(message, started_at, Timestamp::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shims_do_not_get_the_variables_of_the_agents_service_manager() {
        let config = Config::new("/nowhere".into(), vec!["muster".into(), "shim".into()]);
        let command = shim_command(&config, Path::new("/nowhere/a"));
        let removed: Vec<&std::ffi::OsStr> = command
            .as_std()
            .get_envs()
            .filter_map(|(name, value)| value.is_none().then_some(name))
            .collect();
        for name in SERVICE_MANAGER_VARIABLES {
            assert!(removed.contains(&std::ffi::OsStr::new(name)), "{name}");
        }
    }
}
