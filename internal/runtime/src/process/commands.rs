//! What is asked of a running container: commands inside it (probes), and what it uses.
//! Owns no state.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, setsid};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

use super::{ProcessRuntime, blocking};
use crate::cgroup::Cgroup;
use crate::error::RuntimeError;
use crate::proc;
use crate::shim::exec::ExecRequest;
use crate::shim::{STAGE, STAGE_EXEC};
use crate::spec::ContainerId;
use crate::state::{ContainerState, StateFile, load_state};

/// Output kept of a command; the rest is read and dropped.
pub const MAX_EXEC_OUTPUT: usize = 64 * 1024;
/// How long output is waited for after a command's end: a process it left behind may hold it open.
const OUTPUT_SLACK: Duration = Duration::from_secs(1);
/// The kernel's clock ticks a second, as shown in /proc (fixed by its ABI).
const TICKS_PER_SECOND: u64 = 100;
/// The size of a page as counted in /proc.
const PAGE_BYTES: u64 = 4096;

/// How a command in a container ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecOutcome {
    /// By itself.
    Exited {
        /// Its exit code; 126 if it could not be run, 128 + signal if a signal ended it.
        code: i32,
        /// The start of its standard output and then of its standard error.
        output: Vec<u8>,
    },
    /// It was killed because it took too long.
    TimedOut,
}

/// What a container uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// CPU time since it started, nanoseconds.
    pub cpu_nanos: u64,
    /// Memory that cannot be reclaimed at will, bytes.
    pub memory_working_set: u64,
    /// Anonymous memory, bytes.
    pub memory_rss: u64,
    /// Processes in it.
    pub processes: u64,
}

impl ProcessRuntime {
    /// Runs a command inside a running container: its namespaces, cgroup, user, environment
    /// and working directory; no input. Killed with all its group after `timeout`.
    pub async fn exec(
        &self,
        id: &ContainerId,
        command: Vec<String>,
        timeout: Duration,
    ) -> Result<ExecOutcome, RuntimeError> {
        let request = ExecRequest {
            command,
            ..ExecRequest::default()
        };
        let (mut shim, request) = self.exec_stage(id, &request)?;
        let failed = |source| self.exec_failed(source);
        shim.stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = shim.spawn().map_err(failed)?;
        let group = child
            .id()
            .and_then(|pid| i32::try_from(pid).ok())
            .map(Pid::from_raw);
        if let Some(mut stdin) = child.stdin.take() {
            // It may have died already; its exit code tells.
            let _ = stdin.write_all(request.as_bytes()).await;
        }
        let out = tokio::spawn(read_bounded(child.stdout.take()));
        let err = tokio::spawn(read_bounded(child.stderr.take()));
        let ended = tokio::time::timeout(timeout, child.wait()).await;
        let Ok(ended) = ended else {
            if let Some(group) = group {
                let _ = killpg(group, Signal::SIGKILL);
            }
            let _ = child.wait().await;
            return Ok(ExecOutcome::TimedOut);
        };
        let ended = ended.map_err(failed)?;
        let code = code_of(ended);
        let mut output = Vec::new();
        for task in [out, err] {
            if let Ok(Ok(bytes)) = tokio::time::timeout(OUTPUT_SLACK, task).await {
                output.extend_from_slice(&bytes);
            }
        }
        Ok(ExecOutcome::Exited { code, output })
    }

    /// The stage that runs a command in a running container, without its standard streams, and the request that it is
    /// to be given.
    pub(super) fn exec_stage(
        &self,
        id: &ContainerId,
        request: &ExecRequest,
    ) -> Result<(Command, String), RuntimeError> {
        let status = self
            .status(id)
            .ok_or_else(|| RuntimeError::NotFound(id.clone()))?;
        if !status.is_running() {
            return Err(RuntimeError::NotRunning(id.clone()));
        }
        let dir = self.shared.dir(id);
        let request = serde_json::to_string(request).map_err(|e| RuntimeError::Format {
            path: dir.clone(),
            detail: e.to_string(),
        })?;
        let mut shim = self.shim_command(&dir);
        shim.env(STAGE, STAGE_EXEC).kill_on_drop(true);
        in_own_session(&mut shim);
        Ok((shim, request))
    }

    /// The error of a stage that did not start.
    pub(super) fn exec_failed(&self, source: std::io::Error) -> RuntimeError {
        RuntimeError::Shim {
            command: format!("{:?} (exec)", self.shared.config.shim_command),
            source,
        }
    }

    /// What a running container uses now.
    pub async fn stats(&self, id: &ContainerId) -> Result<Stats, RuntimeError> {
        if self.status(id).is_none() {
            return Err(RuntimeError::NotFound(id.clone()));
        }
        let (dir, id) = (self.shared.dir(id), id.clone());
        blocking(move || {
            let state: StateFile =
                load_state(&dir)?.ok_or_else(|| RuntimeError::NotRunning(id.clone()))?;
            let ContainerState::Running { process, .. } = state.state else {
                return Err(RuntimeError::NotRunning(id));
            };
            if state.cgroup == Cgroup::None {
                return Ok(count_session(process.pid));
            }
            let usage = state.cgroup.usage();
            Ok(Stats {
                cpu_nanos: usage.cpu_nanos,
                memory_working_set: usage.memory_working_set,
                memory_rss: usage.memory_rss,
                processes: state.cgroup.processes().len() as u64,
            })
        })
        .await?
    }
}

/// The exit code as a shell reports it: 128 + signal if a signal ended the process.
pub(super) fn code_of(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    let signalled = || status.signal().map(|signal| 128 + signal);
    status.code().or_else(signalled).unwrap_or(-1)
}

/// Has the command begin a session, and so a process group, of its own. The agent's session may have
/// a terminal, which a command of a pod's could read from and type into.
fn in_own_session(command: &mut Command) {
    // SAFETY: between fork and exec only setsid is called, which is async-signal-safe.
    unsafe {
        command.pre_exec(|| setsid().map(drop).map_err(std::io::Error::from));
    }
}

/// Without a cgroup: the processes that are in the container's session now.
fn count_session(session: i32) -> Stats {
    let mut stats = Stats::default();
    for (_, stat) in proc::all()
        .into_iter()
        .filter(|(_, stat)| stat.session == session)
    {
        stats.cpu_nanos += stat.cpu_ticks * (1_000_000_000 / TICKS_PER_SECOND);
        stats.memory_rss += stat.resident_pages * PAGE_BYTES;
        stats.processes += 1;
    }
    stats.memory_working_set = stats.memory_rss;
    stats
}

async fn read_bounded(pipe: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut kept = Vec::new();
    let Some(mut pipe) = pipe else { return kept };
    let mut buffer = [0; 8192];
    while let Ok(read) = pipe.read(&mut buffer).await {
        if read == 0 {
            break;
        }
        let room = MAX_EXEC_OUTPUT.saturating_sub(kept.len());
        kept.extend_from_slice(&buffer[..read.min(room)]);
    }
    kept
}
