//! GPUs that are shared through NVIDIA's Multi-Process Service: one control daemon for each, so
//! that a fault or a reset of one GPU does not affect the others. Owns the daemons' lifecycle;
//! `plan` chooses the GPUs and the containers' settings.
//!
//! A daemon outlives the agent while a process uses it, as pods do, and the next agent takes it
//! over. It ends when its GPU is no longer shared, or when the agent ends and no process uses it.

mod control;
mod plan;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::future::join_all;
use hardware::InventorySources;
use hardware::compute_mode::ComputeModeError;
use runtime::proc::ProcessId;
use tokio::sync::watch;
use tokio::task::JoinError;
use tokio::time::{Instant, timeout};

use crate::share::ShareLimit;
pub use plan::{
    CLIENTS, MpsAllocationError, MpsDaemonState, MpsDaemonStates, MpsPlan, MpsSettings, NotShared,
    equip, wanted,
};

use control::Control;

/// Default directory of the daemons: not on a disk, because sockets and process ids are invalid
/// after a reboot.
pub const DIRECTORY: &str = "/run/muster/mps";
/// NVIDIA's control program.
pub const PROGRAM: &str = "nvidia-cuda-mps-control";

/// Interval of checks whether a daemon runs.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How long the driver may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause before a daemon that could not be started is retried.
const REST: Duration = Duration::from_secs(10);

/// How daemons are started.
#[derive(Clone, Debug)]
pub struct MpsConfig {
    /// The control program.
    pub program: PathBuf,
    /// The directory that contains each daemon's directory, named by its GPU's UUID.
    pub directory: PathBuf,
}

impl Default for MpsConfig {
    fn default() -> MpsConfig {
        MpsConfig {
            program: PROGRAM.into(),
            directory: DIRECTORY.into(),
        }
    }
}

/// The state of the wanted GPUs, from the known state of their daemons. A GPU without a known state
/// waits.
pub fn known_or_waiting(
    wanted: &MpsPlan,
    known: &MpsDaemonStates,
    config: &MpsConfig,
) -> MpsDaemonStates {
    let state = |(gpu, limit): (&String, &Result<ShareLimit, NotShared>)| {
        let unknown = || MpsDaemonState {
            pipe: Control::new(&config.program, gpu, &config.directory).pipe(),
            limit: limit.clone().unwrap_or_default(),
            problem: Some("its control daemon has not been started yet".to_owned()),
        };
        let state = known.get(gpu).cloned().unwrap_or_else(unknown);
        (gpu.clone(), state)
    };
    wanted.iter().map(state).collect()
}

/// Keeps a daemon for each wanted GPU, publishes the state of each, and ends unused daemons when
/// `stop` says true.
pub async fn keep(
    config: MpsConfig,
    source: InventorySources,
    mut wanted: watch::Receiver<MpsPlan>,
    states: watch::Sender<MpsDaemonStates>,
    mut stop: watch::Receiver<bool>,
) {
    let mut mps_daemons = MpsDaemons {
        config,
        source,
        daemons: BTreeMap::new(),
    };
    let first = wanted.borrow().clone();
    mps_daemons.end_daemons_of_other_gpus(&first).await;
    loop {
        let now = wanted.borrow_and_update().clone();
        let found = mps_daemons.observe(&now).await;
        states.send_if_modified(|before| {
            let changed = *before != found;
            *before = found;
            changed
        });
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            changed = wanted.changed() => if changed.is_err() { break },
            _ = stop.wait_for(|stop| *stop) => break,
        }
    }
    mps_daemons.end_idle().await;
}

struct MpsDaemons {
    config: MpsConfig,
    source: InventorySources,
    daemons: BTreeMap<String, Daemon>,
}

/// A GPU's daemon and its state.
struct Daemon {
    control: Control,
    process: Option<ProcessId>,
    /// Its settings.
    settings: String,
    problem: Option<String>,
    /// When the next start may be tried.
    rests_until: Option<Instant>,
}

impl MpsDaemons {
    fn control(&self, gpu: &str) -> Control {
        Control::new(&self.config.program, gpu, &self.config.directory)
    }

    /// Ends daemons of an earlier agent for GPUs that are not shared any more.
    async fn end_daemons_of_other_gpus(&self, wanted: &MpsPlan) {
        let entries = std::fs::read_dir(&self.config.directory).into_iter();
        for entry in entries.flatten().flatten() {
            let gpu = entry.file_name().to_string_lossy().into_owned();
            if !matches!(wanted.get(&gpu), Some(Ok(_))) {
                let control = self.control(&gpu);
                if control.process().is_some() {
                    self.end(&gpu, &control).await;
                }
            }
        }
    }

    async fn observe(&mut self, wanted: &MpsPlan) -> MpsDaemonStates {
        let gone: Vec<String> = (self.daemons.keys())
            .filter(|gpu| !matches!(wanted.get(*gpu), Some(Ok(_))))
            .cloned()
            .collect();
        for gpu in gone {
            if let Some(daemon) = self.daemons.remove(&gpu) {
                self.end(&gpu, &daemon.control).await;
            }
        }
        let mut states = MpsDaemonStates::new();
        for (gpu, limit) in wanted {
            let pipe = self.control(gpu).pipe();
            let state = match limit {
                Ok(limit) => MpsDaemonState {
                    pipe,
                    limit: *limit,
                    problem: self.ensure_daemon(gpu, limit).await,
                },
                Err(why) => MpsDaemonState {
                    pipe,
                    limit: ShareLimit::default(),
                    problem: Some(why.to_string()),
                },
            };
            states.insert(gpu.clone(), state);
        }
        states
    }

