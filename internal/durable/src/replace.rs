//! Replaces and removes files, step by step, and names the step that failed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::disk::{Disk, System};

/// The mode of a file that only its owner may read and write.
pub const PRIVATE: u32 = 0o600;

/// Distinguishes the temporary files of one process.
pub(crate) static WRITES: AtomicU64 = AtomicU64::new(0);

/// A step of a durable write or removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DurableStep {
    /// The temporary file is created.
    Create,
    /// The content is written to the temporary file.
    Write,
    /// The temporary file is synced to the disk.
    SyncFile,
    /// The temporary file is renamed to its final name.
    Rename,
    /// A file is removed.
    Remove,
    /// The directory is synced, so that the names in it are on the disk.
    SyncDirectory,
    /// The directory's names are read, for [`crate::sweep`].
    List,
}

impl std::fmt::Display for DurableStep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            DurableStep::Create => "create",
            DurableStep::Write => "write to",
            DurableStep::SyncFile => "sync",
            DurableStep::Rename => "rename a new file to",
            DurableStep::Remove => "remove",
            DurableStep::SyncDirectory => "sync the directory",
            DurableStep::List => "list the directory",
        })
    }
}

/// A durable write that failed: at which step, and on which path.
#[derive(Debug, thiserror::Error)]
#[error("cannot {step} {path}: {source}")]
pub struct Error {
    /// The step that failed.
    pub step: DurableStep,
    /// The file or directory that the step was about.
    pub path: PathBuf,
    /// The operating system's error.
    pub source: io::Error,
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        io::Error::new(error.source.kind(), error)
    }
}

/// Replaces a file, readable by its owner only. When this returns, the content is on the disk; when
/// it fails or the power is cut meanwhile, the file has its old content or the new one, whole.
///
/// # Errors
/// The step that failed, with its path.
pub fn replace(path: &Path, content: &[u8]) -> Result<(), Error> {
    replace_on(&System, path, content, PRIVATE)
}

/// Like [`replace`], for a file with another mode, whatever the umask.
///
/// # Errors
/// The step that failed, with its path.
pub fn replace_with_mode(path: &Path, content: &[u8], mode: u32) -> Result<(), Error> {
    replace_on(&System, path, content, mode)
}

/// Removes a file. When this returns, it stays removed after a power cut. A file that does not
/// exist is no error.
///
/// # Errors
/// The step that failed, with its path.
pub fn remove(path: &Path) -> Result<(), Error> {
    remove_on(&System, path)
}

/// Returns once the names in a directory are on the disk: call it after creating files or
/// directories there.
///
/// # Errors
/// If the directory cannot be synced.
pub fn sync_directory(path: &Path) -> Result<(), Error> {
    System
        .sync_dir(path)
        .map_err(at(DurableStep::SyncDirectory, path))
}

/// Gives a finished file its final name: syncs it, renames it and syncs the directory. For files
/// that are too large to pass as one buffer; both paths are in the same directory.
///
/// # Errors
/// The step that failed, with its path.
pub fn publish(temporary: &Path, path: &Path) -> Result<(), Error> {
    let file = std::fs::File::open(temporary).map_err(at(DurableStep::SyncFile, temporary))?;
    publish_on(&System, &file, temporary, path)
}

/// [`replace_with_mode`] on a given disk.
///
/// # Errors
/// The step that failed, with its path.
pub fn replace_on<D: Disk>(disk: &D, path: &Path, content: &[u8], mode: u32) -> Result<(), Error> {
    let temporary = temporary(path);
    let written = (|| {
        let mut file = disk
            .create(&temporary, mode)
            .map_err(at(DurableStep::Create, &temporary))?;
        disk.write(&mut file, content)
            .map_err(at(DurableStep::Write, &temporary))?;
        publish_on(disk, &file, &temporary, path)
    })();
    if let Err(error) = &written
        && error.step != DurableStep::SyncDirectory
    {
        // A failed removal adds nothing to the error that is being returned.
        let _ = disk.remove(&temporary);
    }
    written
}

fn publish_on<D: Disk>(
    disk: &D,
    file: &D::File,
    temporary: &Path,
    path: &Path,
) -> Result<(), Error> {
    disk.sync_file(file)
        .map_err(at(DurableStep::SyncFile, temporary))?;
    disk.rename(temporary, path)
        .map_err(at(DurableStep::Rename, path))?;
    sync_parent(disk, path)
}

/// [`remove`] on a given disk.
///
/// # Errors
/// The step that failed, with its path.
pub fn remove_on<D: Disk>(disk: &D, path: &Path) -> Result<(), Error> {
    match disk.remove(path) {
        // An earlier removal may have failed before its sync: sync in either case.
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(at(DurableStep::Remove, path)(error))
        }
        _ if !disk.has_directory(directory(path)) => Ok(()),
        _ => sync_parent(disk, path),
    }
}

fn sync_parent<D: Disk>(disk: &D, path: &Path) -> Result<(), Error> {
    let directory = directory(path);
    disk.sync_dir(directory)
        .map_err(at(DurableStep::SyncDirectory, directory))
}

fn directory(path: &Path) -> &Path {
    path.parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// A name in the file's directory: `.NAME.PID-NUMBER.new`, which [`crate::sweep`] recognises. It ends in
/// `.new`, so that a reader that selects files by their ending skips it.
fn temporary(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    let number = WRITES.fetch_add(1, Ordering::Relaxed);
    name.push(format!(".{}-{number}.new", std::process::id()));
    directory(path).join(name)
}

pub(crate) fn at(step: DurableStep, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error { step, path, source }
}
