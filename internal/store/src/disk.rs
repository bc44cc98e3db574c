//! Owns the disk: sled, and the one write that a group of commits becomes. `load` judges the records
//! that are read, `version` the store's format. Only this file and `ledger` use sled. The module keeps
//! no objects in memory.
//!
//! Tests cannot intercept sled's own writes. The store assumes three properties of sled: when
//! `flush` returns, it has handed a whole batch to the kernel (this module then syncs the file); a
//! log cut at any byte is recovered as a prefix of the batches; damage within the log is reported
//! as an error and not as a value. The kill test and `tests/damage.rs` check the last two. The
//! revision, the number of objects and the digest reveal a remaining loss, and the store then
//! refuses to open.
//!
//! `layout` has the records' keys.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::codec::{self, StoreState};
use crate::entry::{Entry, Event, Revision};
use crate::error::{OpenError, StoreError, damaged, io_error};
use crate::layout::{STATE, history_key, object_key, part_count, parts};
use crate::load::{DamageEffect, HistoryRecord, LoadOutcome, Loading, Repair};
use crate::memory::{Loaded, ObjectChanges, Objects};
use crate::options::Options;
use crate::quarantine::{self, Quarantined};
use crate::space::{DiskRoom, Space};
use crate::version::{self, FormatVerdict, Formats, StoreVersion};

const LOCK_FILE: &str = "lock";
const ACKNOWLEDGED_FILE: &str = "acknowledged";
const SLED_DIR: &str = "sled";

const SEGMENT_BYTES: usize = 2 << 20;
/// How often sled reclaims overwritten space. Commits do not wait for it: they flush explicitly.
const RECLAIM_EVERY_MS: u64 = 500;

/// How often, and at which interval, the store retries to take sled's lock.
const SLED_LOCK_TRIES: u32 = 200;
const SLED_LOCK_WAIT: Duration = Duration::from_millis(10);

/// The open store on disk. Its process holds a lock on the store.
pub(crate) struct DiskStore {
    dir: PathBuf,
    sled: sled::Db,
    /// sled's own file. sled asks the kernel to write its pages, but that covers neither the file's
    /// length nor the drive's cache.
    data: File,
    /// The last acknowledged revision, written after the flush. If sled recovers an earlier
    /// revision, the end of its log was damaged.
    acknowledged: File,
    history: VecDeque<HistoryRecord>,
    space: Space,
    _lock: File,
}

/// sled with its files, and the pairs that were read, before they are interpreted.
struct OpenedDisk {
    sled: sled::Db,
    data: File,
    acknowledged: File,
    space: Space,
    lock: File,
    outcome: LoadOutcome,
    found: Option<StoreVersion>,
}

/// The version of the store in a directory, if there is one that this binary may open.
fn check_version(dir: &Path, formats: &Formats) -> Result<Option<StoreVersion>, OpenError> {
    let Some(found) = version::read(dir)? else {
        if dir.join(SLED_DIR).exists() {
            let what = "its `format` file is missing, as after a restore that did not finish";
            return Err(damaged(dir, what));
        }
        return Ok(None);
    };
    match formats.judge(&found) {
        FormatVerdict::Opens => Ok(Some(found)),
        FormatVerdict::TooNew => Err(OpenError::NewerFormat {
            path: dir.to_owned(),
            found: found.readable_from,
            known: formats.newest,
            written_by: found.written_by,
        }),
        FormatVerdict::TooOld { oldest } => Err(OpenError::OlderFormat {
            path: dir.to_owned(),
            found: found.readable_from,
            oldest,
        }),
    }
}

fn lock(dir: &Path) -> Result<File, OpenError> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(dir.join(LOCK_FILE))
        .map_err(io_error(dir))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::Held {
            path: dir.to_owned(),
        }),
        Err(TryLockError::Error(error)) => Err(io_error(dir)(error)),
    }
}

