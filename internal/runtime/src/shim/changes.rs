//! Noticing that a client asked the shim for something: by inotify on the container's
//! directory or, where the kernel grants no instance, by looking at it at intervals. Each
//! container has a shim, and a user may hold 128 inotify instances
//! (`fs.inotify.max_user_instances`): more containers than that run as well, and a stop
//! reaches them [`LOOK_INTERVAL`] later at most.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

/// Between two looks at a directory that inotify does not watch. A look opens one file and
/// asks for the existence of another: five looks a second cost a shim less than 0.1 % of a
/// core.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Whether the container's directory may have changed since it was last looked at.
pub struct DirectoryChanges {
    source: ChangeSource,
}

enum ChangeSource {
    /// The kernel tells; `changed` holds what it told until the look.
    Notified { inotify: Inotify, changed: bool },
    /// The kernel does not tell; the next look is due at this time.
    Looked(Instant),
}

impl DirectoryChanges {
    /// Watches the directory. The first look is due at once, for what came before the watch.
    pub fn watch(dir: &Path) -> DirectoryChanges {
        DirectoryChanges::over(watched(dir))
    }

    fn over(watched: Result<Inotify, Errno>) -> DirectoryChanges {
        let source = match watched {
            Ok(inotify) => ChangeSource::Notified {
                inotify,
                changed: true,
            },
            // No client waits for an explanation here, and the agent's own watcher tells of
            // the limit in its log.
            Err(_) => ChangeSource::Looked(Instant::now()),
        };
        DirectoryChanges { source }
    }

    /// What to poll for reading; none where the kernel does not tell.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.source {
            ChangeSource::Notified { inotify, .. } => Some(inotify.as_fd()),
            ChangeSource::Looked(_) => None,
        }
    }

    /// When the next look is due without a word from the kernel.
    pub fn next_look(&self) -> Option<Instant> {
        match &self.source {
            ChangeSource::Notified { .. } => None,
            ChangeSource::Looked(at) => Some(*at),
        }
    }

    /// Takes in what the kernel has told since.
    pub fn take_in(&mut self) {
        if let ChangeSource::Notified { inotify, changed } = &mut self.source {
            while inotify.read_events().is_ok() {
                *changed = true;
            }
        }
    }

    /// Whether the directory is to be looked at now; the caller then does.
    pub fn look_is_due(&mut self) -> bool {
        match &mut self.source {
            ChangeSource::Notified { changed, .. } => std::mem::take(changed),
            ChangeSource::Looked(at) => {
                let now = Instant::now();
                let due = *at <= now;
                if due {
                    *at = now + LOOK_INTERVAL;
                }
                due
            }
        }
    }
}

fn watched(dir: &Path) -> Result<Inotify, Errno> {
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
    inotify.add_watch(dir, AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_DELETE)?;
    Ok(inotify)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watched_directory_is_looked_at_first_and_then_after_changes_alone() {
        let dir = tempfile::tempdir().unwrap();
        let mut changes = DirectoryChanges::watch(dir.path());
        assert!(changes.descriptor().is_some() && changes.next_look().is_none());
        assert!(changes.look_is_due());
        changes.take_in();
        assert!(!changes.look_is_due());
        std::fs::write(dir.path().join("new"), "").unwrap();
        std::fs::rename(dir.path().join("new"), dir.path().join("stop.json")).unwrap();
        changes.take_in();
        assert!(changes.look_is_due());
        assert!(!changes.look_is_due());
    }

    #[test]
    fn a_directory_without_a_watch_is_looked_at_at_intervals() {
        for refusal in [Errno::EMFILE, Errno::ENOSPC] {
            let begun = Instant::now();
            let mut changes = DirectoryChanges::over(Err(refusal));
            assert!(changes.descriptor().is_none());
            assert!(changes.look_is_due());
            let next = changes.next_look().unwrap();
            assert!(next >= begun + LOOK_INTERVAL);
            while !changes.look_is_due() {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(Instant::now() >= next);
        }
    }
}
