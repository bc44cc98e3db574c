//! Small operations on volumes that need the kernel: memory-backed directories shared by
//! a pod's containers, and files changed under a running container. Owns no layout: the
//! caller says where.

use std::fs;
use std::io::Write;
use std::path::Path;

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::error::RuntimeError;

/// Mounts a memory file system of at most `size_bytes` on `dir` (made if missing); does
/// nothing if one is there already. Needs to be root.
pub fn mount_memory(dir: &Path, size_bytes: Option<u64>) -> Result<(), RuntimeError> {
    fs::create_dir_all(dir).map_err(RuntimeError::io("make", dir))?;
    if is_mount_point(dir) {
        return Ok(());
    }
    let mut options = String::from("mode=0777");
    if let Some(size) = size_bytes {
        options.push_str(&format!(",size={size}"));
    }
    mount(
        Some("tmpfs"),
        dir,
        Some("tmpfs"),
        MsFlags::MS_NOSUID | MsFlags::MS_NODEV,
        Some(options.as_str()),
    )
    .map_err(|e| RuntimeError::io("mount a memory file system on", dir)(e.into()))
}

/// Undoes [`mount_memory`]; does nothing if nothing is mounted there.
pub fn unmount(dir: &Path) -> Result<(), RuntimeError> {
    if !is_mount_point(dir) {
        return Ok(());
    }
    umount2(dir, MntFlags::MNT_DETACH).map_err(|e| RuntimeError::io("unmount", dir)(e.into()))
}

/// Whether something is mounted on exactly `dir`.
pub fn is_mount_point(dir: &Path) -> bool {
    let Ok(real) = dir.canonicalize() else {
        return false;
    };
    let Ok(table) = fs::read_to_string("/proc/self/mountinfo") else {
        return false;
    };
    table
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .any(|point| Path::new(&unescape(point)) == real)
}

/// The mount table writes space, tab, newline and backslash in octal.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\012", "\n")
        .replace("\\134", "\\")
}

/// Replaces a file's contents and keeps the file itself, so that a container that has it
/// bound (its hosts file) sees the new contents. A reader may see it half written for a moment.
pub fn write_in_place(path: &Path, contents: &[u8]) -> Result<(), RuntimeError> {
    let write = || -> std::io::Result<()> {
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        file.write_all(contents)?;
        file.set_len(contents.len() as u64)
    };
    write().map_err(RuntimeError::io("write", path))
}
