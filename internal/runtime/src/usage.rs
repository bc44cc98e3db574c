//! Counts the disk space that a directory uses, in steps that the caller bounds, and reads the free space of its
//! file system.
//!
//! A pod changes the directory during the count, and the caller is root. So the count follows no link and enters no
//! other file system, and [`Usage::uncountable`] names directories that are too deep or too many to count. A
//! directory that is renamed between its listing and its reading is not counted: the next count tries again. Cost:
//! one system call for each entry. A file with several links counts once. Example: with a budget of 100,000 entries
//! a directory of 250,000 entries is counted in three steps. Test: `tests` below.

use std::collections::HashSet;
use std::fs::{self, File, ReadDir};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::statvfs::statvfs;

/// The most directories that wait to be read, and the most files with several links that are remembered.
pub const MAX_REMEMBERED: usize = 500_000;

/// The most bytes that the paths of waiting directories take together: a pod chooses the length of each.
const MAX_PATH_BYTES: usize = 64 << 20;

/// Bytes of a block in which the kernel counts what a file takes.
const BLOCK_BYTES: u64 = 512;

/// What is known of a directory's use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of the disk that its files and directories take.
    pub bytes: u64,
    /// Its files and directories, each of which takes an inode.
    pub files: u64,
    /// Why some of it cannot be counted.
    pub uncountable: Option<String>,
}

impl Usage {
    /// Adds what another directory takes.
    pub fn add(&mut self, other: &Usage) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.files = self.files.saturating_add(other.files);
        if self.uncountable.is_none() {
            self.uncountable.clone_from(&other.uncountable);
        }
    }
}

/// A count under way.
#[derive(Debug)]
pub struct Count {
    top: Option<File>,
    found: Usage,
    /// Directories that are to be read, from the top.
    waiting: Vec<PathBuf>,
    /// The bytes of their paths.
    path_bytes: usize,
    /// The one that is being read.
    reading: Option<(PathBuf, ReadDir)>,
    /// Files of several links that were counted.
    linked: HashSet<u64>,
}

impl Count {
    /// Begins to count a directory; one that is not there takes nothing.
    pub fn begin(top: &Path) -> Count {
        let opened = File::open(top).inspect_err(|error| skipped(top, error));
        let waiting: Vec<PathBuf> = opened.iter().map(|_| PathBuf::from(".")).collect();
        Count {
            top: opened.ok(),
            found: Usage::default(),
            path_bytes: waiting.iter().map(|path| path.as_os_str().len()).sum(),
            waiting,
            reading: None,
            linked: HashSet::new(),
        }
    }

    /// What was found so far: all of it once [`Count::go_on`] has said so.
    pub fn found(&self) -> &Usage {
        &self.found
    }

    /// Looks at so many more entries at most and takes them off the budget; true when all was counted.
    pub fn go_on(&mut self, budget: &mut u64) -> bool {
        while *budget > 0 {
            let Some((dir, entries)) = &mut self.reading else {
                *budget -= 1;
                let Some(next) = self.waiting.pop() else {
                    return true;
                };
                self.path_bytes -= next.as_os_str().len();
                self.read(next);
                continue;
            };
            let Some(entry) = entries.next() else {
                self.reading = None;
                continue;
            };
            *budget -= 1;
            let looked =
                entry.and_then(|entry| Ok((dir.join(entry.file_name()), entry.metadata()?)));
            match looked {
                Ok((path, metadata)) => self.take(path, &metadata),
                Err(error) => skipped(dir, &error),
            }
        }
        false
    }

    fn read(&mut self, dir: PathBuf) {
        let Some(top) = &self.top else { return };
        match open_beneath(top, &dir) {
            Ok(entries) => self.reading = Some((dir, entries)),
            Err(Errno::ENAMETOOLONG) => {
                self.give_up(
                    "directories are nested deeper than a path can say (4096 bytes)".into(),
                );
            }
            // Removed since, or replaced by a link or a mount, or the node's own trouble: none of it is the pod's
            // hiding what it takes, and the next count tries again.
            Err(error) => skipped(&dir, &error.into()),
        }
    }

    fn take(&mut self, path: PathBuf, metadata: &fs::Metadata) {
        if metadata.is_dir() {
            if self.waiting.len() >= MAX_REMEMBERED || self.path_bytes >= MAX_PATH_BYTES {
                self.give_up(format!(
                    "more than {MAX_REMEMBERED} directories, or {MAX_PATH_BYTES} bytes of their paths, lie side by side"
                ));
            } else {
                self.path_bytes += path.as_os_str().len();
                self.waiting.push(path);
            }
        } else if metadata.nlink() > 1
            && self.linked.len() < MAX_REMEMBERED
            && !self.linked.insert(metadata.ino())
        {
            return;
        }
        self.found.files += 1;
        let bytes = metadata.blocks().saturating_mul(BLOCK_BYTES);
        self.found.bytes = self.found.bytes.saturating_add(bytes);
    }

