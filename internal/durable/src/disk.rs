//! The disk interface: the few operations of a durable write, and their implementation on the file
//! system. Tests use a disk that loses unsynced data. It does not decide their order.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

/// The operations of a durable write. A test's disk may lose or reorder everything that no sync has
/// covered.
pub trait Disk {
    /// An open file.
    type File;

    /// Creates an empty file with this mode; replaces an existing file.
    ///
    /// # Errors
    /// The operating system's error.
    fn create(&self, path: &Path, mode: u32) -> io::Result<Self::File>;

    /// Appends to the file.
    ///
    /// # Errors
    /// The operating system's error.
    fn write(&self, file: &mut Self::File, content: &[u8]) -> io::Result<()>;

    /// Returns once the file's content is on the disk.
    ///
    /// # Errors
    /// The operating system's error.
    fn sync_file(&self, file: &Self::File) -> io::Result<()>;

    /// Renames a file within its directory, replacing an existing file of the new name.
    ///
    /// # Errors
    /// The operating system's error.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// The operating system's error; `NotFound` if the file does not exist.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Returns once the names in the directory are on the disk.
    ///
    /// # Errors
    /// The operating system's error.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// True if the directory exists.
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
        // Creates the file for its owner only, so that it is never readable by others, not even
        // until its mode is set.
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode & 0o600)
            .open(path)?;
        // The umask clears bits; this sets the requested mode.
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
