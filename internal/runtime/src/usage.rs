//! Counts the disk space that a directory uses, in steps that the caller bounds.
//!
//! A pod changes the directory during the count, and the caller is root. So the count follows no link and enters no
//! other file system, and [`DirectoryUsage::uncountable`] names directories that are too deep or too many to count. The count
//! remembers the inode of each listed directory and compares it when the directory is opened. An entry that was
//! listed and is gone, or is another one, when the count reaches it adds its inode to [`DirectoryUsage::lost`]: it was
//! removed, or renamed to hide what it takes, and one count cannot know which; several counts that lose the same inode
//! can. An entry that moves from a directory that is not read yet into one that was read is missed and not noticed; the
//! next count finds it unless it moves again. Cost: one system call for each entry. A file with several links counts
//! once. Example: with a budget of 100,000 entries a directory of 250,000 entries is counted in three steps. Test:
//! `tests` below.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File, ReadDir};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

/// The most directories that wait to be read, and the most files with several links that are remembered.
pub const MAX_REMEMBERED: usize = 500_000;

/// The most bytes that the paths of waiting directories take together: a pod chooses the length of each.
const MAX_PATH_BYTES: usize = 64 << 20;

/// The most lost entries that are remembered; more than the kernel lists at once.
pub const MAX_LOST: usize = 2_000;

/// Stands for the lost entries beyond [`MAX_LOST`]; no entry has this inode.
pub const MORE_LOST: u64 = 0;

/// Bytes of a block in which the kernel counts what a file takes.
const BLOCK_BYTES: u64 = 512;

/// What is known of a directory's use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirectoryUsage {
    /// Bytes of the disk that its files and directories take.
    pub bytes: u64,
    /// Its files and directories, each of which takes an inode.
    pub files: u64,
    /// Why some of it cannot be counted.
    pub uncountable: Option<String>,
    /// Entries that were listed, and were removed, renamed or replaced before they were counted: their inodes, and when
    /// each was created if that is known. The use is then a lower bound. At most [`MAX_LOST`], and [`MORE_LOST`].
    pub lost: BTreeMap<u64, Option<SystemTime>>,
}

impl DirectoryUsage {
    /// Adds what another directory takes.
    pub fn add(&mut self, other: &DirectoryUsage) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.files = self.files.saturating_add(other.files);
        for (inode, created) in &other.lost {
            self.lose(*inode, *created);
        }
        if self.uncountable.is_none() {
            self.uncountable.clone_from(&other.uncountable);
        }
    }

    /// Records a lost entry.
    fn lose(&mut self, inode: u64, created: Option<SystemTime>) {
        match self.lost.len() < MAX_LOST {
            true => self.lost.insert(inode, created),
            false => self.lost.insert(MORE_LOST, None),
        };
    }
}

/// A directory that was listed and is to be read.
#[derive(Debug)]
struct Listed {
    /// Its path from the top.
    path: PathBuf,
    /// Its device and inode; none for the top itself.
    identity: Option<(u64, u64)>,
    /// When it was created, if the file system knows.
    created: Option<SystemTime>,
}

impl Listed {
    fn path_bytes(&self) -> usize {
        self.path.as_os_str().len()
    }
}

/// A count under way.
#[derive(Debug)]
pub struct DiskCount {
    top: Option<File>,
    found: DirectoryUsage,
    /// Directories that are to be read.
    waiting: Vec<Listed>,
    /// The bytes of their paths.
    path_bytes: usize,
    /// The one that is being read.
    reading: Option<(PathBuf, ReadDir)>,
    /// Files of several links that were counted.
    linked: HashSet<u64>,
}

impl DiskCount {
    /// Begins to count a directory; one that is not there takes nothing.
    pub fn begin(top: &Path) -> DiskCount {
        let opened = File::open(top).inspect_err(|error| skipped(top, error));
        let first = |_: &File| Listed {
            path: PathBuf::from("."),
            identity: None,
            created: None,
        };
        let waiting: Vec<Listed> = opened.iter().map(first).collect();
        DiskCount {
            top: opened.ok(),
            found: DirectoryUsage::default(),
            path_bytes: waiting.iter().map(Listed::path_bytes).sum(),
            waiting,
            reading: None,
            linked: HashSet::new(),
        }
    }

