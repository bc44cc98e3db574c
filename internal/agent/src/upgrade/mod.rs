//! The agent's own binary: what it is, whether the server may replace it, and the change to another
//! one. The new binary is kept in the data directory and replaces this process (`exec`), so the
//! service manager sees the same process, and pods run on under their shims. A binary that gets no
//! session with the server in time goes back to the one before.

mod digest;
mod error;
mod receive;
mod record;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rpc::agent::v1::Hello;
use tokio::sync::{Semaphore, watch};

use crate::disk::private_dir;
use crate::error::{AgentError, file};
use digest::digest;
pub use error::UpgradeError;
pub(crate) use receive::Incoming;
use record::{BinaryRecord, StartAction, Trial};

/// The directory of binaries, in the agent's.
const DIRECTORY: &str = "binaries";
/// A binary's name in its directory.
const NAME: &str = "muster";
/// The running binary, also after its file was replaced.
const OWN: &str = "/proc/self/exe";
/// Directories whose files belong to the system's packages.
const PACKAGED: [&str; 2] = ["/usr/bin", "/usr/sbin"];
/// Where dpkg lists the files of the package.
const DPKG_LIST: &str = "var/lib/dpkg/info/muster.list";
/// Where rpm keeps its packages.
const RPM: [&str; 2] = ["var/lib/rpm", "usr/lib/sysimage/rpm"];

/// What the process does first.
pub enum Begin {
    /// It runs the agent.
    Run(Arc<BinaryUpgrade>),
    /// It becomes this binary.
    HandOver(PathBuf),
}

/// The agent's binary.
pub struct BinaryUpgrade {
    directory: PathBuf,
    /// The path of the running binary.
    path: PathBuf,
    /// The digest of the running binary; empty if it is not known.
    sha256: String,
    /// Why the server may not replace it; empty if it may.
    refusal: String,
    record: Mutex<BinaryRecord>,
    /// The binary runs on trial, at most so long without a session.
    trial: Option<Duration>,
    had_session: watch::Sender<bool>,
    next: watch::Sender<Option<PathBuf>>,
    receiving: Semaphore,
}

impl std::fmt::Debug for BinaryUpgrade {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BinaryUpgrade")
            .field("sha256", &self.sha256)
            .field("refusal", &self.refusal)
            .finish_non_exhaustive()
    }
}

impl BinaryUpgrade {
    /// An agent whose binary the server never replaces, for this reason.
    #[must_use]
    pub fn off(reason: &str) -> Arc<BinaryUpgrade> {
        Arc::new(BinaryUpgrade {
            directory: PathBuf::new(),
            path: PathBuf::new(),
            sha256: String::new(),
            refusal: reason.to_owned(),
            record: Mutex::default(),
            trial: None,
            had_session: watch::Sender::new(false),
            next: watch::Sender::new(None),
            receiving: Semaphore::new(1),
        })
    }

    /// Decides, before the agent's parts start, which binary runs with this data directory.
    ///
    /// # Errors
    /// If the data directory or the running binary can't be read.
    pub fn begin(data: &Path, allowed: bool) -> Result<Begin, AgentError> {
        let path = std::env::current_exe().map_err(file("find", OWN))?;
        let sha256 = digest(Path::new(OWN)).map_err(file("read", OWN))?;
        let directory = data.join(DIRECTORY);
        let mut record = BinaryRecord::load(&directory)?;
        let before = record.clone();
        let mut action = record.start(&sha256);
        if let StartAction::HandOver(next) = &action {
            let binary = directory.join(next).join(NAME);
            if allowed && binary.is_file() {
                tracing::info!(binary = %binary.display(), "the agent hands over to the binary of its last upgrade");
                return Ok(Begin::HandOver(binary));
            }
            tracing::warn!(binary = %binary.display(), "the binary of the last upgrade is gone or not permitted (--allow-upgrade); the installed one runs");
            record.current = None;
            action = StartAction::Run;
        }
        if record != before {
            private_dir(&directory)?;
            record.save(&directory)?;
        }
        sweep(&directory, &record);
        let trial = match action {
            StartAction::Try(trial) => Some(Duration::from_secs(trial.session_seconds.into())),
            _ => None,
        };
        Ok(Begin::Run(Arc::new(BinaryUpgrade {
            refusal: refusal(allowed, &path, Path::new("/")),
            directory,
            path,
            sha256,
            record: Mutex::new(record),
            trial,
            had_session: watch::Sender::new(false),
            next: watch::Sender::new(None),
            receiving: Semaphore::new(1),
        })))
    }

