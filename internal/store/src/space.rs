//! Owns the check for free disk space before a write, and the reserve file that is removed on a
//! full disk. It does not decide which writes make room: the caller states that.
//!
//! There are two floors of free space. Below the first (`reserve_bytes`) the store refuses ordinary
//! writes: sled does not recover from a write that found no space. Writes that make room, such as
//! deletions, continue down to the second floor (`relief_floor_bytes`). If another program filled
//! the disk completely, the first write that makes room removes the reserve file, which frees
//! `reserve_file_bytes`. The store creates the file again once the disk has room for it.
//!
//! Example with the defaults: a disk with 0 bytes free. `kubectl create` is refused. `kubectl
//! delete` removes the reserve file, 16 MiB become free, and deletions may use 8 MiB of them.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::StoreError;
use crate::options::Options;

/// The reserve file's name in the store's directory.
const RESERVE_FILE: &str = "reserve";
/// The delay before a failed creation of the reserve file is retried.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// Which writes the disk has room for.
pub(crate) enum DiskRoom {
    /// Every write.
    Ample,
    /// Only writes that make room; ordinary writes fail with this error.
    Scarce(StoreError),
}

/// The disk's free space and the reserve file.
pub(crate) struct Space {
    dir: PathBuf,
    options: Options,
    /// True if the reserve file exists.
    reserved: bool,
    /// When the creation of the reserve file last failed.
    failed: Option<Instant>,
}

impl Space {
    /// Checks the disk before the store on it is opened. On a full disk it removes the reserve
    /// file, because opening the store writes too.
    ///
    /// # Errors
    /// If free space cannot be queried.
    pub(crate) fn open(dir: &Path, options: Options) -> io::Result<Space> {
        let mut space = Space {
            dir: dir.to_owned(),
            options,
            reserved: false,
            failed: None,
        };
        let there = fs::metadata(space.file());
        let wanted = space.options.reserve_file_bytes;
        space.reserved = there.is_ok_and(|file| wanted > 0 && file.len() >= wanted);
        let free = (space.options.free_bytes)(dir)?;
        if free < space.relief_floor() {
            space.give_up();
        } else {
            space.renew(free);
        }
        Ok(space)
    }

    /// Checks if a write may be made now; `makes_room` selects the floor.
    ///
    /// # Errors
    /// If the disk is too full for the write, or if free space cannot be queried.
    pub(crate) fn check(&mut self, makes_room: bool) -> Result<DiskRoom, StoreError> {
        let mut free = self.free()?;
        let reserve = self.options.reserve_bytes;
        if free >= reserve {
            self.renew(free);
            return Ok(DiskRoom::Ample);
        }
        let refusal = self.full(free, reserve);
        if !makes_room {
            return Err(refusal);
        }
        let floor = self.relief_floor();
        if free < floor && self.give_up() {
            free = self.free()?;
        }
        if free < floor {
            return Err(self.full(free, floor));
        }
        Ok(DiskRoom::Scarce(refusal))
    }

    fn file(&self) -> PathBuf {
        self.dir.join(RESERVE_FILE)
    }

    fn relief_floor(&self) -> u64 {
        self.options
            .relief_floor_bytes
            .min(self.options.reserve_bytes)
    }

    fn free(&self) -> Result<u64, StoreError> {
        (self.options.free_bytes)(&self.dir).map_err(|error| StoreError::Failed {
            reason: format!("reading the free space at {}: {error}", self.dir.display()),
        })
    }

    fn full(&self, free: u64, reserve: u64) -> StoreError {
        StoreError::NoSpace {
            free,
            reserve,
            path: self.dir.clone(),
        }
    }

    /// Removes the reserve file. Returns true if that freed space.
    fn give_up(&mut self) -> bool {
        if !self.reserved {
            return false;
        }
        match fs::remove_file(self.file()) {
            Ok(()) => {
                self.reserved = false;
                let bytes = self.options.reserve_file_bytes;
                tracing::warn!(path = %self.dir.display(), bytes, "the disk is full: the reserve file was removed, so that objects can be deleted; free some space");
                true
            }
            Err(error) => {
                tracing::error!(path = %self.file().display(), %error, "the disk is full, and the store cannot remove its reserve file");
                false
            }
        }
    }

