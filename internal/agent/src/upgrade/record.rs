//! The record of an agent's binaries: the installed one, the one that an upgrade brought, and one on
//! trial. Decides which binary runs; pure but for reading and writing the file.
//!
//! The installed binary (the unit's, the image's) starts first after every reboot. It hands over to
//! the binary that an upgrade brought, unless another one was installed since: then that one counts.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::disk;
use crate::error::{AgentError, file};

const RECORD: &str = "record.json";
/// The reason if a binary on trial did not report one itself.
const ENDED: &str = "it ended before it had a session with the server; its log has the reason";

/// A binary that has no session yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    /// Its digest.
    pub sha256: String,
    /// The path of the binary before, to go back to.
    pub previous: PathBuf,
    /// How long it may take to get a session, in seconds.
    pub session_seconds: u32,
}

/// A binary that the agent went back from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedTrial {
    /// Its digest.
    pub sha256: String,
    /// Why.
    pub reason: String,
}

/// The record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BinaryRecord {
    /// The digest of the installed binary that started last.
    pub installed: String,
    /// The digest of the binary that an upgrade brought and that had a session.
    pub current: Option<String>,
    /// The digest of the one before that, which is kept.
    pub before: Option<String>,
    /// The binary on trial.
    pub trial: Option<Trial>,
    /// The last binary that failed.
    pub failed: Option<FailedTrial>,
}

/// What a binary does when it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartAction {
    /// It runs the agent.
    Run,
    /// It runs the agent on trial.
    Try(Trial),
    /// It hands over to the binary with this digest.
    HandOver(String),
}

impl BinaryRecord {
    /// Reads the record in a directory; a damaged one counts as none, and the installed binary runs.
    pub fn load(directory: &Path) -> Result<BinaryRecord, AgentError> {
        let path = directory.join(RECORD);
        match fs::read(&path) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).unwrap_or_else(|error| {
                tracing::warn!(path = %path.display(), %error, "the record of the agent's binaries is damaged; the installed binary runs");
                BinaryRecord::default()
            })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BinaryRecord::default()),
            Err(error) => Err(file("read", path)(error)),
        }
    }

    /// Writes the record; it is on disk when this returns.
    pub fn save(&self, directory: &Path) -> Result<(), AgentError> {
        let json = serde_json::to_vec_pretty(self).expect("a record is plain data and always JSON");
        disk::replace(&directory.join(RECORD), &json)
    }

    /// What the binary with this digest does now.
    pub fn start(&mut self, own: &str) -> StartAction {
        if let Some(trial) = self.trial.clone() {
            if trial.sha256 == own {
                return StartAction::Try(trial);
            }
            self.fail(ENDED);
        }
        if self.current.as_deref() == Some(own) {
            return StartAction::Run;
        }
        if self.installed == own
            && let Some(current) = self.current.clone()
        {
            return StartAction::HandOver(current);
        }
        if self.installed != own {
            // Installed since, by a package or by hand.
            self.current = None;
            self.before = None;
            own.clone_into(&mut self.installed);
        }
        StartAction::Run
    }

    /// Puts a binary on trial.
    pub fn try_out(&mut self, trial: Trial) {
        self.failed = None;
        self.trial = Some(trial);
    }

    /// The binary on trial has a session. Returns false if none is on trial.
    pub fn confirm(&mut self) -> bool {
        let Some(trial) = self.trial.take() else {
            return false;
        };
        self.failed = None;
        self.before = self.current.replace(trial.sha256);
        true
    }

    /// The binary on trial is given up; returns the path of the one before.
    pub fn fail(&mut self, reason: &str) -> Option<PathBuf> {
        let trial = self.trial.take()?;
        self.failed = Some(FailedTrial {
            sha256: trial.sha256,
            reason: reason.to_owned(),
        });
        Some(trial.previous)
    }

    /// True if a binary may be needed again.
    pub fn keeps(&self, sha256: &str) -> bool {
        let trial = self.trial.as_ref().map(|trial| &*trial.sha256);
        [self.current.as_deref(), self.before.as_deref(), trial].contains(&Some(sha256))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(sha256: &str) -> Trial {
        Trial {
            sha256: sha256.to_owned(),
            previous: "/old".into(),
            session_seconds: 90,
        }
    }

    #[test]
    fn an_upgraded_binary_is_handed_over_to_until_another_one_is_installed() {
        let mut record = BinaryRecord::default();
        assert_eq!(record.start("a"), StartAction::Run);
        record.try_out(trial("b"));
        assert_eq!(record.start("b"), StartAction::Try(trial("b")));
        assert!(record.confirm());
        assert!(!record.confirm());
        // After a reboot: the installed one, which hands over.
        let hand_over = StartAction::HandOver("b".to_owned());
        assert_eq!(record.start("a"), hand_over);
        assert_eq!(record.start("b"), StartAction::Run);
        // The next upgrade, on top of it; the one before is kept.
        record.try_out(trial("c"));
        record.confirm();
        assert_eq!(record.start("a"), StartAction::HandOver("c".to_owned()));
        assert!(record.keeps("b") && record.keeps("c") && !record.keeps("a"));
        // A package brings a newer one.
        assert_eq!(record.start("d"), StartAction::Run);
        assert_eq!(record.start("d"), StartAction::Run);
        assert!(!record.keeps("c"));
    }

    #[test]
    fn a_binary_on_trial_that_ends_or_gives_up_is_reported_and_the_one_before_runs() {
        let mut record = BinaryRecord::default();
        record.start("a");
        record.try_out(trial("b"));
        assert_eq!(
            record.fail("no session").as_deref(),
            Some(Path::new("/old"))
        );
        assert_eq!(record.start("a"), StartAction::Run);
        assert_eq!(
            record.failed.as_ref().map(|failed| &*failed.reason),
            Some("no session")
        );
        // It crashed: systemd starts the installed one.
        record.try_out(trial("b"));
        assert_eq!(record.failed, None, "tried again");
        assert_eq!(record.start("a"), StartAction::Run);
        let failed = record.failed.clone().unwrap();
        assert_eq!((&*failed.sha256, &*failed.reason), ("b", ENDED));
        // On top of an upgraded one, that one runs again.
        record.try_out(trial("b"));
        record.confirm();
        record.try_out(trial("c"));
        assert_eq!(record.start("a"), StartAction::HandOver("b".to_owned()));
        assert_eq!(record.start("b"), StartAction::Run);
    }

    #[test]
    fn the_record_reads_back_and_a_damaged_one_counts_as_none() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(
            BinaryRecord::load(dir.path()).unwrap(),
            BinaryRecord::default()
        );
        let mut record = BinaryRecord::default();
        record.start("a");
        record.try_out(trial("b"));
        record.save(dir.path()).unwrap();
        assert_eq!(BinaryRecord::load(dir.path()).unwrap(), record);
        fs::write(dir.path().join(RECORD), "{").unwrap();
        assert_eq!(
            BinaryRecord::load(dir.path()).unwrap(),
            BinaryRecord::default()
        );
    }
}
