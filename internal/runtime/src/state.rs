//! What became of a container: the state file that its shim keeps, and the status made
//! of it. Owns the formats and the way they reach the disk; watches and decides nothing.

use std::fs;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::cgroup::Cgroup;
use crate::error::RuntimeError;
use crate::proc::ProcessId;
use crate::spec::{ContainerId, ContainerSpec, PodIdentity};

/// The description, in a container's directory.
pub const SPEC_FILE: &str = "spec.json";
/// The state, in a container's directory.
pub const STATE_FILE: &str = "state.json";
/// The request to stop, in a container's directory.
pub const STOP_FILE: &str = "stop.json";
/// Locked by the shim for as long as it lives.
pub const LOCK_FILE: &str = "lock";
/// What the shim itself had to say.
pub const SHIM_LOG: &str = "shim.log";
/// The version of these files' format, which this binary writes. A release raises it only if the
/// release before reads the new one: its agents take over containers of newer shims after a rollback.
pub const FORMAT: u32 = 1;
/// The newest format that this binary reads.
const FORMAT_READ_MAX: u32 = 1;
/// The oldest format that this binary reads: shims of agents two minor versions back wrote it.
const FORMAT_READ_MIN: u32 = 1;

/// Exit code reported when a container never ran.
pub const START_ERROR_CODE: i32 = 128;
/// Exit code reported when no process observed the container's end.
pub const UNKNOWN_CODE: i32 = 137;

/// Where a container is in its life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "phase")]
pub enum ContainerState {
    /// Being set up; its process is not there yet.
    Starting,
    /// Its process runs.
    Running {
        /// The process.
        process: ProcessId,
        /// Since when.
        started_at: Timestamp,
    },
    /// It is over.
    Exited(ContainerExit),
}

/// How a container ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerExit {
    /// Its exit code; 128 + signal when a signal ended it.
    pub code: i32,
    /// The signal that ended it, if one did.
    #[serde(default)]
    pub signal: Option<i32>,
    /// Whether the kernel killed for want of memory in its cgroup.
    #[serde(default)]
    pub oom_killed: bool,
    /// In one word, as Kubernetes words it.
    pub reason: ExitReason,
    /// In a sentence; empty when the code says all.
    #[serde(default)]
    pub message: String,
    /// When it started; absent if it never did.
    #[serde(default)]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Timestamp,
}

/// Kubernetes' words for the end of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitReason {
    /// Code 0.
    Completed,
    /// Any other code, or a signal.
    Error,
    /// The memory limit.
    #[serde(rename = "OOMKilled")]
    OomKilled,
    /// It could not be started; the message says why.
    StartError,
    /// It could not be started for want of something that every container needs of the node.
    NodeUnfit,
    /// It could not be started because the node could not do it at that moment; users see it as
    /// [`ExitReason::NodeUnfit`].
    NodeBusy,
    /// No process observed its end: its shim died or the machine restarted.
    ContainerStatusUnknown,
}

impl ExitReason {
    /// The word.
    pub fn as_str(self) -> &'static str {
        match self {
            ExitReason::Completed => "Completed",
            ExitReason::Error => "Error",
            ExitReason::OomKilled => "OOMKilled",
            ExitReason::StartError => "StartError",
            ExitReason::NodeUnfit | ExitReason::NodeBusy => "NodeUnfit",
            ExitReason::ContainerStatusUnknown => "ContainerStatusUnknown",
        }
    }
}

impl std::fmt::Display for ExitReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl ContainerExit {
    /// A container that never ran, for the reason in `message`.
    pub fn start_error(message: impl Into<String>, at: Timestamp) -> ContainerExit {
        ContainerExit {
            code: START_ERROR_CODE,
            signal: None,
            oom_killed: false,
            reason: ExitReason::StartError,
            message: message.into(),
            started_at: None,
            finished_at: at,
        }
    }

    /// A container that never ran, for a fault of the node.
    pub fn node_unfit(message: impl Into<String>, at: Timestamp) -> ContainerExit {
        ContainerExit {
            reason: ExitReason::NodeUnfit,
            ..ContainerExit::start_error(message, at)
        }
    }

    /// A container that never ran, for a fault of the node that may pass.
    pub fn node_busy(message: impl Into<String>, at: Timestamp) -> ContainerExit {
        ContainerExit {
            reason: ExitReason::NodeBusy,
            ..ContainerExit::start_error(message, at)
        }
    }

    /// A container whose end no process observed.
    pub fn unknown(
        message: impl Into<String>,
        started_at: Option<Timestamp>,
        at: Timestamp,
    ) -> ContainerExit {
        ContainerExit {
            code: UNKNOWN_CODE,
            signal: None,
            oom_killed: false,
            reason: ExitReason::ContainerStatusUnknown,
            message: message.into(),
            started_at,
            finished_at: at,
        }
    }
}

