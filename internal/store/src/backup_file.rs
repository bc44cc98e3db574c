//! Owns the form of the files that a backup contains in addition to the objects.

use std::io;
use std::sync::Arc;

/// A file that a backup contains in addition to the objects.
#[derive(Clone, PartialEq, Eq)]
pub struct BackupFile {
    /// The file's name, without a directory.
    pub name: String,
    /// The file's content.
    pub content: Vec<u8>,
}

/// Returns the files that a snapshot contains in addition to the objects.
pub type SnapshotFiles = Arc<dyn Fn() -> io::Result<Vec<BackupFile>> + Send + Sync>;
