//! Noticing changes: inotify on the containers' directories, and a sweep for shims that
//! died without a word. Where the kernel grants no inotify instance
//! (`fs.inotify.max_user_instances`), more frequent sweeps take its place. Owns the inotify
//! descriptor; the table is its parent's.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File, TryLockError};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::{ProcessState, lost};
use crate::cgroup::Cgroup;
use crate::error::RuntimeError;
use crate::proc;
use crate::spec::ContainerId;
use crate::state::{ContainerState, FORMAT, LOCK_FILE, STATE_FILE, StateFile, load_state, save};

/// Between two sweeps. A shim of ours that dies is noticed at once; one that an earlier
/// agent started is noticed by the sweep.
const SWEEP: Duration = Duration::from_secs(2);
/// Between two sweeps while inotify does not tell of every container. A sweep reads one
/// small file per container that has not ended.
const SWEEP_UNTOLD: Duration = Duration::from_millis(250);

/// Looks at whether a killed process is gone, [`DEATH_PAUSE`] apart.
const DEATH_ROUNDS: u32 = 500;
/// Between two such looks.
const DEATH_PAUSE: Duration = Duration::from_millis(10);

/// The watched directories.
pub struct DirectoryWatcher {
    /// None where the kernel granted none: then sweeps alone notice changes.
    inotify: Option<Inotify>,
    watched: Mutex<HashMap<WatchDescriptor, ContainerId>>,
    /// Whether a container's directory has no watch, so that only a sweep notices its changes.
    untold: AtomicBool,
}

impl DirectoryWatcher {
    /// Watches nothing yet.
    pub fn new() -> DirectoryWatcher {
        DirectoryWatcher::over(Inotify::init(
            InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK,
        ))
    }

    fn over(inotify: Result<Inotify, Errno>) -> DirectoryWatcher {
        let inotify = inotify
            .inspect_err(|error| {
                tracing::warn!(
                    "the kernel grants no inotify instance ({error}): containers' states are \
                     read every {} ms instead; raise fs.inotify.max_user_instances",
                    SWEEP_UNTOLD.as_millis()
                )
            })
            .ok();
        DirectoryWatcher {
            untold: AtomicBool::new(inotify.is_none()),
            inotify,
            watched: Mutex::default(),
        }
    }

    /// Watches a container's directory, or leaves it to the sweep if the kernel grants no
    /// more watches.
    pub fn add(&self, dir: &Path, id: &ContainerId) -> Result<(), RuntimeError> {
        let Some(inotify) = &self.inotify else {
            return Ok(());
        };
        match inotify.add_watch(dir, AddWatchFlags::IN_MOVED_TO) {
            Ok(descriptor) => {
                self.watched().insert(descriptor, id.clone());
                Ok(())
            }
            Err(Errno::ENOSPC) => {
                if !self.untold.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        "the kernel grants no more inotify watches: containers' states are \
                         read every {} ms instead; raise fs.inotify.max_user_watches",
                        SWEEP_UNTOLD.as_millis()
                    );
                }
                Ok(())
            }
            Err(error) => Err(RuntimeError::io("watch", dir)(error.into())),
        }
    }

    /// How long to wait between two sweeps.
    fn sweep_interval(&self) -> Duration {
        if self.untold.load(Ordering::Relaxed) {
            SWEEP_UNTOLD
        } else {
            SWEEP
        }
    }

    /// Forgets a container; the kernel's watch goes with the directory.
    pub fn remove(&self, id: &ContainerId) {
        self.watched().retain(|_, other| other != id);
    }

    fn watched(&self) -> std::sync::MutexGuard<'_, HashMap<WatchDescriptor, ContainerId>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The containers whose state may have changed, each once; waits at most `limit`.
    fn next(&self, limit: Duration) -> BTreeSet<ContainerId> {
        let Some(inotify) = &self.inotify else {
            std::thread::sleep(limit);
            return BTreeSet::new();
        };
        let mut fds = [PollFd::new(inotify.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
        // An error is an interruption; the caller's next sweep makes up for it.
        let _ = poll(&mut fds, timeout);
        let mut changed = BTreeSet::new();
        while let Ok(events) = inotify.read_events() {
            let watched = self.watched();
            for event in events {
                if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                    changed.extend(watched.values().cloned());
                } else if event.name.is_some_and(|name| name == STATE_FILE) {
                    changed.extend(watched.get(&event.wd).cloned());
                }
            }
        }
        changed
    }
}

