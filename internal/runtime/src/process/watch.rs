//! Noticing changes: inotify on the containers' directories, and a sweep for shims that
//! died without a word. Owns the inotify descriptor; the table is its parent's.

use std::collections::{BTreeSet, HashMap};
use std::fs::{File, TryLockError};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

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

/// Looks at whether a killed process is gone, [`DEATH_PAUSE`] apart.
const DEATH_ROUNDS: u32 = 500;
/// Between two such looks.
const DEATH_PAUSE: Duration = Duration::from_millis(10);

/// The watched directories.
pub struct DirectoryWatcher {
    inotify: Inotify,
    watched: Mutex<HashMap<WatchDescriptor, ContainerId>>,
}

impl DirectoryWatcher {
    /// Watches nothing yet.
    pub fn new() -> Result<DirectoryWatcher, RuntimeError> {
        let told = RuntimeError::io(
            "watch (raise fs.inotify.max_user_instances)",
            Path::new("containers"),
        );
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)
            .map_err(|e| told(e.into()))?;
        Ok(DirectoryWatcher {
            inotify,
            watched: Mutex::default(),
        })
    }

    /// Watches a container's directory.
    pub fn add(&self, dir: &Path, id: &ContainerId) -> Result<(), RuntimeError> {
        let descriptor = self
            .inotify
            .add_watch(dir, AddWatchFlags::IN_MOVED_TO)
            .map_err(|e| {
                RuntimeError::io("watch (raise fs.inotify.max_user_watches)", dir)(e.into())
            })?;
        self.watched().insert(descriptor, id.clone());
        Ok(())
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
        let mut fds = [PollFd::new(self.inotify.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
        // An error is an interruption; the caller's next sweep makes up for it.
        let _ = poll(&mut fds, timeout);
        let mut changed = BTreeSet::new();
        while let Ok(events) = self.inotify.read_events() {
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
            let mut changed = shared.watcher.next(SWEEP.saturating_sub(swept.elapsed()));
            if swept.elapsed() >= SWEEP {
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
                    tracing::warn!(container = %id, "cannot read its state: {e}");
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

/// If the shim of a container is gone and left no end behind: kills what remains, writes
/// that end, and returns it. `None` if the shim lives.
pub fn give_up_if_orphaned(dir: &Path) -> Result<Option<StateFile>, RuntimeError> {
    let path = dir.join(LOCK_FILE);
    let lock = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(RuntimeError::io("open", &path))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(e)) => return Err(RuntimeError::io("lock", &path)(e)),
    }
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
            "the container was never started: the agent stopped before",
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
