//! The state of one container of a pod over its runs, and when it may restart. Pure, and saved to
//! disk as it is.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::machine::StartBlock;

/// The first back-off between the end of a container and its next run, in seconds, as in
/// Kubernetes.
pub const BACKOFF_FIRST_SECONDS: i64 = 10;

/// The longest back-off, in seconds.
pub const BACKOFF_MAX_SECONDS: i64 = 300;

/// The back-off starts again at its shortest when the last restart is this long ago, in seconds.
pub const BACKOFF_RESET_SECONDS: i64 = 600;

/// The exit code of a container whose end was not observed.
pub const UNKNOWN_EXIT_CODE: i32 = 137;

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunEnd {
    /// The exit code; 128 + signal when a signal ended it.
    pub code: i32,
    /// The signal.
    pub signal: Option<i32>,
    /// The reason in one word, as in Kubernetes: Completed, Error, OOMKilled, StartError.
    pub reason: String,
    /// The reason in a sentence, or the content of the container's termination message file.
    pub message: String,
    /// When it started, if it did.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Timestamp,
}

impl RunEnd {
    /// An end that was not observed.
    pub fn unknown(message: &str, started_at: Option<Timestamp>, at: Timestamp) -> RunEnd {
        RunEnd {
            code: UNKNOWN_EXIT_CODE,
            signal: None,
            reason: "ContainerStatusUnknown".to_owned(),
            message: message.to_owned(),
            started_at,
            finished_at: at,
        }
    }
}

/// An observation of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunObservation {
    /// It is being set up.
    Starting,
    /// It is running.
    Running {
        /// The start time.
        since: Timestamp,
    },
    /// It has ended.
    Ended(RunEnd),
}

/// The state of the present run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RunState {
    /// There was no run yet.
    #[default]
    Never,
    /// It was requested.
    Starting,
    /// It is running.
    Running {
        /// The start time.
        since: Timestamp,
    },
    /// It has ended.
    Ended(RunEnd),
}

/// The back-off between runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backoff {
    /// The length of the next wait, in seconds.
    pub seconds: i64,
    /// When the length was set.
    pub updated: Timestamp,
}

/// A run that could not be created and is to be retried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unmade {
    /// The reason.
    pub why: StartBlock,
    /// The length of the wait, in seconds.
    pub seconds: i64,
    /// The end of the wait.
    pub until: Timestamp,
}

/// One container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerRecord {
    /// The run's number, from 0; also the restart count.
    pub attempt: u32,
    /// The present run.
    pub run: RunState,
    /// The end of the previous run.
    pub last: Option<RunEnd>,
    /// The back-off state.
    pub backoff: Option<Backoff>,
    /// The end of the present wait.
    pub wait_until: Option<Timestamp>,
    /// Why the present run could not be created so far.
    pub unmade: Option<Unmade>,
    /// Whether the startup probe has succeeded, or there is none.
    pub started: bool,
    /// Whether the readiness probe succeeds, or there is none.
    pub ready: bool,
    /// The reason for which a probe or hook requires its end.
    pub condemned: Option<String>,
    /// The grace period in seconds with which its end was requested.
    pub killed: Option<u32>,
}

impl ContainerRecord {
    /// Whether a process of it may exist.
    pub fn is_alive(&self) -> bool {
        matches!(self.run, RunState::Starting | RunState::Running { .. })
    }

    /// Whether it runs.
    pub fn is_running(&self) -> bool {
        matches!(self.run, RunState::Running { .. })
    }

    /// How its present run ended.
    pub fn end(&self) -> Option<&RunEnd> {
        match &self.run {
            RunState::Ended(end) => Some(end),
            _ => None,
        }
    }

    /// Records an observation of run `attempt`; true if that changed anything.
    pub fn observe(
        &mut self,
        attempt: u32,
        observation: RunObservation,
        startup_probe: bool,
        readiness_probe: bool,
    ) -> bool {
        if attempt != self.attempt || matches!(self.run, RunState::Ended(_)) {
            return false;
        }
        let next = match observation {
            RunObservation::Starting => return false,
            RunObservation::Running { since } => RunState::Running { since },
            RunObservation::Ended(end) => RunState::Ended(end),
        };
        if next == self.run {
            return false;
        }
        match next {
            RunState::Running { .. } => {
                self.started = !startup_probe;
                self.ready = self.started && !readiness_probe;
            }
            _ => {
                self.started = false;
                self.ready = false;
            }
        }
        self.run = next;
        self.unmade = None;
        true
    }

    /// Records that run `attempt` could not be created; true if it was requested. The wait is as
    /// long as for restarts, also the first time.
    pub fn not_made(&mut self, attempt: u32, why: StartBlock, now: Timestamp) -> bool {
        if attempt != self.attempt || self.run != RunState::Starting {
            return false;
        }
        let seconds = self
            .unmade
            .as_ref()
            .map_or(BACKOFF_FIRST_SECONDS, |unmade| {
                (unmade.seconds * 2).min(BACKOFF_MAX_SECONDS)
            });
        self.run = RunState::Never;
        self.unmade = Some(Unmade {
            why,
            seconds,
            until: after(now, seconds),
        });
        true
    }

    /// Starts the first run, or the next one.
    pub fn begin(&mut self) {
        if let RunState::Ended(end) = std::mem::take(&mut self.run) {
            self.last = Some(end);
            self.attempt = self.attempt.saturating_add(1);
        }
        self.run = RunState::Starting;
        self.wait_until = None;
        self.started = false;
        self.ready = false;
        self.condemned = None;
        self.killed = None;
    }

    /// When an ended container may run again: `None` for now, else not before that time. The first
    /// restart is immediate, as in Kubernetes; each later one waits twice as long.
    pub fn may_restart(&mut self, now: Timestamp) -> Option<Timestamp> {
        let end = self.end()?;
        let next = match self.backoff {
            Some(backoff) if now < after(backoff.updated, BACKOFF_RESET_SECONDS) => {
                let until = after(end.finished_at, backoff.seconds);
                if now < until {
                    self.wait_until = Some(until);
                    return Some(until);
                }
                (backoff.seconds * 2).min(BACKOFF_MAX_SECONDS)
            }
            _ => BACKOFF_FIRST_SECONDS,
        };
        self.backoff = Some(Backoff {
            seconds: next,
            updated: now,
        });
        None
    }
}

fn after(time: Timestamp, seconds: i64) -> Timestamp {
    time.checked_add(SignedDuration::from_secs(seconds))
        .unwrap_or(Timestamp::MAX)
}
