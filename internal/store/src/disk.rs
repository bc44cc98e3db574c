//! Owns the disk: sled, the format's version, the checks that what is read holds
//! together, and the one write that a group of commits becomes. Only this file and `ledger`
//! name sled. It keeps no objects in memory.
//!
//! One sled tree holds everything, so that a group is one atomic batch:
//!
//! - `o` + key + part number: an object's record
//! - `e` + first revision + part number: the events of one group
//! - `m`: the store's own state
//!
//! Records are cut into parts so that no page of sled's grows past what it keeps in its
//! log; larger ones would go to files that it does not sync.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::codec::{self, Broken, State};
use crate::entry::{Entry, Event, Revision};
use crate::error::{OpenError, StoreError};
use crate::memory::{Changes, Objects};
use crate::options::Options;

/// The format this binary writes; a store with a newer one is not opened.
pub(crate) const FORMAT: u32 = 1;
const FORMAT_NAME: &str = "muster-store";

const FORMAT_FILE: &str = "format";
const LOCK_FILE: &str = "lock";
const ACKNOWLEDGED_FILE: &str = "acknowledged";
const SLED_DIR: &str = "sled";

const OBJECT: u8 = b'o';
const HISTORY: u8 = b'e';
const STATE: &[u8] = b"m";

/// The most bytes in one sled value. A leaf holds at most 17 of them, and what is larger
/// than a quarter of a segment leaves the log: 17 * 24 KiB < 2 MiB / 4.
const PART_MAX: usize = 24 << 10;
const SEGMENT_BYTES: usize = 2 << 20;
/// How often sled reclaims what was overwritten. Commits do not wait for it: they flush
/// themselves.
const RECLAIM_EVERY_MS: u64 = 500;

/// How often, and after which time, sled's lock is tried again.
const SLED_LOCK_TRIES: u32 = 200;
const SLED_LOCK_WAIT: Duration = Duration::from_millis(10);

/// Where one group's events are.
struct HistoryRecord {
    first: Revision,
    last: Revision,
    parts: u16,
}

/// What was found on disk.
pub(crate) struct Loaded {
    pub(crate) objects: Objects,
    pub(crate) events: Vec<Event>,
    pub(crate) state: State,
}

/// The open store on disk. The process that has it holds a lock on it.
pub(crate) struct Disk {
    dir: PathBuf,
    sled: sled::Db,
    /// sled's own file: sled asks the kernel to write its pages out, but neither the
    /// file's length nor the drive's cache are covered by that.
    data: File,
    /// The last acknowledged revision, written behind the flush: should sled come up
    /// with an earlier one, the end of its log was damaged.
    acknowledged: File,
    history: VecDeque<HistoryRecord>,
    options: Options,
    _lock: File,
}

fn io_error(dir: &Path) -> impl Fn(io::Error) -> OpenError {
    let path = dir.to_owned();
    move |source| OpenError::Io {
        path: path.clone(),
        source,
    }
}

fn damaged(dir: &Path, what: impl Into<String>) -> OpenError {
    OpenError::Damaged {
        path: dir.to_owned(),
        what: what.into(),
    }
}

/// Makes a file's name last: its directory is written out.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Writes the file that says which format the store has.
pub(crate) fn write_format(dir: &Path) -> io::Result<()> {
    let staged = dir.join("format.new");
    let mut file = File::create(&staged)?;
    writeln!(file, "{FORMAT_NAME} {FORMAT}")?;
    file.sync_all()?;
    fs::rename(&staged, dir.join(FORMAT_FILE))?;
    sync_dir(dir)
}

/// Whether a directory already has a store of a format that is known.
fn check_format(dir: &Path) -> Result<bool, OpenError> {
    let text = match fs::read_to_string(dir.join(FORMAT_FILE)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if dir.join(SLED_DIR).exists() {
                let what =
                    "its `format` file is missing (a restore that did not finish leaves it so)";
                return Err(damaged(dir, what));
            }
            return Ok(false);
        }
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            return Err(damaged(dir, "its `format` file is not text"));
        }
        Err(error) => return Err(io_error(dir)(error)),
    };
    let found = text
        .trim_end()
        .strip_prefix(FORMAT_NAME)
        .and_then(|rest| rest.strip_prefix(' '))
        .and_then(|number| number.parse::<u32>().ok())
        .filter(|number| *number > 0)
        .ok_or_else(|| damaged(dir, "its `format` file does not name a format"))?;
    if found > FORMAT {
        return Err(OpenError::NewerFormat {
            path: dir.to_owned(),
            found,
            known: FORMAT,
        });
    }
    Ok(true)
}

fn lock(dir: &Path) -> Result<File, OpenError> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
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

