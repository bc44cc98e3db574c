//! Owns the store's errors. Their messages contain the remedy.

use std::io;
use std::path::{Path, PathBuf};

use crate::entry::Revision;

/// Why the store cannot take a write.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The disk is too full to write to safely.
    #[error(
        "the store's disk is full: {free} bytes are free at {path}, {reserve} must stay free; the store refuses writes \
         until the disk has room (free some space, delete what is no longer needed, or move the data to a larger \
         disk); reads, deletions and sign-in continue"
    )]
    NoSpace {
        /// Bytes free.
        free: u64,
        /// Bytes that must stay free.
        reserve: u64,
        /// The store's directory.
        path: PathBuf,
    },
    /// The disk failed during a write; the store is read-only from then on.
    #[error(
        "the store could not write and is read-only until the server starts again: {reason}; check the disk and the \
         kernel's log before you start it"
    )]
    Failed {
        /// The operating system's error.
        reason: String,
    },
    /// The transaction's own code panicked; all its changes were reverted.
    #[error("the change was dropped because preparing it panicked: {reason}; nothing was written")]
    Panicked {
        /// The panic's message.
        reason: String,
    },
    /// The store is being closed.
    #[error("the store is closed because the server is stopping; try again once it is back")]
    Closed,
}

/// Why a transaction was not committed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError<E> {
    /// The transaction itself returned an error; all its changes were reverted.
    #[error("{0}")]
    Refused(E),
    /// The store could not accept the transaction; all its changes were reverted.
    #[error(transparent)]
    Unavailable(StoreError),
}

/// Why no snapshot of a store could be written.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The snapshots' directory cannot be used.
    #[error("{path}: {source}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The server's files could not be read.
    #[error(transparent)]
    Files(std::io::Error),
    /// The backup could not be written.
    #[error(transparent)]
    Backup(Box<BackupError>),
}

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has the store open.
    #[error(
        "another process is using the store at {path}; stop it, or give this one its own --data directory"
    )]
    Held {
        /// The store's directory.
        path: PathBuf,
    },
    /// The directory contains no store.
    #[error("there is no store at {path}; name the server's data directory with --data")]
    Missing {
        /// The directory that was searched.
        path: PathBuf,
    },
    /// A newer binary wrote the store, and its upgrade was finalized.
    #[error(
        "the store at {path} can be read from format {found} on, and this binary knows formats up to {known}: muster \
         {written_by} wrote it, and its upgrade was finalized; install muster {written_by} or newer again, or go back \
         to a snapshot from before that upgrade (`muster upgrade rollback` prints the snapshots and the commands)"
    )]
    NewerFormat {
        /// The store's directory.
        path: PathBuf,
        /// The oldest format whose binaries may read the store.
        found: u32,
        /// The newest format that this binary supports.
        known: u32,
        /// The version of muster that last wrote the store.
        written_by: String,
    },
    /// The store is older than every format that this binary can bring up to date.
    #[error(
        "the store at {path} has format {found}, and this binary upgrades stores from format {oldest} on; first run a \
         muster release in between, and finalize its upgrade (`muster upgrade finalize`)"
    )]
    OlderFormat {
        /// The store's directory.
        path: PathBuf,
        /// The store's format.
        found: u32,
        /// The oldest format that this binary supports.
        oldest: u32,
    },
    /// No snapshot could be written before an upgrade; the store was not changed.
    #[error(
        "the store at {path} was written by muster {written_by}, and the snapshot before the upgrade failed: {reason}; \
         nothing was changed: mend that, or run muster {written_by} again"
    )]
    Snapshot {
        /// The store's directory.
        path: PathBuf,
        /// The version of muster that last wrote the store.
        written_by: String,
        /// Why there is no snapshot.
        reason: SnapshotError,
    },
    /// The upgrade of the records failed; the next start resumes it.
    #[error("the upgrade of the store at {path} failed: {source}")]
    Migration {
        /// The store's directory.
        path: PathBuf,
        /// The store's error.
        source: StoreError,
    },
    /// The store on disk is inconsistent.
    #[error(
        "the store at {path} is damaged: {what}; the server does not start with it: move {path} aside \
         (keep it for analysis), run `muster restore` with the latest backup, and verify the result with \
         `muster store check` before you start the server"
    )]
    Damaged {
        /// The store's directory.
        path: PathBuf,
        /// The inconsistency.
        what: String,
    },
    /// The directory could not be read or written.
    #[error(
        "cannot open the store at {path}: {source}; check that the directory exists, that the server's user owns it and that its disk has room"
    )]
    Io {
        /// The store's directory.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
}

