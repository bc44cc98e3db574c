//! Takes backups by the clock, and keeps the last ones. The time of the next one follows from the files that are there,
//! so that restarts of the server neither add nor skip any.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use alerting::BackupFacts;
use anyhow::{Context, Result, bail};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use store::{BackupOptions, Store};

use super::backup;
use super::layout::FileLayout;
use crate::arguments::BackupFlags;

/// The time from the start of a server without a backup to its first one.
const FIRST_AFTER: SignedDuration = SignedDuration::from_mins(10);
/// The time from a failed backup to the next attempt, unless backups are more frequent.
const RETRY_AFTER: SignedDuration = SignedDuration::from_mins(15);
/// The longest sleep: the clock may be set meanwhile.
const SLEEP_MAX: Duration = Duration::from_secs(60);
/// The bytes that must stay free beside a backup, so that the server goes on writing.
const SPARE_BYTES: u64 = 256 * 1024 * 1024;
/// The form of a file's name: the time of the backup in UTC.
const NAME: &str = "muster-%Y-%m-%dT%H%M%SZ.backup";
/// The end of the name of a file that is not complete.
const PARTIAL: &str = ".partial";

/// When the last backup was taken, for the alerts.
pub type SharedBackupFacts = Arc<Mutex<Option<BackupFacts>>>;

/// The backups of one server.
pub struct ScheduledBackups {
    directory: PathBuf,
    /// The server's keys and settings, which are part of a backup.
    server: PathBuf,
    every: SignedDuration,
    keep: usize,
    passphrase: Option<String>,
    store: Store,
    facts: SharedBackupFacts,
}

impl ScheduledBackups {
    /// Makes the directory. `None`: the options say that the server takes no backups.
    ///
    /// # Errors
    /// The directory cannot be made, or the passphrase cannot be read.
    pub fn open(
        layout: &FileLayout,
        flags: &BackupFlags,
        store: &Store,
    ) -> Result<Option<ScheduledBackups>> {
        if flags.backup_keep == 0 {
            return Ok(None);
        }
        let directory = flags.backup_dir.clone();
        let directory = std::path::absolute(directory.unwrap_or_else(|| layout.backups()))?;
        make_private(&directory).with_context(|| {
            format!(
                "--backup-dir: the directory {} cannot be created; choose one that this user may write",
                directory.display()
            )
        })?;
        let passphrase = flags.backup_passphrase_file.as_deref();
        let passphrase = passphrase.map(|file| cli::passphrase("--backup-passphrase-file", file));
        let backups = ScheduledBackups {
            directory,
            server: layout.server(),
            every: flags.backup_every,
            keep: flags.backup_keep,
            passphrase: passphrase.transpose()?,
            store: store.clone(),
            facts: SharedBackupFacts::default(),
        };
        backups.note(Timestamp::now(), None);
        Ok(Some(backups))
    }

    /// What the alerts judge.
    pub fn facts(&self) -> SharedBackupFacts {
        self.facts.clone()
    }

    /// Takes backups until it is dropped.
    pub async fn run(self) {
        let this = Arc::new(self);
        let begun = Timestamp::now();
        let mut not_before = begun;
        loop {
            let now = Timestamp::now();
            let due = this.due(begun, now).max(not_before);
            if now < due {
                let left = Duration::try_from(due.duration_since(now)).unwrap_or_default();
                tokio::time::sleep(left.min(SLEEP_MAX)).await;
                continue;
            }
            let taking = this.clone();
            let taken = tokio::task::spawn_blocking(move || taking.take(now)).await;
            let failure = match taken {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(format!("{error:#}")),
                Err(error) => Some(error.to_string()),
            };
            if let Some(failure) = &failure {
                tracing::error!(
                    directory = %this.directory.display(), failure,
                    "the server could not take its backup; it tries again"
                );
                not_before = later(now, RETRY_AFTER.min(this.every));
            }
            this.note(begun, failure);
        }
    }

    /// Records for the alerts what is there, and why the last attempt failed.
    fn note(&self, begun: Timestamp, failure: Option<String>) {
        let last = self.newest();
        let mut facts = self.facts.lock();
        let begun = facts.as_ref().map_or(begun, |facts| facts.begun);
        *facts = Some(BackupFacts {
            directory: self.directory.display().to_string(),
            last,
            begun,
            every: self.every,
            failure,
        });
    }

    fn newest(&self) -> Option<Timestamp> {
        let all = taken(&self.directory).unwrap_or_default();
        all.last().map(|(time, _)| *time)
    }

    /// When the next backup is due. A backup from the future was named by a clock that was wrong, and counts as taken
    /// now.
    fn due(&self, begun: Timestamp, now: Timestamp) -> Timestamp {
        match self.newest() {
            Some(last) if last <= now => later(last, self.every),
            Some(_) => later(now, self.every),
            None => later(begun, FIRST_AFTER.min(self.every)),
        }
    }

    /// Takes a backup and removes the oldest ones.
    fn take(&self, now: Timestamp) -> Result<()> {
        make_private(&self.directory)?;
        remove_partial(&self.directory)?;
        self.check_space()?;
        let path = self.directory.join(now.strftime(NAME).to_string());
        let options = BackupOptions {
            files: backup::files(&self.server)?,
            passphrase: self.passphrase.clone(),
        };
        let summary = self.store.backup(&path, &options)?;
        tracing::info!(
            file = %path.display(), objects = summary.objects, revision = %summary.revision,
            "the server took a backup"
        );
        let all = taken(&self.directory)?;
        let surplus = all.len().saturating_sub(self.keep);
        for (_, old) in &all[..surplus] {
            fs::remove_file(old).with_context(|| old.display().to_string())?;
        }
        Ok(())
    }

