//! The audit log: a file with one audit.k8s.io/v1 event a line, a hash chain over the lines, and rotation.
//!
//! Each line contains the SHA-256 of the line before it and its own number, so that [`verify`]
//! detects a changed, removed or inserted line. A separate file contains the number and hash of the
//! last synced line, so that truncation is detected too. The chain cannot detect that an attacker
//! with the server's own rights rewrote the whole log: for that, compare the head with a copy
//! stored elsewhere.
//!
//! A request waits while the writer is behind by [`QUEUE`] events. If the disk accepts no writes,
//! requests continue: lost events are counted, and the next written event contains their number.

mod chain;
mod log;
mod trace;
mod verify;

use std::path::PathBuf;
use std::sync::Arc;

use resources::audit::{AuditEvent, AuditPolicy};
use tokio::sync::mpsc;

pub use log::AuditError;
pub use trace::{CallerSlot, EventNotes, Recorder, RepeatedQuestion, SignInName, trace};
pub use verify::{ChainVerdict, verify};

/// The maximum number of queued events.
const QUEUE: usize = 4096;

/// The log's directory, size and policy.
#[derive(Clone, Debug)]
pub struct AuditOptions {
    /// The log's directory.
    pub directory: PathBuf,
    /// A file of this many bytes is closed and a new one begins.
    pub file_bytes: u64,
    /// How many closed files are retained.
    pub files: usize,
    /// The audit policy.
    pub policy: AuditPolicy,
}

/// The log of a running server. When it and every recorder made from it are dropped, the writer
/// ends after the queued events.
pub struct AuditLog {
    events: mpsc::Sender<AuditEvent>,
    policy: Arc<AuditPolicy>,
    writer: std::thread::JoinHandle<()>,
}

impl AuditLog {
    /// Opens the log, continues the existing chain, and starts its writer. Blocks while it reads
    /// the end of the newest file.
    ///
    /// # Errors
    /// If the directory cannot be created or the newest file cannot be read.
    pub fn open(options: AuditOptions) -> Result<AuditLog, AuditError> {
        let policy = Arc::new(options.policy.clone());
        let mut file = log::LogFile::open(&options)?;
        let (events, mut waiting) = mpsc::channel::<AuditEvent>(QUEUE);
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

    /// The audit policy.
    #[must_use]
    pub fn policy(&self) -> Arc<AuditPolicy> {
        self.policy.clone()
    }

    /// The sender of events to the writer.
    #[must_use]
    pub fn events(&self) -> mpsc::Sender<AuditEvent> {
        self.events.clone()
    }

    /// Waits until all recorded events are on disk. Every other sender must be dropped first, or
    /// the call never returns. Blocks.
    pub fn finish(self) {
        drop(self.events);
        if self.writer.join().is_err() {
            tracing::error!(
                "the audit log's writer ended in a panic; the last events may be missing"
            );
        }
    }
}
