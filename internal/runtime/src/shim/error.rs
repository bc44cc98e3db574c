//! Why the shim does not run its container, or does not go on. Its text becomes the container's message or a line
//! of the shim's own output.

use std::io;
use std::num::TryFromIntError;
use std::path::PathBuf;

use nix::errno::Errno;

use super::record::Unsaved;
use crate::error::RuntimeError;
use crate::spec::SpecError;

/// Why the shim does not run its container, or does not go on.
#[derive(Debug, thiserror::Error)]
pub(super) enum ShimError {
    #[error("{}: {source}", path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error("{0}")]
    Root(#[source] Errno),
    #[error("cannot open the lock: {0}")]
    OpenLock(#[source] io::Error),
    #[error("cannot lock: {0}")]
    Lock(#[source] io::Error),
    /// The container's own files can't be read or written, or say what can't be.
    #[error(transparent)]
    Files(#[from] RuntimeError),
    /// The container's description can't be used.
    #[error(transparent)]
    Spec(#[from] SpecError),
    #[error("the process vanished")]
    Vanished,
    #[error("this container has been run, or was given up, already")]
    RunAlready,
    #[error("the directory has no container description")]
    NoSpec,
    #[error("cannot adopt orphans: {0}")]
    Adopt(#[source] Errno),
    #[error(transparent)]
    Unsaved(#[from] Unsaved),
    /// A system call failed.
    #[error("{what}: {source}")]
    Call { what: &'static str, source: Errno },
    #[error("cannot open the log {}: {source}", path.display())]
    Log { path: PathBuf, source: io::Error },
    #[error("cannot make a pipe: {0}")]
    Pipe(#[source] io::Error),
    #[error("cannot start a process: {0}")]
    Spawn(#[source] io::Error),
    #[error("{0}")]
    ProcessNumber(#[source] TryFromIntError),
}
