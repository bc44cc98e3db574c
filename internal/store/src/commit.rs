//! Owns the commit thread. Transactions run one after another against staged state; a group of them
//! becomes one write; a change is published and acknowledged only after it is on the disk. The
//! thread does not interpret the transactions.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use crate::codec::{self, StoreState};
use crate::disk::{DiskStore, panic_text};
use crate::entry::{Entry, EntryMeta, Event, EventKind, Revision};
use crate::error::{CommitError, StoreError};
use crate::layout::part_count;
use crate::memory::{FlushedState, ObjectChanges, Objects, SharedState, overlaid};
use crate::quarantine;
use crate::space::DiskRoom;

/// How many transactions the queue of the commit thread holds; further callers wait for a place.
pub(crate) const QUEUE_MAX: usize = 1024;
/// The maximum number of transactions in one group.
const GROUP_MAX: usize = 256;
/// The maximum number of bytes of objects in one group.
const GROUP_BYTES_MAX: usize = 4 << 20;
/// The same limit while the disk is nearly full: a group must fit above the second floor.
const GROUP_BYTES_SCARCE: usize = 512 << 10;
/// A group of this many transactions indicates many concurrent writers.
const MANY: usize = 8;
/// How long a group stays open while there are many concurrent writers: a flush costs the same for
/// a few transactions as for many. A single writer never waits.
const GATHER: Duration = Duration::from_millis(1);

/// The state that a transaction sees: everything committed before it, and its own changes. The
/// changes are kept if the transaction returns Ok, and dropped otherwise.
pub struct TransactionView<'a> {
    base: &'a Objects,
    group: &'a mut Group,
    /// The keys that this transaction changed, with the earlier staged value of each.
    undo: Vec<(Arc<str>, Staged)>,
    first_event: usize,
}

/// The staged value of a key: not staged, an object, or a deletion.
type Staged = Option<Option<Arc<Entry>>>;

/// The staged changes of one group's transactions.
struct Group {
    changes: ObjectChanges,
    events: Vec<Event>,
    revision: Revision,
    bytes: usize,
}

impl TransactionView<'_> {
    /// The object under a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<Arc<Entry>> {
        match self.group.changes.get(key) {
            Some(staged) => staged.clone(),
            None => self.base.get(key).cloned(),
        }
    }

    /// All objects under a prefix, in key order.
    #[must_use]
    pub fn list(&self, prefix: &str) -> Vec<Arc<Entry>> {
        overlaid(self.base, &self.group.changes, prefix, None)
            .cloned()
            .collect()
    }

    /// The revision that the next put or delete takes.
    #[must_use]
    pub fn next_revision(&self) -> Revision {
        self.group.revision.next()
    }

    /// Writes an object; `encode` receives the revision of the write and returns the object's final
    /// bytes.
    pub fn put(
        &mut self,
        key: String,
        meta: EntryMeta,
        encode: impl FnOnce(Revision) -> Bytes,
    ) -> Arc<Entry> {
        let previous = self.get(&key);
        let revision = self.next_revision();
        let value = encode(revision);
        let (record, crc) = codec::object(&key, revision, &meta, &value);
        let entry = Arc::new(Entry {
            // One copy of the key for the lifetime of the object.
            key: previous
                .as_ref()
                .map_or_else(|| key.into(), |previous| Arc::clone(&previous.key)),
            value,
            revision,
            meta: Arc::new(meta),
            crc,
            parts: part_count(record.len()),
        });
        let kind = match previous {
            Some(_) => EventKind::Modified,
            None => EventKind::Added,
        };
        self.stage(kind, Arc::clone(&entry), previous);
        entry
    }

    /// Deletes an object; `final_encode` receives the deletion's revision and the object, and
    /// returns the last state that watchers receive. Returns None if the object does not exist.
    pub fn delete(
        &mut self,
        key: &str,
        final_encode: impl FnOnce(Revision, &Entry) -> Bytes,
    ) -> Option<Arc<Entry>> {
        let previous = self.get(key)?;
        let revision = self.next_revision();
        let entry = Arc::new(Entry {
            key: Arc::clone(&previous.key),
            value: final_encode(revision, &previous),
            revision,
            meta: Arc::clone(&previous.meta),
            crc: 0,
            parts: 0,
        });
        self.stage(EventKind::Deleted, Arc::clone(&entry), Some(previous));
        Some(entry)
    }

    fn stage(&mut self, kind: EventKind, entry: Arc<Entry>, previous: Option<Arc<Entry>>) {
        let group = &mut *self.group;
        group.revision = entry.revision;
        group.bytes += entry.value.len();
        let key = Arc::clone(&entry.key);
        let after = (kind != EventKind::Deleted).then(|| Arc::clone(&entry));
        let staged = group.changes.insert(Arc::clone(&key), after);
        self.undo.push((key, staged));
        group.events.push(Event {
            kind,
            entry,
            previous: previous.map(|previous| Arc::clone(&previous.meta)),
        });
    }

    /// Reverts everything that this transaction staged.
    fn roll_back(&mut self) {
        for (key, staged) in self.undo.drain(..).rev() {
            match staged {
                Some(staged) => self.group.changes.insert(key, staged),
                None => self.group.changes.remove(&key),
            };
        }
        for event in self.group.events.drain(self.first_event..) {
            self.group.bytes -= event.entry.value.len();
            self.group.revision = self.group.revision.min(previous(event.revision()));
        }
    }
}