/// A container as the runtime's callers see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerStatus {
    /// Its id.
    pub id: ContainerId,
    /// Its pod.
    pub pod: PodIdentity,
    /// Its name in the pod.
    pub name: String,
    /// Which run this is.
    pub attempt: u32,
    /// Where it is in its life.
    pub state: ContainerState,
    /// Its current log file.
    pub log_path: PathBuf,
    /// What of the description could not be enforced, in sentences.
    pub notes: Vec<String>,
}

impl ContainerStatus {
    /// How it ended, if it did.
    pub fn exit(&self) -> Option<&ContainerExit> {
        match &self.state {
            ContainerState::Exited(exit) => Some(exit),
            _ => None,
        }
    }

    /// Whether its process runs.
    pub fn is_running(&self) -> bool {
        matches!(self.state, ContainerState::Running { .. })
    }

    /// Puts a description and the state on disk together.
    pub fn of(spec: &ContainerSpec, state: Option<&StateFile>) -> ContainerStatus {
        ContainerStatus {
            id: spec.id.clone(),
            pod: spec.pod.clone(),
            name: spec.name.clone(),
            attempt: spec.attempt,
            state: state.map_or(ContainerState::Starting, |file| file.state.clone()),
            log_path: spec.log.path.clone(),
            notes: state.map(|file| file.notes.clone()).unwrap_or_default(),
        }
    }
}

/// The contents of [`STATE_FILE`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateFile {
    /// [`FORMAT`].
    pub format: u32,
    /// The kernel's boot id when this was written: a process of another boot is gone.
    pub boot_id: String,
    /// The state.
    pub state: ContainerState,
    /// The container's cgroup.
    #[serde(default)]
    pub cgroup: Cgroup,
    /// What could not be enforced.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// The contents of [`STOP_FILE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopRequest {
    /// Milliseconds between SIGTERM and SIGKILL, from when the shim reads this; 0 kills at once.
    pub grace_ms: u64,
}

/// Replaces `dir/name` with `value` as JSON so that a crash leaves the old or the new, whole.
pub fn save<T: Serialize>(dir: &Path, name: &str, value: &T) -> Result<(), RuntimeError> {
    let path = dir.join(name);
    let bytes = serde_json::to_vec_pretty(value).map_err(|e| RuntimeError::Format {
        path: path.clone(),
        detail: e.to_string(),
    })?;
    // For its owner only: descriptions hold environments, and those hold secrets.
    durable::replace(&path, &bytes).map_err(|error| RuntimeError::io("write", &path)(error.into()))
}

/// Reads `dir/name`; `None` if there is no such file.
pub fn load<T: for<'de> Deserialize<'de>>(
    dir: &Path,
    name: &str,
) -> Result<Option<T>, RuntimeError> {
    let path = dir.join(name);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(RuntimeError::io("read", &path)(e)),
    };
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|e| RuntimeError::Format {
            path,
            detail: e.to_string(),
        })
}

/// The part of a state file that every format has.
#[derive(Deserialize)]
struct StateFormat {
    format: u32,
}

/// Reads the state file of a container; `None` if there is none.
///
/// # Errors
/// If another version of muster wrote it in a format that this one does not read
/// ([`RuntimeError::OtherFormat`]), or if it is damaged.
pub fn load_state(dir: &Path) -> Result<Option<StateFile>, RuntimeError> {
    let Some(StateFormat { format }) = load(dir, STATE_FILE)? else {
        return Ok(None);
    };
    if !(FORMAT_READ_MIN..=FORMAT_READ_MAX).contains(&format) {
        return Err(RuntimeError::OtherFormat {
            path: dir.join(STATE_FILE),
            found: format,
            oldest: FORMAT_READ_MIN,
            newest: FORMAT_READ_MAX,
        });
    }
    load(dir, STATE_FILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_read_in_known_formats_only_whatever_else_it_holds() {
        let dir = tempfile::tempdir().unwrap();
        let write = |text: &str| fs::write(dir.path().join(STATE_FILE), text).unwrap();
        assert_eq!(load_state(dir.path()).unwrap(), None);
        let known = StateFile {
            format: FORMAT,
            boot_id: "b".to_owned(),
            state: ContainerState::Starting,
            cgroup: Cgroup::None,
            notes: Vec::new(),
        };
        save(dir.path(), STATE_FILE, &known).unwrap();
        assert_eq!(load_state(dir.path()).unwrap(), Some(known));
        for (format, direction) in [(0, "older"), (FORMAT_READ_MAX + 1, "newer")] {
            write(&format!(
                r#"{{"format": {format}, "of another version": true}}"#
            ));
            let refused = load_state(dir.path()).unwrap_err();
            assert!(
                matches!(&refused, RuntimeError::OtherFormat { found, .. } if *found == format),
                "{refused}"
            );
            assert!(refused.to_string().contains(direction), "{refused}");
        }
        for damaged in ["", "{}", r#"{"format": "x"}"#, r#"{"format": 1}"#] {
            write(damaged);
            let refused = load_state(dir.path()).unwrap_err();
            assert!(matches!(refused, RuntimeError::Format { .. }), "{damaged}");
        }
    }
}