    /// What was found so far: all of it once [`DiskCount::go_on`] has said so.
    pub fn found(&self) -> &DirectoryUsage {
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
                self.path_bytes -= next.path_bytes();
                self.read(next);
                continue;
            };
            let Some(entry) = entries.next() else {
                self.reading = None;
                continue;
            };
            *budget -= 1;
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    skipped(dir, &error);
                    continue;
                }
            };
            match entry.metadata() {
                Ok(metadata) => {
                    let path = dir.join(entry.file_name());
                    self.take(path, &metadata);
                }
                Err(error) => {
                    if error.kind() == ErrorKind::NotFound {
                        self.found.lose(entry.ino(), None);
                    }
                    skipped(dir, &error);
                }
            }
        }
        false
    }

    fn read(&mut self, listed: Listed) {
        let Some(top) = &self.top else { return };
        let Listed {
            path: dir,
            identity,
            created,
        } = listed;
        let inode = identity.map_or(MORE_LOST, |(_, inode)| inode);
        match open_beneath(top, &dir, identity) {
            Ok(Some(entries)) => self.reading = Some((dir, entries)),
            Ok(None) => self.found.lose(inode, created),
            Err(Errno::ENAMETOOLONG) => {
                self.give_up(
                    "directories are nested deeper than a path can be long (4096 bytes)".into(),
                );
            }
            // Removed, renamed, replaced by a file or a link, or closed to an agent that is not root.
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EACCES) => {
                self.found.lose(inode, created);
            }
            // A mount, or the node's own trouble: pods can cause neither, and the next count tries again.
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
                let listed = Listed {
                    path,
                    identity: Some((metadata.dev(), metadata.ino())),
                    created: metadata.created().ok(),
                };
                self.path_bytes += listed.path_bytes();
                self.waiting.push(listed);
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

/// The entries of a directory below `top`; none if it is another directory than the one that was listed.
fn open_beneath(
    top: &File,
    dir: &Path,
    identity: Option<(u64, u64)>,
) -> Result<Option<ReadDir>, Errno> {
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
        .resolve(
            ResolveFlag::RESOLVE_BENEATH
                | ResolveFlag::RESOLVE_NO_SYMLINKS
                | ResolveFlag::RESOLVE_NO_XDEV,
        );
    let opened = File::from(openat2(top, dir, how)?);
    let metadata = opened.metadata().map_err(errno)?;
    if identity.is_some_and(|identity| identity != (metadata.dev(), metadata.ino())) {
        return Ok(None);
    }
    let path = format!("/proc/self/fd/{}", opened.as_raw_fd());
    // The list is of the same directory, by a descriptor of its own.
    fs::read_dir(path).map(Some).map_err(errno)
}

fn errno(error: io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn count(dir: &Path, step: u64) -> (DirectoryUsage, u64) {
        let mut count = DiskCount::begin(dir);
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
        assert_eq!(found, DirectoryUsage::default());
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

    /// Counts a tree that has two directories at its top, and changes it when both are listed and neither is read.
    fn count_while(dir: &Path, change: fn(&Path)) -> DirectoryUsage {
        let mut count = DiskCount::begin(dir);
        while count.found.files < 2 {
            assert!(!count.go_on(&mut 1), "two directories are listed first");
        }
        // The end of the top's list: whether it would show what is renamed now depends on the file system.
        count.reading = None;
        change(dir);
        assert!(count.go_on(&mut 1000));
        count.found().clone()
    }

    #[test]
    fn a_directory_that_changes_its_name_or_place_during_the_count_is_lost_and_not_empty() {
        type Change = fn(&Path);
        let cases: [(&str, Change, usize); 6] = [
            ("nothing", |_| {}, 0),
            (
                "renamed",
                |tree| fs::rename(tree.join("a"), tree.join("c")).unwrap(),
                1,
            ),
            (
                "exchanged",
                |tree| {
                    fs::rename(tree.join("a"), tree.join("c")).unwrap();
                    fs::rename(tree.join("b"), tree.join("a")).unwrap();
                    fs::rename(tree.join("c"), tree.join("b")).unwrap();
                },
                2,
            ),
            (
                "replaced by a link",
                |tree| {
                    fs::rename(tree.join("a"), tree.join("c")).unwrap();
                    symlink("c", tree.join("a")).unwrap();
                },
                1,
            ),
            (
                "replaced by a file",
                |tree| {
                    fs::rename(tree.join("a"), tree.join("c")).unwrap();
                    fs::write(tree.join("a"), "").unwrap();
                },
                1,
            ),
            (
                "removed",
                |tree| fs::remove_dir_all(tree.join("a")).unwrap(),
                1,
            ),
        ];
        for (name, change, lost) in cases {
            let dir = tempfile::tempdir().unwrap();
            for inner in ["a", "b"] {
                fs::create_dir(dir.path().join(inner)).unwrap();
                fs::write(dir.path().join(inner).join("file"), "x").unwrap();
            }
            let inode = |inner: &str| fs::metadata(dir.path().join(inner)).unwrap().ino();
            let inodes = [inode("a"), inode("b")];
            let found = count_while(dir.path(), change);
            assert_eq!(found.lost.len(), lost, "{name}");
            assert!(
                found.lost.keys().all(|lost| inodes.contains(lost)),
                "{name}"
            );
            // The directories themselves were counted when they were listed.
            assert_eq!(found.files, 4 - lost as u64, "{name}");
            let (again, _) = count(dir.path(), u64::MAX);
            assert_eq!(again.lost, BTreeMap::new(), "{name}");
        }
    }

    #[test]
    fn a_file_that_is_removed_after_it_was_listed_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "b"] {
            fs::write(dir.path().join(name), "x").unwrap();
        }
        let mut count = DiskCount::begin(dir.path());
        // The list is read at once, and one of its files is counted.
        while count.found.files < 1 {
            assert!(!count.go_on(&mut 1));
        }
        for name in ["a", "b"] {
            fs::remove_file(dir.path().join(name)).unwrap();
        }
        assert!(count.go_on(&mut 1000));
        assert_eq!((count.found.files, count.found.lost.len()), (1, 1));
    }

    #[test]
    fn a_bounded_number_of_lost_entries_is_remembered() {
        let mut found = DirectoryUsage::default();
        for inode in 1..=MAX_LOST as u64 {
            found.lose(inode, None);
        }
        assert!(!found.lost.contains_key(&MORE_LOST));
        let mut all = found.clone();
        found.lose(1_000_000, None);
        assert!(found.lost.contains_key(&MORE_LOST));
        all.add(&found);
        assert_eq!(all, found);
        assert_eq!(all.lost.len(), MAX_LOST + 1);
    }
}