    /// Creates the reserve file if it is missing and the disk has room for it.
    fn renew(&mut self, free: u64) {
        let wanted = self.options.reserve_file_bytes;
        let enough = free >= self.options.reserve_bytes.saturating_add(wanted);
        let soon = self.failed.is_some_and(|at| at.elapsed() < RETRY_AFTER);
        if self.reserved || wanted == 0 || !enough || soon {
            return;
        }
        match allocate(&self.file(), wanted) {
            Ok(()) => (self.reserved, self.failed) = (true, None),
            Err(error) => {
                self.failed = Some(Instant::now());
                tracing::warn!(path = %self.file().display(), %error, "the store cannot create its reserve file; on a full disk it could delete no object");
            }
        }
    }
}

/// Creates a file whose blocks are allocated now.
fn allocate(path: &Path, bytes: u64) -> io::Result<()> {
    let length = i64::try_from(bytes).map_err(io::Error::other)?;
    let made = (|| {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(path)?;
        nix::fcntl::posix_fallocate(&file, 0, length)?;
        file.sync_all()
    })();
    if made.is_err() {
        // A failed removal adds nothing to the error that is being returned.
        let _ = fs::remove_file(path);
    }
    made
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    const FILE: u64 = 4096;

    /// Settings over a disk of which `left` bytes are free, beside the reserve file.
    fn options(dir: &Path, left: &Arc<AtomicU64>) -> Options {
        let (file, left) = (dir.join(RESERVE_FILE), Arc::clone(left));
        Options {
            reserve_bytes: 1000,
            relief_floor_bytes: 100,
            reserve_file_bytes: FILE,
            free_bytes: Arc::new(move |_| {
                let held = if file.exists() { 0 } else { FILE };
                Ok(left.load(Ordering::SeqCst) + held)
            }),
            ..Options::default()
        }
    }

    #[test]
    fn each_floor_holds_at_its_edge() {
        let dir = tempfile::tempdir().unwrap();
        let left = Arc::new(AtomicU64::new(u64::MAX / 2));
        let mut options = options(dir.path(), &left);
        options.reserve_file_bytes = 0;
        let free = Arc::clone(&left);
        options.free_bytes = Arc::new(move |_| Ok(free.load(Ordering::SeqCst)));
        let mut space = Space::open(dir.path(), options).unwrap();
        for (free, ordinary, making_room) in [
            (1000, true, true),
            (999, false, true),
            (100, false, true),
            (99, false, false),
            (0, false, false),
        ] {
            left.store(free, Ordering::SeqCst);
            assert_eq!(space.check(false).is_ok(), ordinary, "{free}");
            assert_eq!(space.check(true).is_ok(), making_room, "{free}");
        }
    }

    #[test]
    fn the_reserve_file_is_given_up_for_a_write_that_makes_room_and_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(RESERVE_FILE);
        let left = Arc::new(AtomicU64::new(1 << 30));
        let mut space = Space::open(dir.path(), options(dir.path(), &left)).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().len(), FILE);
        left.store(0, Ordering::SeqCst);
        assert!(space.check(false).is_err());
        assert!(file.exists(), "an ordinary write gives nothing up");
        assert!(matches!(
            space.check(true),
            Ok(DiskRoom::Ample | DiskRoom::Scarce(_))
        ));
        assert!(!file.exists());
        left.store(1 << 30, Ordering::SeqCst);
        assert!(matches!(space.check(false), Ok(DiskRoom::Ample)));
        assert!(file.exists(), "there is room for it again");
    }

    #[test]
    fn a_disk_that_is_full_at_the_start_gets_room() {
        let dir = tempfile::tempdir().unwrap();
        let left = Arc::new(AtomicU64::new(1 << 30));
        drop(Space::open(dir.path(), options(dir.path(), &left)).unwrap());
        left.store(0, Ordering::SeqCst);
        let mut space = Space::open(dir.path(), options(dir.path(), &left)).unwrap();
        assert!(!dir.path().join(RESERVE_FILE).exists());
        assert!(space.check(true).is_ok());
    }
}
