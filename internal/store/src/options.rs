//! Owns the store's settings and the query for free disk space.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::backup_file::SnapshotFiles;
use crate::version::Formats;

/// How much history a watch can resume from, in events.
const HISTORY: usize = 20_000;
/// How much history a watch can resume from, in bytes.
const HISTORY_BYTES: usize = 32 << 20;
/// The space that must stay free on the disk.
const RESERVE_BYTES: u64 = 64 << 20;
/// The lower floor for writes that make room: four of the disk engine's segments.
const RELIEF_FLOOR_BYTES: u64 = 8 << 20;
/// The size of the file that is removed on a full disk: enough for thousands of deletions.
const RESERVE_FILE_BYTES: u64 = 16 << 20;
/// The memory limit of the disk engine; every object is in memory anyway.
const CACHE_BYTES: u64 = 4 << 20;

/// Returns how many bytes are free on the disk that contains a path.
pub type FreeBytes = Arc<dyn Fn(&Path) -> io::Result<u64> + Send + Sync>;

/// Where snapshots are written, and with which files.
#[derive(Clone, Default)]
pub struct SnapshotOptions {
    /// The directory; `snapshots` in the store's directory if none.
    pub directory: Option<PathBuf>,
    /// The server's files; none by default.
    pub files: Option<SnapshotFiles>,
}

/// Settings of a store.
#[derive(Clone)]
pub struct Options {
    /// The maximum number of events kept for watches to resume from.
    pub history: usize,
    /// The maximum number of bytes kept for watches to resume from.
    pub history_bytes: usize,
    /// Writes are refused while fewer bytes than this are free on the disk.
    pub reserve_bytes: u64,
    /// Writes that make room, such as deletions, are refused while fewer bytes than this are free.
    pub relief_floor_bytes: u64,
    /// The size of the file that is removed when the disk is full, so that there is room to delete;
    /// 0 for none.
    pub reserve_file_bytes: u64,
    /// The maximum number of bytes that the disk engine keeps in memory.
    pub cache_bytes: u64,
    /// The query for free space; asks the file system by default.
    pub free_bytes: FreeBytes,
    /// The formats that this binary knows; tests give others.
    pub formats: Formats,
    /// The snapshot that is written before another version's store is changed.
    pub snapshot: SnapshotOptions,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            history: HISTORY,
            history_bytes: HISTORY_BYTES,
            reserve_bytes: RESERVE_BYTES,
            relief_floor_bytes: RELIEF_FLOOR_BYTES,
            reserve_file_bytes: RESERVE_FILE_BYTES,
            cache_bytes: CACHE_BYTES,
            free_bytes: Arc::new(free_bytes),
            formats: Formats::CURRENT,
            snapshot: SnapshotOptions::default(),
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("history", &self.history)
            .field("history_bytes", &self.history_bytes)
            .field("reserve_bytes", &self.reserve_bytes)
            .field("relief_floor_bytes", &self.relief_floor_bytes)
            .field("reserve_file_bytes", &self.reserve_file_bytes)
            .field("cache_bytes", &self.cache_bytes)
            .finish_non_exhaustive()
    }
}

fn free_bytes(path: &Path) -> io::Result<u64> {
    Ok(durable::disk_space(path)?.available)
}