/// sled panics on some damage; whatever it does becomes an error here.
pub(crate) fn guarded<T>(work: impl FnOnce() -> sled::Result<T>) -> Result<T, sled::Error> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        Err(sled::Error::ReportableBug(format!(
            "the disk engine panicked: {}",
            panic_text(&*panic)
        )))
    })
}

/// Opens sled. This process has the store's lock; where sled's own is still taken, an
/// earlier handle of this very process is about to let go of it.
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

/// What a panic said.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}

fn open_error(dir: &Path, error: sled::Error) -> OpenError {
    match error {
        sled::Error::Io(source) => io_error(dir)(source),
        other => damaged(dir, other.to_string()),
    }
}

impl Disk {
    /// Opens the store, or creates it. With `finish` false the `format` file is left to
    /// be written by the caller once the store is complete.
    pub(crate) fn open(
        dir: &Path,
        options: Options,
        finish: bool,
    ) -> Result<(Disk, Loaded), OpenError> {
        fs::create_dir_all(dir).map_err(io_error(dir))?;
        let lock = lock(dir)?;
        let existed = check_format(dir)?;
        if !existed && finish {
            write_format(dir).map_err(io_error(dir))?;
        }
        let sled_dir = dir.join(SLED_DIR);
        let config = sled::Config::new()
            .path(&sled_dir)
            .segment_size(SEGMENT_BYTES)
            .cache_capacity(options.cache_bytes)
            .flush_every_ms(Some(RECLAIM_EVERY_MS));
        let sled = open_sled(&config).map_err(|error| open_error(dir, error))?;
        let data = File::open(sled_dir.join("db")).map_err(io_error(dir))?;
        if !existed {
            let names = || -> io::Result<()> {
                File::open(sled_dir.join("conf"))?.sync_all()?;
                sync_dir(&sled_dir)?;
                sync_dir(dir)
            };
            names().map_err(io_error(dir))?;
        }
        let acknowledged = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(dir.join(ACKNOWLEDGED_FILE))
            .map_err(io_error(dir))?;
        let (loaded, history) = load(dir, &sled, read_acknowledged(&acknowledged))?;
        let disk = Disk {
            dir: dir.to_owned(),
            sled,
            data,
            acknowledged,
            history,
            options,
            _lock: lock,
        };
        Ok((disk, loaded))
    }

    /// Refuses when the disk is too full to write to safely: sled does not recover from
    /// a write that found no room.
    pub(crate) fn check_space(&self) -> Result<(), StoreError> {
        let free = (self.options.free_bytes)(&self.dir).map_err(|error| StoreError::Failed {
            reason: format!("asking for free space at {}: {error}", self.dir.display()),
        })?;
        let reserve = self.options.reserve_bytes;
        if free < reserve {
            return Err(StoreError::NoSpace {
                free,
                reserve,
                path: self.dir.clone(),
            });
        }
        Ok(())
    }

    /// Writes a group of commits as one batch and returns once it is on the disk.
    /// `base` is the state before it, `compacted` what the history has let go.
    pub(crate) fn write(
        &mut self,
        base: &Objects,
        changes: &Changes,
        events: &[Event],
        compacted: Revision,
        mut state: State,
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

    /// Says that the store is complete; see [`Disk::open`].
    pub(crate) fn finish(&self) -> io::Result<()> {
        write_format(&self.dir)
    }
}

fn failed(error: &dyn std::error::Error) -> StoreError {
    StoreError::Failed {
        reason: error.to_string(),
    }
}

fn object_key(key: &str, part: u16) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(key.len() + 3);
    bytes.push(OBJECT);
    bytes.extend_from_slice(key.as_bytes());
    bytes.extend_from_slice(&part.to_be_bytes());
    bytes
}

fn history_key(first: Revision, part: u16) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(11);
    bytes.push(HISTORY);
    bytes.extend_from_slice(&first.get().to_be_bytes());
    bytes.extend_from_slice(&part.to_be_bytes());
    bytes
}

/// How many parts a record of this many bytes takes.
pub(crate) fn part_count(bytes: usize) -> u16 {
    u16::try_from(bytes.div_ceil(PART_MAX)).expect("a record is below 1.5 GiB")
}

