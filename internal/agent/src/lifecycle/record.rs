//! What is known of one container of a pod over its runs, and when it may run again. Pure, and
//! kept on disk as it is.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::machine::Hold;

/// The first wait between the end of a container and its next run, in seconds; Kubernetes' own.
pub const BACKOFF_FIRST_SECONDS: i64 = 10;

/// The longest such wait, in seconds.
pub const BACKOFF_MAX_SECONDS: i64 = 300;

/// After this long without a restart the waits begin anew, in seconds.
pub const BACKOFF_RESET_SECONDS: i64 = 600;

/// The exit code of a container whose end nobody saw.
pub const UNKNOWN_EXIT_CODE: i32 = 137;

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// The exit code; 128 + signal when a signal ended it.
    pub code: i32,
    /// The signal.
    pub signal: Option<i32>,
    /// In one word, as Kubernetes says it: Completed, Error, OOMKilled, StartError.
    pub reason: String,
    /// In a sentence, or what the container left in its termination message file.
    pub message: String,
    /// When it started, if it did.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Timestamp,
}

impl End {
    /// An end that nobody saw.
    pub fn unknown(message: &str, started_at: Option<Timestamp>, at: Timestamp) -> End {
        End {
            code: UNKNOWN_EXIT_CODE,
            signal: None,
            reason: "ContainerStatusUnknown".to_owned(),
            message: message.to_owned(),
            started_at,
            finished_at: at,
        }
    }
}

/// What was seen of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It is being set up.
    Starting,
    /// It runs.
    Running {
        /// Since then.
        since: Timestamp,
    },
    /// It is over.
    Ended(End),
}

/// Where the present run is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Run {
    /// There has been none yet.
    #[default]
    Never,
    /// It was asked for.
    Starting,
    /// It runs.
    Running {
        /// Since then.
        since: Timestamp,
    },
    /// It is over.
    Ended(End),
}

/// The waiting time between runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backoff {
    /// How long the next wait is, in seconds.
    pub seconds: i64,
    /// When that was decided.
    pub updated: Timestamp,
}

/// A run that did not come to be, to be tried again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unmade {
    /// For want of what.
    pub why: Hold,
    /// How long it waits, in seconds.
    pub seconds: i64,
    /// Until when.
    pub until: Timestamp,
}

/// One container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Counts the runs, from 0; also how often it was restarted.
    pub attempt: u32,
    /// The present run.
    pub run: Run,
    /// How the run before ended.
    pub last: Option<End>,
    /// The waits.
    pub backoff: Option<Backoff>,
    /// Until when it waits now.
    pub wait_until: Option<Timestamp>,
    /// The present run did not come to be so far.
    pub unmade: Option<Unmade>,
    /// The startup probe has succeeded, or there is none.
    pub started: bool,
    /// The readiness probe succeeds, or there is none.
    pub ready: bool,
    /// A probe or hook wants it ended, and why.
    pub condemned: Option<String>,
    /// It was asked to end, with this grace in seconds.
    pub killed: Option<u32>,
}

impl Record {
    /// Whether a process of it may exist.
    pub fn is_alive(&self) -> bool {
        matches!(self.run, Run::Starting | Run::Running { .. })
    }

    /// Whether it runs.
    pub fn is_running(&self) -> bool {
        matches!(self.run, Run::Running { .. })
    }

    /// How its present run ended.
    pub fn end(&self) -> Option<&End> {
        match &self.run {
            Run::Ended(end) => Some(end),
            _ => None,
        }
    }

    /// Takes in what was seen of run `attempt`; true if that changed anything.
    pub fn observe(
        &mut self,
        attempt: u32,
        seen: Seen,
        startup_probe: bool,
        readiness_probe: bool,
    ) -> bool {
        if attempt != self.attempt || matches!(self.run, Run::Ended(_)) {
            return false;
        }
        let next = match seen {
            Seen::Starting => return false,
            Seen::Running { since } => Run::Running { since },
            Seen::Ended(end) => Run::Ended(end),
        };
        if next == self.run {
            return false;
        }
        match next {
            Run::Running { .. } => {
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

    /// Run `attempt` did not come to be; true if it was asked for. It waits as long as restarts
    /// do, the first time too.
    pub fn not_made(&mut self, attempt: u32, why: Hold, now: Timestamp) -> bool {
        if attempt != self.attempt || self.run != Run::Starting {
            return false;
        }
        let seconds = self
            .unmade
            .as_ref()
            .map_or(BACKOFF_FIRST_SECONDS, |unmade| {
                (unmade.seconds * 2).min(BACKOFF_MAX_SECONDS)
            });
        self.run = Run::Never;
        self.unmade = Some(Unmade {
            why,
            seconds,
            until: after(now, seconds),
        });
        true
    }

    /// Begins the first run, or the next one.
    pub fn begin(&mut self) {
        if let Run::Ended(end) = std::mem::take(&mut self.run) {
            self.last = Some(end);
            self.attempt = self.attempt.saturating_add(1);
        }
        self.run = Run::Starting;
        self.wait_until = None;
        self.started = false;
        self.ready = false;
        self.condemned = None;
        self.killed = None;
    }

    /// When a container that ended may run again: `None` for now, else not before that time.
    /// The first restart is at once, as in Kubernetes; each later one waits twice as long.
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