    /// Checks and starts one GPU's daemon; returns why the GPU can't be used.
    async fn ensure_daemon(&mut self, gpu: &str, limit: &ShareLimit) -> Option<String> {
        if !self.daemons.contains_key(gpu) {
            let control = self.control(gpu);
            let (process, settings) = match control.found().await {
                Some((process, settings)) => (Some(process), settings),
                None => (None, String::new()),
            };
            let daemon = Daemon {
                control,
                process,
                settings,
                problem: None,
                rests_until: None,
            };
            self.daemons.insert(gpu.to_owned(), daemon);
        }
        let source = self.source.clone();
        let daemon = self.daemons.get_mut(gpu)?;
        if daemon.process.is_some_and(ProcessId::is_alive) {
            if daemon.settings == control::settings(limit) {
                daemon.problem = None;
                return None;
            }
            if !daemon.control.idle().await {
                return Some(
                    "containers of before use it with other limits; those that begin wait until \
                     they have ended"
                        .to_owned(),
                );
            }
            if let Err(why) = daemon.control.stop().await {
                return Some(why.to_string());
            }
        } else if daemon.process.take().is_some() {
            tracing::warn!(
                gpu,
                "the MPS control daemon died, and with it the processes that used it; the agent starts it again"
            );
        }
        if daemon
            .rests_until
            .is_some_and(|until| Instant::now() < until)
        {
            return daemon.problem.clone();
        }
        // Otherwise a process that does not use MPS would share the GPU without any limit.
        if let Err(why) = set_exclusive(&source, gpu, true).await {
            let why = why.to_string();
            tracing::warn!(gpu, why, "processes may bypass MPS");
        }
        match daemon.control.start(limit).await {
            Ok(process) => {
                tracing::info!(gpu, limit = limit.message(), "shared by MPS");
                daemon.process = Some(process);
                daemon.settings = control::settings(limit);
                daemon.rests_until = None;
                daemon.problem = None;
            }
            Err(why) => {
                let why = why.to_string();
                if daemon.problem.as_ref() != Some(&why) {
                    tracing::warn!(gpu, why, "the GPU cannot be shared by MPS yet");
                }
                daemon.rests_until = Some(Instant::now() + REST);
                daemon.problem = Some(why);
            }
        }
        daemon.problem.clone()
    }

    async fn end(&self, gpu: &str, control: &Control) {
        match control.stop().await {
            Ok(()) => tracing::info!(gpu, "no longer shared by MPS"),
            Err(why) => {
                let why = why.to_string();
                tracing::warn!(gpu, why, "the MPS control daemon could not be ended");
            }
        }
        if let Err(why) = set_exclusive(&self.source, gpu, false).await {
            let why = why.to_string();
            tracing::warn!(gpu, why, "the GPU keeps to one process at a time");
        }
    }

    /// Ends the daemons without clients, all at once: one may need several seconds, and the agent has
    /// limited time to stop.
    async fn end_idle(&self) {
        let daemons = self.daemons.iter();
        join_all(daemons.map(|(gpu, daemon)| self.end_if_idle(gpu, daemon))).await;
    }

    async fn end_if_idle(&self, gpu: &str, daemon: &Daemon) {
        if !daemon.process.is_some_and(ProcessId::is_alive) {
            return;
        }
        if daemon.control.idle().await {
            self.end(gpu, &daemon.control).await;
        } else {
            tracing::info!(
                gpu,
                "its MPS control daemon keeps running for the processes that use it"
            );
        }
    }
}

/// Why the compute mode of a GPU was not changed.
#[derive(Debug, thiserror::Error)]
enum ExclusiveError {
    #[error(transparent)]
    Driver(#[from] ComputeModeError),
    /// The task that calls the driver ended early.
    #[error(transparent)]
    Task(#[from] JoinError),
    #[error("the driver did not answer within {} s", PATIENCE.as_secs())]
    Silent,
}

/// Sets a GPU's compute mode to one process or any number. A driver with a hung GPU may never
/// answer, which blocks no other GPU.
async fn set_exclusive(
    source: &InventorySources,
    gpu: &str,
    exclusive: bool,
) -> Result<(), ExclusiveError> {
    let (source, id) = (source.clone(), gpu.to_owned());
    let set = tokio::task::spawn_blocking(move || {
        hardware::compute_mode::set_exclusive(&source, &id, exclusive)
    });
    match timeout(PATIENCE, set).await {
        Ok(Ok(answer)) => Ok(answer?),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(ExclusiveError::Silent),
    }
}

/// The path of a program, if it can be run: at its path, or in the directories of `PATH`.
pub fn program_found(program: &Path) -> Option<PathBuf> {
    if program.components().count() > 1 {
        return program.is_file().then(|| program.to_owned());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|directory| directory.join(program))
        .find(|candidate| candidate.is_file())
}
