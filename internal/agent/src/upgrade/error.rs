//! Why an agent does not start a binary that the server offers. The texts go to the administrator of
//! the upgrade.

use std::path::PathBuf;

/// An offered binary is not started.
#[derive(Debug, thiserror::Error)]
pub enum UpgradeError {
    /// This agent is not upgraded by the server.
    #[error("{0}")]
    Refused(String),
    /// The offer's fields are out of range.
    #[error("the server's offer has an invalid {0}; the server and this agent differ too much")]
    Offer(&'static str),
    /// Another binary is being received.
    #[error("this agent is receiving another binary; try again")]
    Busy,
    /// The binary that runs is no longer on the disk, so the agent could not go back to it.
    #[error(
        "{} is no longer the binary that runs, so the agent could not go back to it; restart the agent",
        .0.display()
    )]
    Replaced(PathBuf),
    /// The disk has too little space.
    #[error("{} has {free} bytes free, and the binary needs {needed}; free some space", path.display())]
    NoSpace {
        /// The directory.
        path: PathBuf,
        /// Bytes free.
        free: u64,
        /// Bytes needed.
        needed: u64,
    },
    /// A part did not arrive.
    #[error("the next part of the binary did not arrive within {0} s")]
    Silent(u64),
    /// A part is not the one that was asked for.
    #[error("the server sent another part of the binary than the one asked for")]
    WrongPart,
    /// The content is not what was offered.
    #[error("the binary that arrived has the digest {found}, not the offered {offered}")]
    Digest {
        /// The digest of what arrived.
        found: String,
        /// The offered digest.
        offered: String,
    },
    /// The binary does not run on this machine.
    #[error("the binary does not start on this node: {0}")]
    DoesNotStart(String),
    /// A file can't be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The record can't be written.
    #[error(transparent)]
    Record(#[from] crate::error::AgentError),
    /// The session ended meanwhile.
    #[error("the session ended")]
    Ended,
}
