//! The disk's seam: the few operations that a durable write consists of, and the real ones. Tests
//! put a disk there that loses what was not synced. It decides nothing about their order.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

/// What a durable write asks of a disk. A test's disk may lose or reorder everything that no sync
/// has covered.
pub trait Disk {
    /// An open file.
    type File;

    /// Creates an empty file with this mode; a file that is there is replaced by a new one.
    ///
    /// # Errors
    /// What the system said.
    fn create(&self, path: &Path, mode: u32) -> io::Result<Self::File>;

    /// Appends to the file.
    ///
    /// # Errors
    /// What the system said.
    fn write(&self, file: &mut Self::File, content: &[u8]) -> io::Result<()>;

    /// Returns once the file's content is on the disk.
    ///
    /// # Errors
    /// What the system said.
    fn sync_file(&self, file: &Self::File) -> io::Result<()>;

    /// Gives a file another name in its directory, in place of the file that has it.
    ///
    /// # Errors
    /// What the system said.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// What the system said; `NotFound` where there is none.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Returns once the names in the directory are on the disk.
    ///
    /// # Errors
    /// What the system said.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Whether there is such a directory.
    fn has_directory(&self, path: &Path) -> bool;
}

/// The file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct System;

impl Disk for System {
    type File = File;

    fn create(&self, path: &Path, mode: u32) -> io::Result<File> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // Created for its owner alone: it is never open to others, not even until its mode is set.
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode & 0o600)
            .open(path)?;
        // The umask takes bits away; the mode that was asked for counts.
        file.set_permissions(Permissions::from_mode(mode))?;
        Ok(file)
    }

    fn write(&self, file: &mut File, content: &[u8]) -> io::Result<()> {
        file.write_all(content)
    }

    fn sync_file(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn has_directory(&self, path: &Path) -> bool {
        path.is_dir()
    }
}
