//! Reads how much space a file system has. Cost: one system call.

use std::io;
use std::path::Path;

use nix::sys::statvfs::statvfs;

/// The space of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskSpace {
    /// Bytes in all.
    pub bytes: u64,
    /// Free bytes that users other than root can use.
    pub available: u64,
    /// Inodes in all; 0 for a file system that creates them on demand.
    pub inodes: u64,
    /// Free inodes that users other than root can use.
    pub inodes_available: u64,
}

/// The space of the file system that contains a path.
///
/// # Errors
/// The kernel's, for instance if the path does not exist.
pub fn disk_space(path: &Path) -> io::Result<DiskSpace> {
    let found = statvfs(path)?;
    let fragment = found.fragment_size();
    Ok(DiskSpace {
        bytes: found.blocks().saturating_mul(fragment),
        available: found.blocks_available().saturating_mul(fragment),
        inodes: found.files(),
        inodes_available: found.files_available(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_has_no_more_free_than_it_has() {
        let space = disk_space(Path::new("/")).unwrap();
        assert!(space.bytes > 0 && space.available <= space.bytes);
        assert!(space.inodes_available <= space.inodes);
    }
}