/// Looks at containers as they change, until the runtime is dropped: a thread of its own,
/// because all it does is wait for the kernel and read files.
pub fn start(shared: &Arc<ProcessState>) -> Result<(), RuntimeError> {
    let weak = Arc::downgrade(shared);
    let watch = move || {
        let mut swept = Instant::now();
        while let Some(shared) = weak.upgrade() {
            let interval = shared.watcher.sweep_interval();
            let mut changed = shared
                .watcher
                .next(interval.saturating_sub(swept.elapsed()));
            if swept.elapsed() >= interval {
                swept = Instant::now();
                let table = shared.table();
                let running = table
                    .known
                    .values()
                    .filter(|entry| entry.status.exit().is_none());
                changed.extend(running.map(|entry| entry.status.id.clone()));
            }
            for id in changed {
                if let Err(e) = shared.observe(&id) {
                    tracing::warn!(container = %id, "the agent cannot read the state of a container: {e}");
                }
            }
        }
    };
    std::thread::Builder::new()
        .name("containers".into())
        .spawn(watch)
        .map(drop)
        .map_err(RuntimeError::io(
            "start a thread for",
            Path::new("containers"),
        ))
}

/// If a container has no shim and never had one, removes its directory, and returns true: it may be started again. A
/// shim that was on its way all the time finds, once it has the lock, that the lock is of a directory that is gone.
pub fn removed_unstarted(dir: &Path) -> Result<bool, RuntimeError> {
    let Some(_lock) = lock(dir)? else {
        return Ok(false);
    };
    // From here to the end of this function no shim can begin.
    if load_state(dir)?.is_some() {
        return Ok(false);
    }
    fs::remove_dir_all(dir).map_err(RuntimeError::io("remove", dir))?;
    Ok(true)
}

/// The lock that a shim holds for as long as it lives; none if one lives.
fn lock(dir: &Path) -> Result<Option<File>, RuntimeError> {
    let path = dir.join(LOCK_FILE);
    let lock = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(RuntimeError::io("open", &path))?;
    match lock.try_lock() {
        Ok(()) => Ok(Some(lock)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(e)) => Err(RuntimeError::io("lock", &path)(e)),
    }
}

/// If the shim of a container is gone and left no end behind: kills what remains, writes
/// that end, and returns it. `None` if the shim lives.
pub fn give_up_if_orphaned(dir: &Path) -> Result<Option<StateFile>, RuntimeError> {
    let Some(_lock) = lock(dir)? else {
        return Ok(None);
    };
    // From here to the end of this function no shim can begin.
    let known = load_state(dir)?;
    let (message, started_at, cgroup) = match &known {
        Some(StateFile {
            state: ContainerState::Exited(_),
            ..
        }) => return Ok(known),
        Some(file) if file.boot_id != proc::boot_id() => (
            "the machine restarted while it ran",
            started(&file.state),
            Cgroup::None,
        ),
        Some(file) => (
            "the process that supervised the container died",
            started(&file.state),
            file.cgroup.clone(),
        ),
        None => (
            "the process that was to start the container died before it did",
            None,
            Cgroup::None,
        ),
    };
    if let Some(StateFile {
        state: ContainerState::Running { process, .. },
        boot_id,
        ..
    }) = &known
        && *boot_id == proc::boot_id()
        && process.is_alive()
    {
        // It dies with its shim anyway; this reaches the rest of its group.
        let _ = killpg(Pid::from_raw(process.pid), Signal::SIGKILL);
        // Said to have ended while it still runs, it might run twice.
        for _ in 0..DEATH_ROUNDS {
            if !process.is_alive() {
                break;
            }
            std::thread::sleep(DEATH_PAUSE);
        }
    }
    cgroup.kill_all();
    cgroup.remove();
    let notes = known.map(|file| file.notes).unwrap_or_default();
    let state = StateFile {
        format: FORMAT,
        boot_id: proc::boot_id(),
        state: ContainerState::Exited(lost(message, started_at)),
        cgroup: Cgroup::None,
        notes,
    };
    save(dir, STATE_FILE, &state)?;
    Ok(Some(state))
}

fn started(state: &ContainerState) -> Option<jiff::Timestamp> {
    match state {
        ContainerState::Running { started_at, .. } => Some(*started_at),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_inotify_sweeps_are_more_frequent_and_containers_are_taken_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let id = ContainerId::new("a").unwrap();
        for refusal in [Errno::EMFILE, Errno::ENFILE] {
            let watcher = DirectoryWatcher::over(Err(refusal));
            assert_eq!(watcher.sweep_interval(), SWEEP_UNTOLD);
            watcher.add(dir.path(), &id).unwrap();
            assert!(watcher.next(Duration::from_millis(1)).is_empty());
            watcher.remove(&id);
        }
    }

    #[test]
    fn a_watched_containers_new_state_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let id = ContainerId::new("a").unwrap();
        let watcher = DirectoryWatcher::new();
        assert_eq!(watcher.sweep_interval(), SWEEP);
        watcher.add(dir.path(), &id).unwrap();
        std::fs::write(dir.path().join("new"), "").unwrap();
        std::fs::rename(dir.path().join("new"), dir.path().join(STATE_FILE)).unwrap();
        assert_eq!(watcher.next(SWEEP), BTreeSet::from([id]));
    }
}
