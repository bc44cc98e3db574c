//! What a held container sees of the kernel's own file systems: a `/proc` of its own process
//! namespace, the masked and read-only paths that Kubernetes asks container runtimes for, and
//! empty directories in the place of Muster's own. Runs in the process that is about to become
//! the container, after its volumes are mounted; owns no volume.

use std::fs;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};

use super::MountError;
use super::apply::{bind, remount, tmpfs};
use crate::volumes::unescape;

/// What is hidden of /proc and /sys from a container that is not privileged: Kubernetes' list.
pub const MASKED: [&str; 9] = [
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
];

/// What is made read-only there: Kubernetes' list.
pub const READ_ONLY: [&str; 6] = [
    "/proc/asound",
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

/// The options of the file system that takes a hidden directory's place: no user without capabilities may enter it.
const HIDDEN: &str = "mode=0,size=4k";
/// The options of the one that takes a masked directory's place.
const EMPTY: &str = "mode=0555,size=4k";

/// Shows the processes of this process's namespace, and no others, under `/proc`.
pub fn own_proc() -> Result<(), MountError> {
    mount(
        Some("proc"),
        "/proc",
        Some("proc"),
        MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC,
        None::<&str>,
    )
    .map_err(MountError::OwnProc)
}

/// Replaces a directory by an empty one that no user without capabilities may enter. Does nothing if
/// the directory does not exist.
pub fn hide(directory: &Path) -> Result<(), MountError> {
    if !directory.is_dir() {
        return Ok(());
    }
    tmpfs(directory, HIDDEN)?;
    remount(directory, MsFlags::MS_RDONLY)
}

/// Masks [`MASKED`], makes [`READ_ONLY`] and all of `/sys` read-only. A refusal is noted: file
/// permissions keep a user that is not root from most of it as well.
pub fn restrict(note: &mut impl FnMut(String)) {
    let masked = MASKED.map(Path::new).into_iter().map(mask);
    let read_only = READ_ONLY.map(Path::new).into_iter().map(freeze);
    for refused in masked.chain(read_only).chain(sys()).filter_map(Result::err) {
        note(refused.to_string());
    }
}

fn mask(path: &Path) -> Result<(), MountError> {
    let Ok(found) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    if found.is_dir() {
        tmpfs(path, EMPTY)?;
        remount(path, MsFlags::MS_RDONLY)
    } else {
        bind(Path::new("/dev/null"), path, MsFlags::empty())
    }
}

fn freeze(path: &Path) -> Result<(), MountError> {
    if fs::symlink_metadata(path).is_err() {
        return Ok(());
    }
    bind(path, path, MsFlags::MS_REC)?;
    remount(path, MsFlags::MS_RDONLY)
}

/// Makes every mount at and below `/sys` read-only, those of control groups among them.
fn sys() -> Vec<Result<(), MountError>> {
    let table = match fs::read_to_string("/proc/self/mountinfo") {
        Ok(table) => table,
        Err(e) => return vec![Err(MountError::Sys(e))],
    };
    below(&table, Path::new("/sys"))
        .iter()
        .map(|point| remount(point, MsFlags::MS_RDONLY))
        .collect()
}

/// The mount points at and below `top` in a mount table, each once.
fn below(table: &str, top: &Path) -> Vec<PathBuf> {
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    let mut points: Vec<PathBuf> = points
        .map(|point| PathBuf::from(unescape(point)))
        .filter(|point| point.starts_with(top))
        .collect();
    points.sort();
    points.dedup();
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_below_a_directory_are_found_and_its_namesakes_are_not() {
        let table = "22 1 0:20 / /sys ro - sysfs sysfs rw\n\
                     23 22 0:21 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                     24 23 0:22 / /sys/fs/cgroup/with\\040space rw - cgroup cgroup rw\n\
                     25 23 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n\
                     26 1 0:23 / /system rw - ext4 /dev/sda rw\n\
                     27 1 0:24 / / rw - ext4 /dev/sdb rw\n";
        let found = below(table, Path::new("/sys"));
        let expected = ["/sys", "/sys/fs/cgroup", "/sys/fs/cgroup/with space"];
        assert_eq!(found, expected.map(PathBuf::from));
    }
}