/// sled panics on some kinds of damage; this function turns each panic into an error.
pub(crate) fn guarded<T>(work: impl FnOnce() -> sled::Result<T>) -> Result<T, sled::Error> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        Err(sled::Error::ReportableBug(format!(
            "the disk engine panicked: {}",
            panic_text(&*panic)
        )))
    })
}

/// Opens sled. This process holds the store's lock; if sled's own lock is still taken, an earlier
/// handle of this process is about to release it.
pub(crate) fn open_sled(config: &sled::Config) -> Result<sled::Db, sled::Error> {
    let mut tries = 0;
    loop {
        match guarded(|| config.open()) {
            Err(sled::Error::Io(error))
                if tries < SLED_LOCK_TRIES && error.to_string().contains("acquire lock") =>
            {
                tries += 1;
                std::thread::sleep(SLED_LOCK_WAIT);
            }
            other => return other,
        }
    }
}

/// The message of a panic.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}

fn open_error(dir: &Path, error: sled::Error) -> OpenError {
    match error {
        // sled reads its files to their end: these kinds report damaged content and not a failed
        // read.
        sled::Error::Io(error)
            if matches!(
                error.kind(),
                io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
            ) =>
        {
            damaged(dir, error.to_string())
        }
        sled::Error::Io(source) => io_error(dir)(source),
        other => damaged(dir, other.to_string()),
    }
}

impl DiskStore {
    /// Opens the store, or creates it. If `finish` is false, the caller writes the `format` file
    /// once the store is complete.
    pub(crate) fn open(
        dir: &Path,
        options: Options,
        finish: bool,
    ) -> Result<(DiskStore, Loaded), OpenError> {
        let OpenedDisk {
            sled,
            data,
            acknowledged,
            space,
            lock,
            outcome,
            found,
        } = open_files(dir, options, finish)?;
        let LoadOutcome {
            objects,
            events,
            history,
            state,
            repair,
        } = outcome;
        apply(dir, &sled, &data, &state, &repair)?;
        let mut held = quarantine::held(dir).map_err(io_error(dir))?;
        // The server may have ended between a write under a quarantined key and the key's release.
        for record in held.extract_if(.., |record| objects.contains_key(record.key.as_str())) {
            quarantine::release(&record.file).map_err(io_error(dir))?;
        }
        let disk = DiskStore {
            dir: dir.to_owned(),
            sled,
            data,
            acknowledged,
            history,
            space,
            _lock: lock,
        };
        let loaded = Loaded {
            objects,
            events,
            state,
            held,
            found,
        };
        Ok((disk, loaded))
    }

    /// Reads a store and reports damage, without changing a record.
    pub(crate) fn check(dir: &Path, options: Options) -> Result<LoadOutcome, OpenError> {
        if !version::exists(dir) && !dir.join(SLED_DIR).exists() {
            return Err(OpenError::Missing {
                path: dir.to_owned(),
            });
        }
        open_files(dir, options, true).map(|opened| opened.outcome)
    }

    /// Checks if an ordinary write may be made now; see [`DiskStore::room`].
    pub(crate) fn check_space(&mut self) -> Result<(), StoreError> {
        self.room(false).map(drop)
    }

    /// Which writes the disk has room for. Fails if the disk is too full for any write: sled does
    /// not recover from a write that found no space.
    pub(crate) fn room(&mut self, makes_room: bool) -> Result<DiskRoom, StoreError> {
        self.space.check(makes_room)
    }