fn parts(record: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    (0..).zip(record.chunks(PART_MAX))
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

/// The last acknowledged revision. The file is not synced with each commit, so after a
/// power cut it may be behind or empty: it then proves less, never something wrong.
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

/// Puts records together from their parts, which arrive in order.
#[derive(Default)]
struct Assembly {
    name: Vec<u8>,
    bytes: Vec<u8>,
    parts: u16,
}

impl Assembly {
    /// Takes the next part; gives the record before it once another one begins.
    fn take(&mut self, key: &[u8], bytes: &[u8]) -> Result<Option<Assembly>, Broken> {
        let (name, part) = key
            .split_last_chunk::<2>()
            .ok_or(Broken("a key is too short"))?;
        let part = u16::from_be_bytes(*part);
        if self.parts > 0 && self.name == name {
            if part != self.parts {
                return Err(Broken("a part of a record is missing"));
            }
            self.bytes.extend_from_slice(bytes);
            self.parts += 1;
            return Ok(None);
        }
        if part != 0 {
            return Err(Broken("the first part of a record is missing"));
        }
        let next = Assembly {
            name: name.to_vec(),
            bytes: bytes.to_vec(),
            parts: 1,
        };
        let done = std::mem::replace(self, next);
        Ok((done.parts > 0).then_some(done))
    }
}

struct Loading<'a> {
    dir: &'a Path,
    objects: Objects,
    digest: u64,
    events: Vec<Event>,
    history: VecDeque<HistoryRecord>,
    state: Option<State>,
}

impl Loading<'_> {
    fn record(&mut self, record: Assembly) -> Result<(), OpenError> {
        let Assembly { name, bytes, parts } = record;
        match name.first() {
            Some(&OBJECT) => {
                let key = std::str::from_utf8(&name[1..])
                    .map_err(|_| damaged(self.dir, "a key is not text"))?;
                let entry = codec::read_object(key, bytes.into(), parts).map_err(|broken| {
                    damaged(
                        self.dir,
                        format!("the object {key} cannot be read: {}", broken.0),
                    )
                })?;
                self.digest = self.digest.wrapping_add(codec::fingerprint(&entry));
                self.objects.insert(Arc::clone(&entry.key), Arc::new(entry));
            }
            Some(&HISTORY) => {
                let events = codec::read_history(bytes.into()).map_err(|broken| {
                    damaged(
                        self.dir,
                        format!("the history cannot be read: {}", broken.0),
                    )
                })?;
                if let (Some(first), Some(last)) = (events.first(), events.last()) {
                    self.history.push_back(HistoryRecord {
                        first: first.revision(),
                        last: last.revision(),
                        parts,
                    });
                }
                self.events.extend(events);
            }
            _ => return Err(damaged(self.dir, "there is a record of no known kind")),
        }
        Ok(())
    }

    /// Checks that everything belongs together.
    fn checked(
        self,
        acknowledged: Revision,
    ) -> Result<(Loaded, VecDeque<HistoryRecord>), OpenError> {
        let dir = self.dir;
        let state = match self.state {
            Some(state) => state,
            None if self.objects.is_empty() && self.events.is_empty() => State {
                history_from: Revision::new(1),
                ..State::default()
            },
            None => return Err(damaged(dir, "its own state is missing")),
        };
        if state.revision < acknowledged {
            let what = format!(
                "its log ends at revision {}, and revision {acknowledged} was acknowledged",
                state.revision
            );
            return Err(damaged(dir, what));
        }
        let found = self.objects.len() as u64;
        if found != state.objects {
            let what = format!("{found} objects are there, {} should be", state.objects);
            return Err(damaged(dir, what));
        }
        if self.digest != state.digest {
            return Err(damaged(dir, "some objects are not at their last revision"));
        }
        let mut expected = state.history_from;
        for event in &self.events {
            if event.revision() != expected {
                let what = format!(
                    "its history has revision {} where {expected} should be",
                    event.revision()
                );
                return Err(damaged(dir, what));
            }
            expected = expected.next();
        }
        if expected != state.revision.next() {
            return Err(damaged(dir, "the end of its history is missing"));
        }
        let loaded = Loaded {
            objects: self.objects,
            events: self.events,
            state,
        };
        Ok((loaded, self.history))
    }
}

fn load(
    dir: &Path,
    sled: &sled::Db,
    acknowledged: Revision,
) -> Result<(Loaded, VecDeque<HistoryRecord>), OpenError> {
    let mut loading = Loading {
        dir,
        objects: Objects::new(),
        digest: 0,
        events: Vec::new(),
        history: VecDeque::new(),
        state: None,
    };
    let mut assembly = Assembly::default();
    let mut pairs = sled.iter();
    // `guarded` around each step: what the loading itself finds is not sled's.
    while let Some((key, bytes)) =
        guarded(|| pairs.next().transpose()).map_err(|error| open_error(dir, error))?
    {
        if &*key == STATE {
            let state = codec::read_state(Bytes::copy_from_slice(&bytes)).map_err(|broken| {
                damaged(dir, format!("its own state cannot be read: {}", broken.0))
            })?;
            loading.state = Some(state);
            continue;
        }
        let done = assembly
            .take(&key, &bytes)
            .map_err(|broken| damaged(dir, broken.0))?;
        if let Some(record) = done {
            loading.record(record)?;
        }
    }
    if assembly.parts > 0 {
        loading.record(assembly)?;
    }
    loading.checked(acknowledged)
}
