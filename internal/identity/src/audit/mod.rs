//! The audit log: a file with one audit.k8s.io/v1 event a line, a hash chain over the lines, and rotation.
//!
//! Each line names the SHA-256 of the line before it and its own number, so a line that is changed, removed or
//! put in is found by [`verify`]. The number and hash of the last line that was synced are kept in a file of their
//! own, so that cutting the end off is found, too. What the chain cannot show is a log that somebody with the
//! server's own rights wrote anew as a whole: for that, compare the head with a copy kept elsewhere.
//!
//! A request waits while the writer is behind by [`QUEUE`] events. A disk that takes no writes stops nothing: the
//! events are counted, and the next one that is written says how many were lost.

mod chain;
mod log;
mod trace;
mod verify;

use std::path::PathBuf;
use std::sync::Arc;

use resources::audit::{Event, Policy};
use tokio::sync::mpsc;

pub use log::AuditError;
pub use trace::{CallerSlot, Recorder, SignInName, trace};
pub use verify::{Verdict, verify};

/// How many events may wait to be written.
const QUEUE: usize = 4096;

/// Where the log is and how much of it is kept.
#[derive(Clone, Debug)]
pub struct AuditOptions {
    /// The log's directory.
    pub directory: PathBuf,
    /// A file is closed and another begun when it has this many bytes.
    pub file_bytes: u64,
    /// How many closed files are kept.
    pub files: usize,
    /// What is recorded.
    pub policy: Policy,
}

/// The log of a running server. Dropping it, and every recorder made of it, ends the writer after what waits.
pub struct AuditLog {
    events: mpsc::Sender<Event>,
    policy: Arc<Policy>,
    writer: std::thread::JoinHandle<()>,
}

impl AuditLog {
    /// Opens the log, going on with the chain that is there, and starts its writer. Blocks while it reads the
    /// newest file's end.
    ///
    /// # Errors
    /// When the directory cannot be made or the newest file cannot be read.
    pub fn open(options: AuditOptions) -> Result<AuditLog, AuditError> {
        let policy = Arc::new(options.policy.clone());
        let mut file = log::LogFile::open(&options)?;
        let (events, mut waiting) = mpsc::channel::<Event>(QUEUE);
        let writer = std::thread::Builder::new()
            .name("audit-log".to_owned())
            .spawn(move || file.write_all_of(&mut waiting))
            .map_err(|error| AuditError::new("start the writer of", &options.directory, error))?;
        Ok(AuditLog {
            events,
            policy,
            writer,
        })
    }

    /// What is recorded.
    #[must_use]
    pub fn policy(&self) -> Arc<Policy> {
        self.policy.clone()
    }

    /// Where events go.
    #[must_use]
    pub fn events(&self) -> mpsc::Sender<Event> {
        self.events.clone()
    }

    /// Waits until everything that was recorded is on disk; every other sender must be gone, or the wait has no
    /// end. Blocks.
    pub fn finish(self) {
        drop(self.events);
        if self.writer.join().is_err() {
            tracing::error!(
                "the audit log's writer ended in a panic; the last events may be missing"
            );
        }
    }
}