    /// Writes a group of commits as one batch and returns once it is on the disk. `base` is the
    /// state before the group, `compacted` the last revision that the history has dropped.
    pub(crate) fn write(
        &mut self,
        base: &Objects,
        changes: &ObjectChanges,
        events: &[Event],
        compacted: Revision,
        mut state: StoreState,
    ) -> Result<(), StoreError> {
        let mut batch = sled::Batch::default();
        for (key, change) in changes {
            let old_parts = base.get(key).map_or(0, |entry| entry.parts);
            let new_parts = change.as_ref().map_or(0, |entry| entry.parts);
            if let Some(entry) = change {
                put_object(&mut batch, entry);
            }
            for part in new_parts..old_parts {
                batch.remove(object_key(key, part));
            }
        }
        while let Some(oldest) = self.history.front()
            && oldest.last <= compacted
        {
            for part in 0..oldest.parts {
                batch.remove(history_key(oldest.first, part));
            }
            self.history.pop_front();
        }
        if let (Some(first), Some(last)) = (events.first(), events.last()) {
            let record = codec::history(events);
            for (part, bytes) in parts(&record) {
                batch.insert(history_key(first.revision(), part), bytes);
            }
            self.history.push_back(HistoryRecord {
                first: first.revision(),
                last: last.revision(),
                parts: part_count(record.len()),
            });
        }
        state.history_from = self
            .history
            .front()
            .map_or_else(|| state.revision.next(), |oldest| oldest.first);
        batch.insert(STATE, codec::state(&state));
        guarded(|| {
            self.sled.apply_batch(batch)?;
            self.sled.flush()?;
            Ok(())
        })
        .map_err(|error| failed(&error))?;
        self.data.sync_data().map_err(|error| failed(&error))?;
        self.acknowledged
            .write_all_at(&acknowledged_bytes(state.revision), 0)
            .map_err(|error| failed(&error))
    }

    /// Marks the store as complete, with its version; see [`DiskStore::open`].
    pub(crate) fn finish(&self, version: &StoreVersion) -> Result<(), durable::Error> {
        version::write(&self.dir, version)
    }
}

/// Removes the temporary files of a killed server. If that fails, the store opens nevertheless.
fn sweep(dir: &Path) {
    for directory in [dir.to_owned(), dir.join(quarantine::DIRECTORY)] {
        if let Err(error) = durable::sweep(&directory) {
            tracing::warn!(%error, "temporary files of an earlier server are left in the store's directory");
        }
    }
}

/// Opens sled and reads everything.
fn open_files(dir: &Path, options: Options, finish: bool) -> Result<OpenedDisk, OpenError> {
    private_directory(dir).map_err(io_error(dir))?;
    let lock = lock(dir)?;
    sweep(dir);
    let formats = options.formats;
    let found = check_version(dir, &formats)?;
    let existed = found.is_some();
    let cache_bytes = options.cache_bytes;
    let space = Space::open(dir, options).map_err(io_error(dir))?;
    if !existed && finish {
        version::write(dir, &formats.of_new_store())
            .map_err(|error| io_error(dir)(error.into()))?;
    }
    let sled_dir = dir.join(SLED_DIR);
    private_directory(&sled_dir).map_err(io_error(dir))?;
    let config = sled::Config::new()
        .path(&sled_dir)
        .segment_size(SEGMENT_BYTES)
        .cache_capacity(cache_bytes)
        .flush_every_ms(Some(RECLAIM_EVERY_MS));
    let sled = open_sled(&config).map_err(|error| open_error(dir, error))?;
    let data = File::open(sled_dir.join("db")).map_err(io_error(dir))?;
    if !existed {
        let names = || -> io::Result<()> {
            File::open(sled_dir.join("conf"))?.sync_all()?;
            durable::sync_directory(&sled_dir)?;
            durable::sync_directory(dir)?;
            Ok(())
        };
        names().map_err(io_error(dir))?;
    }
    let acknowledged = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(0o600)
        .open(dir.join(ACKNOWLEDGED_FILE))
        .map_err(io_error(dir))?;
    let outcome = read_all(dir, &sled, read_acknowledged(&acknowledged))?;
    Ok(OpenedDisk {
        sled,
        data,
        acknowledged,
        space,
        lock,
        outcome,
        found,
    })
}