    /// Adds the binary to a Hello.
    pub(crate) fn describe(&self, hello: &mut Hello) {
        hello.binary_sha256.clone_from(&self.sha256);
        hello.upgrade_refusal.clone_from(&self.refusal);
        if let Some(failed) = &self.record.lock().failed {
            hello.failed_sha256.clone_from(&failed.sha256);
            hello.failed_reason.clone_from(&failed.reason);
        }
    }

    /// The agent has a session: a binary on trial is confirmed.
    pub(crate) fn has_session(&self) {
        self.had_session.send_replace(true);
        let mut record = self.record.lock();
        if !record.confirm() {
            return;
        }
        match record.save(&self.directory) {
            Ok(()) => tracing::info!(sha256 = self.sha256, "the agent's upgrade is confirmed"),
            Err(error) => {
                tracing::warn!(%error, "the confirmed upgrade was not recorded; after a restart the agent has the binary before");
            }
        }
        sweep(&self.directory, &record);
    }

    /// Returns when the agent must stop for another binary: an upgrade, or the one before a trial
    /// that got no session in time.
    pub(crate) async fn must_change(&self) {
        let mut next = self.next.subscribe();
        let overdue = async {
            let Some(limit) = self.trial else {
                return std::future::pending().await;
            };
            let mut had_session = self.had_session.subscribe();
            let confirmed = had_session.wait_for(|had| *had);
            if tokio::time::timeout(limit, confirmed).await.is_ok() {
                return std::future::pending().await;
            }
            limit
        };
        tokio::select! {
            // The sender is this object's own: there is no error.
            _ = next.wait_for(Option::is_some) => {}
            limit = overdue => {
                self.go_back(&format!("it had no session with the server within {} s", limit.as_secs()));
            }
        }
    }

    /// The agent ended with an error; returns the binary to go back to, if this one is on trial.
    pub fn failed(&self, error: &AgentError) -> Option<PathBuf> {
        if *self.had_session.borrow() {
            return None;
        }
        self.go_back(&format!("it ended with an error: {error}"));
        self.next()
    }

    /// The binary that this process becomes after the agent has stopped; none for an ordinary stop.
    #[must_use]
    pub fn next(&self) -> Option<PathBuf> {
        self.next.borrow().clone()
    }

    fn go_back(&self, reason: &str) {
        let mut record = self.record.lock();
        let Some(previous) = record.fail(reason) else {
            return;
        };
        tracing::error!(reason, previous = %previous.display(), "the agent goes back to the binary before");
        if let Err(error) = record.save(&self.directory) {
            tracing::warn!(%error, "the failed upgrade was not recorded");
        }
        self.next.send_replace(Some(previous));
    }

    /// Puts a received binary on trial and asks the agent to stop for it.
    fn change_to(&self, sha256: &str, session_seconds: u32) -> Result<(), AgentError> {
        let mut record = self.record.lock();
        let before = record.clone();
        record.try_out(Trial {
            sha256: sha256.to_owned(),
            previous: self.path.clone(),
            session_seconds,
        });
        if let Err(error) = record.save(&self.directory) {
            *record = before;
            return Err(error);
        }
        tracing::info!(
            sha256,
            "the agent starts the binary that the server offered"
        );
        self.next
            .send_replace(Some(self.directory.join(sha256).join(NAME)));
        Ok(())
    }
}

/// Removes the binaries that are not needed any more.
fn sweep(directory: &Path, record: &BinaryRecord) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let kept = name.to_str().is_some_and(|name| record.keeps(name));
        if !kept
            && entry.path().is_dir()
            && let Err(error) = fs::remove_dir_all(entry.path())
        {
            tracing::warn!(path = %entry.path().display(), %error, "an old binary could not be removed");
        }
    }
}