    /// Refuses to fill the disk: a backup is about as large as the last one or, without one, as the store.
    fn check_space(&self) -> Result<()> {
        let last = taken(&self.directory)?.pop();
        let size = match last {
            Some((_, path)) => fs::metadata(path)?.len(),
            None => {
                let all = self.store.list("", None, usize::MAX).entries;
                all.iter().fold(0_u64, |sum, entry| {
                    let bytes = entry.key.len().saturating_add(entry.value.len());
                    sum.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX))
                })
            }
        };
        let needed = size.saturating_add(SPARE_BYTES);
        let free = durable::disk_space(&self.directory)?.available;
        if free < needed {
            bail!(
                "{} has {} MiB free, and a backup needs {} MiB with what must stay free; free space there, keep fewer \
                 (--backup-keep), or choose another disk (--backup-dir)",
                self.directory.display(),
                free >> 20,
                needed >> 20
            );
        }
        Ok(())
    }
}

fn later(time: Timestamp, span: SignedDuration) -> Timestamp {
    time.checked_add(span).unwrap_or(Timestamp::MAX)
}

/// Makes a directory that only its owner may enter; one that is there keeps its mode.
fn make_private(directory: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
}

/// The time in a file's name; `None` for a file that this module did not name.
fn time_of(name: &str) -> Option<Timestamp> {
    let time = DateTime::strptime(NAME, name).ok()?;
    let time = time.to_zoned(TimeZone::UTC).ok()?.timestamp();
    // `muster-2026-1-2T…` is not such a name.
    (time.strftime(NAME).to_string() == name).then_some(time)
}

/// The files with a backup, the oldest first.
fn taken(directory: &Path) -> io::Result<Vec<(Timestamp, PathBuf)>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if let Some(time) = entry.file_name().to_str().and_then(time_of) {
            all.push((time, entry.path()));
        }
    }
    all.sort_unstable();
    Ok(all)
}

/// Removes what a killed server left half written.
fn remove_partial(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let whole = name.to_str().and_then(|name| name.strip_suffix(PARTIAL));
        if whole.and_then(time_of).is_some() {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn only_names_that_the_server_gave_are_its_backups() {
        let table = [
            (
                "muster-2026-11-27T204500Z.backup",
                Some("2026-11-27T20:45:00Z"),
            ),
            ("muster-2026-11-27T204500Z.backup.partial", None),
            ("muster-2026-11-27.backup", None),
            ("muster-2026-1-2T204500Z.backup", None),
            ("before-the-move.backup", None),
        ];
        for (name, want) in table {
            assert_eq!(time_of(name), want.map(at), "{name}");
        }
    }

    fn backups(directory: &Path, keep: usize) -> ScheduledBackups {
        let store = Store::open(&directory.join("store"), store::Options::default()).unwrap();
        let server = directory.join("server");
        fs::create_dir_all(&server).unwrap();
        fs::write(server.join("ca.key"), "key").unwrap();
        let target = directory.join("backups");
        make_private(&target).unwrap();
        ScheduledBackups {
            directory: target,
            server,
            every: SignedDuration::from_hours(24),
            keep,
            passphrase: None,
            store,
            facts: SharedBackupFacts::default(),
        }
    }

    #[test]
    fn the_newest_backups_are_kept_and_foreign_files_stay() {
        let dir = tempfile::tempdir().unwrap();
        let backups = backups(dir.path(), 2);
        let target = dir.path().join("backups");
        fs::write(target.join("mine.backup"), "kept").unwrap();
        fs::write(
            target.join("muster-2026-11-01T000000Z.backup.partial"),
            "half",
        )
        .unwrap();
        for day in 1..=4 {
            backups
                .take(at(&format!("2026-11-0{day}T00:00:00Z")))
                .unwrap();
        }
        let mut names: Vec<String> = fs::read_dir(&target)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(
            names,
            [
                "mine.backup",
                "muster-2026-11-03T000000Z.backup",
                "muster-2026-11-04T000000Z.backup"
            ]
        );
        let opened = store::Backup::open(&target.join(&names[2]), None).unwrap();
        assert_eq!(opened.files().len(), 1);
    }

    #[test]
    fn the_next_backup_is_due_by_the_files_and_not_by_the_start() {
        let dir = tempfile::tempdir().unwrap();
        let backups = backups(dir.path(), 2);
        let begun = at("2026-11-04T12:00:00Z");
        assert_eq!(backups.due(begun, begun), at("2026-11-04T12:10:00Z"));
        backups.take(at("2026-11-04T00:00:00Z")).unwrap();
        assert_eq!(backups.due(begun, begun), at("2026-11-05T00:00:00Z"));
        let earlier = at("2026-11-01T00:00:00Z");
        assert_eq!(backups.due(begun, earlier), at("2026-11-02T00:00:00Z"));
        backups.note(begun, None);
        let facts = backups.facts();
        let last = facts.lock().as_ref().unwrap().last;
        assert_eq!(last, Some(at("2026-11-04T00:00:00Z")));
    }
}