/// Creates a directory that only its owner may enter, and corrects the permissions of an existing
/// one: the store contains every Secret.
pub(crate) fn private_directory(dir: &Path) -> io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)?;
    if fs::metadata(dir)?.permissions().mode() & 0o077 != 0 {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

fn read_all(dir: &Path, sled: &sled::Db, acknowledged: Revision) -> Result<LoadOutcome, OpenError> {
    let mut loading = Loading::default();
    let mut pairs = sled.iter();
    // `guarded` encloses each step of sled, so that errors found by `load` are not attributed to
    // sled.
    while let Some((key, bytes)) =
        guarded(|| pairs.next().transpose()).map_err(|error| open_error(dir, error))?
    {
        loading
            .pair(&key, &bytes)
            .map_err(|damage| damaged(dir, damage.to_string()))?;
    }
    loading
        .finish(acknowledged)
        .map_err(|damage| damaged(dir, damage.to_string()))
}

/// Logs the damage, moves lost records into the quarantine, and writes the repaired state. If the
/// process ends in between, the damaged records are still in place, and the next start finds them
/// again.
fn apply(
    dir: &Path,
    sled: &sled::Db,
    data: &File,
    state: &StoreState,
    repair: &Repair,
) -> Result<(), OpenError> {
    if repair.findings.is_empty() {
        return Ok(());
    }
    let kept = quarantine::held(dir).map_err(io_error(dir))?;
    // A start that ended after it had quarantined the records, and before it removed them, finds
    // them again.
    let again = |record: &&Quarantined| repair.lost.iter().any(|lost| lost.key == record.key);
    let kept = kept.iter().filter(|record| !again(record)).count();
    if kept + repair.lost.len() > quarantine::RECORDS_MAX {
        let what = format!(
            "{} of its records are lost and {kept} are in quarantine, more than {} together",
            repair.lost.len(),
            quarantine::RECORDS_MAX
        );
        return Err(damaged(dir, what));
    }
    for lost in &repair.lost {
        quarantine::keep(
            dir,
            &lost.key,
            &lost.reason.to_string(),
            lost.revision,
            &lost.raw,
        )
        .map_err(io_error(dir))?;
    }
    for found in &repair.findings {
        let (key, reason, effect) = (&found.key, &found.reason, &found.effect);
        match effect {
            DamageEffect::Lost => {
                tracing::error!(
                    key,
                    reason,
                    "a damaged record was moved to the quarantine: {effect}"
                );
            }
            _ => tracing::warn!(key, reason, "a damaged record was found: {effect}"),
        }
    }
    let mut batch = sled::Batch::default();
    for key in &repair.remove {
        batch.remove(key.as_slice());
    }
    for entry in &repair.recovered {
        put_object(&mut batch, entry);
    }
    batch.insert(STATE, codec::state(state));
    guarded(|| {
        sled.apply_batch(batch)?;
        sled.flush()?;
        Ok(())
    })
    .map_err(|error| open_error(dir, error))?;
    data.sync_data().map_err(io_error(dir))
}

fn failed(error: &dyn std::error::Error) -> StoreError {
    StoreError::Failed {
        reason: error.to_string(),
    }
}

fn put_object(batch: &mut sled::Batch, entry: &Entry) {
    let (record, _) = codec::object(&entry.key, entry.revision, &entry.meta, &entry.value);
    for (part, bytes) in parts(&record) {
        batch.insert(object_key(&entry.key, part), bytes);
    }
}

fn acknowledged_bytes(revision: Revision) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&revision.get().to_be_bytes());
    let crc = crc32fast::hash(&bytes[..8]);
    bytes[8..].copy_from_slice(&crc.to_be_bytes());
    bytes
}

/// The last acknowledged revision. The file is not synced with each commit, so after a power cut it
/// may be outdated or empty: the check is then weaker, but never wrong.
fn read_acknowledged(file: &File) -> Revision {
    let mut bytes = [0; 12];
    let revision = |bytes: &[u8; 12]| {
        let (number, _) = bytes.split_first_chunk::<8>()?;
        Some(Revision::new(u64::from_be_bytes(*number)))
    };
    match file.read_exact_at(&mut bytes, 0) {
        Ok(()) => revision(&bytes)
            .filter(|revision| acknowledged_bytes(*revision) == bytes)
            .unwrap_or_default(),
        Err(_) => Revision::ZERO,
    }
}