/// Why a watch, or a list at an earlier revision, cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchError {
    /// The history no longer contains the revision.
    #[error(
        "the history before revision {oldest} no longer exists; list again and watch from the list's revision"
    )]
    Expired {
        /// The oldest revision that a watch can start from.
        oldest: Revision,
    },
    /// The revision lies in the future: it comes from another store, or from before a restore.
    #[error(
        "the store is at revision {current} and has not reached {asked}; list again and watch from the list's revision"
    )]
    Ahead {
        /// The revision asked for.
        asked: Revision,
        /// The store's revision.
        current: Revision,
    },
}

/// Why a backup could not be made or restored.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// A file could not be read or written.
    #[error("{action} {path}: {source}")]
    Io {
        /// The operation.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The file is not a backup, or is an incomplete one.
    #[error("{path} is not a whole backup: {what}; use another one")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The inconsistency.
        what: String,
    },
    /// A newer binary made the backup.
    #[error(
        "{path} was made in backup format {found}, and this binary knows formats up to {known}; use the newer muster that wrote it"
    )]
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// The backup's format.
        found: u32,
        /// The newest format that this binary supports.
        known: u32,
    },
    /// The backup's store can only be read by newer binaries.
    #[error(
        "{path} holds a store that is readable from format {found} on, and this binary knows formats up to {known}; \
         restore it with muster {written_by} or newer"
    )]
    NewerStore {
        /// The file.
        path: PathBuf,
        /// The oldest format whose binaries may read the objects.
        found: u32,
        /// The newest format that this binary supports.
        known: u32,
        /// The version of muster that wrote the backup.
        written_by: String,
    },
    /// The backup needs a passphrase.
    #[error(
        "{path} is encrypted; give the passphrase that it was encrypted with (--passphrase-file)"
    )]
    Sealed {
        /// The file.
        path: PathBuf,
    },
    /// A passphrase was given, but the backup is not encrypted: its origin is not authenticated.
    #[error(
        "{path} is not encrypted; leave --passphrase-file out if you trust where it comes from"
    )]
    NotSealed {
        /// The file.
        path: PathBuf,
    },
    /// The directory is not empty.
    #[error("{path} is not empty; restore into an empty directory")]
    NotEmpty {
        /// The directory.
        path: PathBuf,
    },
    /// The new store could not be written.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The new store could not be written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a ledger could not be opened or written.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LedgerError {
    /// The disk is too full to write to safely.
    #[error(
        "the disk is full: {free} bytes are free at {path}, {reserve} must stay free; free some space \
         or move the data to a larger disk"
    )]
    NoSpace {
        /// Bytes free.
        free: u64,
        /// Bytes that must stay free.
        reserve: u64,
        /// The ledger's directory.
        path: PathBuf,
    },
    /// The disk failed.
    #[error("{path} cannot be used: {reason}; check the disk and the permissions")]
    Failed {
        /// The ledger's directory.
        path: PathBuf,
        /// The operating system's error.
        reason: String,
    },
}

/// Why an upgrade was not finalized.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "the store's version could not be written: {reason}; check the disk of {path}, then finalize again"
)]
pub struct FinalizeError {
    /// The store's directory.
    pub path: PathBuf,
    /// The operating system's error.
    pub reason: String,
}

/// The error of a call about the store in a directory.
pub(crate) fn io_error(dir: &Path) -> impl Fn(io::Error) -> OpenError {
    let path = dir.to_owned();
    move |source| OpenError::Io {
        path: path.clone(),
        source,
    }
}

/// The error of a store that is damaged in this way.
pub(crate) fn damaged(dir: &Path, what: impl Into<String>) -> OpenError {
    OpenError::Damaged {
        path: dir.to_owned(),
        what: what.into(),
    }
}