fn previous(revision: Revision) -> Revision {
    Revision::new(revision.get() - 1)
}

/// The purpose of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A write without a special purpose. The store refuses it if the disk is nearly full.
    Ordinary,
    /// A write that frees disk space, or a small write that lets an administrator sign in to do so.
    /// It may use the space reserved for that.
    MakeRoom,
}

/// A transaction in the queue.
pub(crate) trait QueuedTransaction: Send {
    /// True if the transaction frees disk space.
    fn makes_room(&self) -> bool;
    /// Runs the transaction; returns true if its changes are to be kept.
    fn run(&mut self, view: &mut TransactionView<'_>) -> bool;
    /// Sends the result to the waiting caller, after the flush.
    fn finish(self: Box<Self>, flushed: Result<(), StoreError>);
}

/// A transaction with its waiting caller.
pub(crate) struct PendingTransaction<F, T, E> {
    body: Option<F>,
    purpose: Purpose,
    answer: Option<Result<T, E>>,
    reply: oneshot::Sender<Result<T, CommitError<E>>>,
}

impl<F, T, E> PendingTransaction<F, T, E> {
    pub(crate) fn new(
        body: F,
        purpose: Purpose,
        reply: oneshot::Sender<Result<T, CommitError<E>>>,
    ) -> Self {
        PendingTransaction {
            body: Some(body),
            purpose,
            answer: None,
            reply,
        }
    }
}

impl<F, T, E> QueuedTransaction for PendingTransaction<F, T, E>
where
    F: FnOnce(&mut TransactionView<'_>) -> Result<T, E> + Send,
    T: Send,
    E: Send,
{
    fn makes_room(&self) -> bool {
        self.purpose == Purpose::MakeRoom
    }

    fn run(&mut self, view: &mut TransactionView<'_>) -> bool {
        let body = self.body.take().expect("a transaction is run once");
        self.answer.insert(body(view)).is_ok()
    }

    fn finish(self: Box<Self>, flushed: Result<(), StoreError>) {
        let answer = match flushed {
            Ok(()) => self
                .answer
                .expect("a transaction is run before it is acknowledged")
                .map_err(CommitError::Refused),
            Err(error) => Err(CommitError::Unavailable(error)),
        };
        // The caller may have dropped its future; the write remains.
        let _ = self.reply.send(answer);
    }
}

/// Runs until the store is closed.
pub(crate) fn run(
    shared: &SharedState,
    mut disk: DiskStore,
    mut queue: mpsc::Receiver<Box<dyn QueuedTransaction>>,
) {
    let mut failed: Option<StoreError> = None;
    let mut last_group = 0;
    while let Some(first) = queue.blocking_recv() {
        let room = match &failed {
            Some(failed) => Err(failed.clone()),
            None => disk.room(first.makes_room()),
        };
        let room = match room {
            Ok(room) => room,
            Err(refusal) => {
                first.finish(Err(refusal));
                continue;
            }
        };
        if last_group >= MANY {
            std::thread::sleep(GATHER);
        }
        match run_group(shared, &mut disk, &mut queue, first, &room) {
            Ok(size) => last_group = size,
            Err(error) => {
                tracing::error!(%error, "the store is read-only");
                failed = Some(error);
            }
        }
    }
    shared.memory.write().close();
}

/// Stages the queued transactions, writes the group, publishes it and acknowledges it. Returns the
/// number of transactions in the group.
fn run_group(
    shared: &SharedState,
    disk: &mut DiskStore,
    queue: &mut mpsc::Receiver<Box<dyn QueuedTransaction>>,
    first: Box<dyn QueuedTransaction>,
    room: &DiskRoom,
) -> Result<usize, StoreError> {
    let memory = shared.memory.read();
    let mut group = Group {
        changes: BTreeMap::new(),
        events: Vec::new(),
        revision: memory.revision,
        bytes: 0,
    };
    let bytes_max = match room {
        DiskRoom::Ample => GROUP_BYTES_MAX,
        DiskRoom::Scarce(_) => GROUP_BYTES_SCARCE,
    };
    let mut jobs = Vec::new();
    let mut next = Some(first);
    while let Some(mut job) = next {
        match room {
            DiskRoom::Scarce(refusal) if !job.makes_room() => job.finish(Err(refusal.clone())),
            _ => match run_job(&memory.objects, &mut group, &mut *job) {
                Ok(()) => jobs.push(job),
                Err(panicked) => job.finish(Err(panicked)),
            },
        }
        let more = jobs.len() < GROUP_MAX && group.bytes < bytes_max;
        next = if more { queue.try_recv().ok() } else { None };
    }
    let size = jobs.len();
    if group.events.is_empty() {
        drop(memory);
        jobs.into_iter().for_each(|job| job.finish(Ok(())));
        return Ok(size);
    }
    let state = state_after(&memory, &group);
    let written = disk.write(
        &memory.objects,
        &group.changes,
        &group.events,
        memory.compacted,
        state,
    );
    drop(memory);
    if written.is_ok() {
        let replaced = {
            let mut memory = shared.memory.write();
            let replaced = memory.replaced(&group.changes);
            memory.publish(group.changes, group.events, state.digest);
            replaced
        };
        for record in replaced {
            // The next start finds the object there and does it again.
            if let Err(error) = quarantine::release(&record.file) {
                tracing::warn!(file = %record.file.display(), %error, "a damaged object was replaced, but the store could not mark its record as replaced");
            }
        }
    }
    for job in jobs {
        job.finish(written.clone());
    }
    written.map(|()| size)
}

/// Runs one transaction. If it refuses or panics, all its changes are reverted.
fn run_job(
    base: &Objects,
    group: &mut Group,
    job: &mut dyn QueuedTransaction,
) -> Result<(), StoreError> {
    let first_event = group.events.len();
    let mut view = TransactionView {
        base,
        group,
        undo: Vec::new(),
        first_event,
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| job.run(&mut view)));
    match outcome {
        Ok(true) => Ok(()),
        Ok(false) => {
            view.roll_back();
            Ok(())
        }
        Err(panic) => {
            view.roll_back();
            Err(StoreError::Panicked {
                reason: panic_text(&*panic),
            })
        }
    }
}

fn state_after(memory: &FlushedState, group: &Group) -> StoreState {
    let mut objects = memory.objects.len() as u64;
    let mut digest = memory.digest;
    for (key, change) in &group.changes {
        if let Some(old) = memory.objects.get(key) {
            objects -= 1;
            digest = digest.wrapping_sub(codec::fingerprint(old));
        }
        if let Some(new) = change {
            objects += 1;
            digest = digest.wrapping_add(codec::fingerprint(new));
        }
    }
    StoreState {
        revision: group.revision,
        objects,
        digest,
        // `DiskStore::write` sets it from the history on disk.
        history_from: Revision::ZERO,
    }
}