/// Why the server may not replace a binary; empty if it may.
fn refusal(allowed: bool, path: &Path, root: &Path) -> String {
    if !allowed {
        return "its option --allow-upgrade is false; install the new version on the node and restart the agent"
            .to_owned();
    }
    let parent = path.parent().unwrap_or(path);
    if !PACKAGED
        .iter()
        .any(|directory| Path::new(directory) == parent)
    {
        return String::new();
    }
    let listed = fs::read_to_string(root.join(DPKG_LIST));
    if listed.is_ok_and(|list| list.lines().any(|line| Path::new(line) == path)) {
        return format!(
            "{} is the deb package's; on the node run: apt-get update && apt-get install --only-upgrade muster",
            path.display()
        );
    }
    if RPM.iter().any(|directory| root.join(directory).is_dir()) {
        return format!(
            "{} is a package's; on the node run: dnf upgrade muster",
            path.display()
        );
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packages_binary_is_left_to_the_package_and_its_command_is_named() {
        let root = tempfile::tempdir().unwrap();
        let own = Path::new("/usr/bin/muster");
        assert_eq!(refusal(true, own, root.path()), "");
        assert!(refusal(false, own, root.path()).contains("--allow-upgrade"));
        let list = root.path().join(DPKG_LIST);
        fs::create_dir_all(list.parent().unwrap()).unwrap();
        fs::write(&list, "/.\n/usr/bin\n/usr/bin/muster\n").unwrap();
        assert!(refusal(true, own, root.path()).contains("apt-get"));
        for other in [
            "/opt/muster/muster",
            "/usr/local/bin/muster",
            "/usr/bin/other",
        ] {
            assert_eq!(refusal(true, Path::new(other), root.path()), "", "{other}");
        }
        fs::remove_file(&list).unwrap();
        fs::create_dir_all(root.path().join(RPM[1])).unwrap();
        assert!(refusal(true, own, root.path()).contains("dnf upgrade"));
    }

    fn running(data: &Path) -> Arc<BinaryUpgrade> {
        match BinaryUpgrade::begin(data, true).unwrap() {
            Begin::Run(upgrade) => upgrade,
            Begin::HandOver(path) => panic!("handed over to {}", path.display()),
        }
    }

    #[tokio::test]
    async fn a_binary_on_trial_goes_back_unless_it_gets_a_session() {
        let dir = tempfile::tempdir().unwrap();
        let first = running(dir.path());
        assert_eq!(first.next(), None);
        private_dir(&first.directory).unwrap();
        // This very binary on trial, so that it finds itself in the record.
        first.change_to(&first.sha256, 0).unwrap();
        assert!(first.next().unwrap().ends_with(NAME));
        first.must_change().await;
        let mut hello = Hello::default();
        let second = running(dir.path());
        assert!(second.trial.is_some());
        second.must_change().await;
        assert_eq!(second.next(), Some(first.path.clone()));
        second.describe(&mut hello);
        assert_eq!(hello.failed_sha256, first.sha256);
        assert!(
            hello.failed_reason.contains("no session"),
            "{}",
            hello.failed_reason
        );
        // Once it has a session, neither the time nor an error brings it back.
        first.change_to(&first.sha256, 0).unwrap();
        let third = running(dir.path());
        third.has_session();
        let waited = tokio::time::timeout(Duration::from_millis(50), third.must_change());
        assert!(waited.await.is_err());
        let error = AgentError::Certificate("x".to_owned());
        assert_eq!(third.failed(&error), None);
        assert_eq!(third.record.lock().current.as_deref(), Some(&*third.sha256));
    }

    #[test]
    fn an_error_before_the_first_session_goes_back() {
        let dir = tempfile::tempdir().unwrap();
        let first = running(dir.path());
        let error = AgentError::Certificate("no key".to_owned());
        assert_eq!(first.failed(&error), None, "not on trial");
        private_dir(&first.directory).unwrap();
        first.change_to(&first.sha256, 60).unwrap();
        let second = running(dir.path());
        assert_eq!(second.failed(&error), Some(first.path.clone()));
        let record = BinaryRecord::load(&first.directory).unwrap();
        assert!(record.failed.unwrap().reason.contains("no key"));
    }
}
