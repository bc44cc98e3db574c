//! Small operations on volumes that need the kernel: memory-backed directories shared by
//! a pod's containers, and files changed under a running container. Owns no layout: the
//! caller says where.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::error::RuntimeError;

/// How often a directory that is being removed is read again because something is left in it.
const ROUNDS: u32 = 16;

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
pub(crate) fn unescape(text: &str) -> String {
    text.replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\012", "\n")
        .replace("\\134", "\\")
}

/// Makes a directory and its missing parents such that every user can enter them, whatever the umask: pods run
/// as other users than the agent.
pub fn open_dir(dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    if let Some(parent) = dir.parent() {
        open_dir(parent)?;
    }
    match fs::create_dir(dir) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(()),
        made => made?,
    }
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755))
}

/// Removes a directory and all in it, however deep. What is below is brought up to `dir` level by
/// level, so that neither this process's stack nor its open files bound how deep a pod may nest.
///
/// Only this process may change the entries of `dir` itself; pods may change what is below them, and
/// no link is followed.
pub fn remove_tree(dir: &Path) -> io::Result<()> {
    let mut brought: u64 = 0;
    let mut left = Vec::new();
    for entry in fs::read_dir(dir)? {
        left.push(entry?.path());
    }
    while let Some(path) = left.pop() {
        if !is_directory(&path)? {
            gone(fs::remove_file(&path))?;
            continue;
        }
        // Its mode may keep an agent that is not root from what is in it.
        let _ = fs::set_permissions(&path, fs::Permissions::from_mode(0o700));
        for round in 1..=ROUNDS {
            for inner in fs::read_dir(&path)? {
                let inner = inner?.path();
                if is_directory(&inner)? {
                    let place = free_place(dir, &mut brought);
                    gone(fs::rename(&inner, &place))?;
                    left.push(place);
                } else {
                    gone(fs::remove_file(&inner))?;
                }
            }
            match gone(fs::remove_dir(&path)) {
                // A list that is changed while it is read may lack something.
                Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty && round < ROUNDS => {}
                Err(error) => return Err(error),
                Ok(()) => break,
            }
        }
    }
    gone(fs::remove_dir(dir))
}

/// A path in `dir` that nothing has.
fn free_place(dir: &Path, brought: &mut u64) -> PathBuf {
    loop {
        *brought += 1;
        let place = dir.join(format!("removed-{brought}"));
        if fs::symlink_metadata(&place).is_err() {
            return place;
        }
    }
}

/// Whether a path is a directory, and no link to one.
fn is_directory(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        found => found.map(|meta| meta.is_dir()),
    }
}

/// What is gone already is as good as removed.
fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Replaces a file's contents and keeps the file itself, so that a container that has it
/// bound (its hosts file) sees the new contents. A reader may see it half written for a moment.
pub fn write_in_place(path: &Path, contents: &[u8]) -> Result<(), RuntimeError> {
    let write = || -> io::Result<()> {
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        // The container's user must be able to read it, whatever this process' umask is.
        file.set_permissions(fs::Permissions::from_mode(0o644))?;
        file.write_all(contents)?;
        file.set_len(contents.len() as u64)
    };
    write().map_err(RuntimeError::io("write", path))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_tree_is_removed_however_deep_and_no_link_is_followed() {
        const DEPTH: usize = 20_000;
        let dir = tempfile::tempdir().unwrap();
        let (kept, tree) = (dir.path().join("kept"), dir.path().join("tree"));
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join("file"), "x").unwrap();
        let volume = tree.join("volume");
        fs::create_dir_all(&volume).unwrap();
        symlink(&kept, volume.join("link")).unwrap();
        symlink(&kept, tree.join("link")).unwrap();
        // From the inside out: the path of the innermost is longer than the kernel takes.
        let (inner, outer) = (volume.join("inner"), volume.join("outer"));
        fs::create_dir(&inner).unwrap();
        fs::write(inner.join("file"), "x").unwrap();
        for _ in 0..DEPTH {
            fs::create_dir(&outer).unwrap();
            fs::rename(&inner, outer.join("inner")).unwrap();
            fs::rename(&outer, &inner).unwrap();
        }
        // A name that the removal itself would choose.
        fs::create_dir_all(tree.join("removed-1/in")).unwrap();
        fs::create_dir(volume.join("shut")).unwrap();
        fs::set_permissions(&volume, fs::Permissions::from_mode(0o500)).unwrap();
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
        assert!(kept.join("file").exists());
    }
}