    fn give_up(&mut self, why: String) {
        self.found.uncountable.get_or_insert(why);
    }
}

fn skipped(dir: &Path, error: &io::Error) {
    if error.kind() != ErrorKind::NotFound {
        tracing::debug!(dir = %dir.display(), %error, "a directory was not counted");
    }
}

/// The entries of a directory below `top`.
fn open_beneath(top: &File, dir: &Path) -> Result<ReadDir, Errno> {
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
        .resolve(
            ResolveFlag::RESOLVE_BENEATH
                | ResolveFlag::RESOLVE_NO_SYMLINKS
                | ResolveFlag::RESOLVE_NO_XDEV,
        );
    let opened: OwnedFd = openat2(top, dir, how)?;
    let path = format!("/proc/self/fd/{}", opened.as_raw_fd());
    // The list is of the same directory, by a descriptor of its own.
    fs::read_dir(path).map_err(|error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))
}

/// What a file system has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Bytes in all.
    pub bytes: u64,
    /// Bytes that users other than root can still have.
    pub available: u64,
    /// Inodes in all; 0 where the file system makes them as it needs them.
    pub inodes: u64,
    /// Inodes that users other than root can still have.
    pub inodes_available: u64,
}

/// What the file system of a directory has.
pub fn room(dir: &Path) -> io::Result<Room> {
    let found = statvfs(dir)?;
    let fragment = found.fragment_size();
    Ok(Room {
        bytes: found.blocks().saturating_mul(fragment),
        available: found.blocks_available().saturating_mul(fragment),
        inodes: found.files(),
        inodes_available: found.files_available(),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn count(dir: &Path, step: u64) -> (Usage, u64) {
        let mut count = Count::begin(dir);
        let mut steps = 0;
        loop {
            steps += 1;
            let mut budget = step;
            let done = count.go_on(&mut budget);
            assert!(steps < 100_000, "it ends");
            if done {
                return (count.found().clone(), steps);
            }
        }
    }

    #[test]
    fn what_a_tree_takes_is_the_same_in_one_step_and_in_many() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        for name in ["a/b/c", "a/d", "e"] {
            let inner = tree.join(name);
            fs::create_dir_all(&inner).unwrap();
            fs::write(inner.join("file"), vec![7; 100_000]).unwrap();
        }
        let (all, steps) = count(&tree, u64::MAX);
        assert_eq!((all.files, steps), (8, 1));
        assert!(all.bytes >= 300_000 && all.bytes < 600_000, "{all:?}");
        assert_eq!(all.uncountable, None);
        let (slowly, steps) = count(&tree, 2);
        assert_eq!(slowly, all);
        assert!(steps > 4, "{steps}");
    }

    #[test]
    fn links_are_not_followed_and_a_file_of_two_names_counts_once() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, other) = (dir.path().join("tree"), dir.path().join("other"));
        for made in [&tree, &other] {
            fs::create_dir(made).unwrap();
        }
        fs::write(other.join("large"), vec![7; 1_000_000]).unwrap();
        symlink(&other, tree.join("link")).unwrap();
        symlink(other.join("large"), tree.join("file")).unwrap();
        fs::write(tree.join("one"), vec![7; 50_000]).unwrap();
        fs::hard_link(tree.join("one"), tree.join("two")).unwrap();
        let (found, _) = count(&tree, u64::MAX);
        assert_eq!(found.files, 3);
        assert!(found.bytes < 100_000, "{found:?}");
    }

    #[test]
    fn what_is_not_there_takes_nothing_and_what_is_too_deep_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let (found, _) = count(&dir.path().join("none"), 1);
        assert_eq!(found, Usage::default());
        // From the inside out: the path of the innermost is longer than the kernel takes.
        let (inner, outer) = (dir.path().join("inner"), dir.path().join("outer"));
        fs::create_dir(&inner).unwrap();
        for _ in 0..1000 {
            fs::create_dir(&outer).unwrap();
            fs::rename(&inner, outer.join("inner")).unwrap();
            fs::rename(&outer, &inner).unwrap();
        }
        let (found, _) = count(&inner, u64::MAX);
        assert!(found.uncountable.unwrap().contains("nested"));
        crate::volumes::remove_tree(&inner).unwrap();
    }

    #[test]
    fn a_file_system_has_no_more_left_than_there_is() {
        let room = room(Path::new("/")).unwrap();
        assert!(room.bytes > 0 && room.available <= room.bytes);
        assert!(room.inodes_available <= room.inodes);
    }
}
