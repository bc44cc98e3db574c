//! Owns the commit thread: transactions run one after another against staged state, a
//! group of them becomes one write, and only what is on the disk is published and
//! acknowledged. It decides nothing about what the transactions mean.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use crate::codec::{self, State};
use crate::disk::{Disk, panic_text, part_count};
use crate::entry::{Entry, EntryMeta, Event, EventKind, Revision};
use crate::error::{CommitError, StoreError};
use crate::memory::{Changes, Memory, Objects, Shared, overlaid};
use crate::quarantine;
use crate::space::Room;

/// How many transactions may wait for the commit thread; more wait outside.
pub(crate) const QUEUE_MAX: usize = 1024;
/// The most transactions in one group.
const GROUP_MAX: usize = 256;
/// The most bytes of objects in one group.
const GROUP_BYTES_MAX: usize = 4 << 20;
/// The same while the disk is nearly full: a group must fit above the second floor.
const GROUP_BYTES_SCARCE: usize = 512 << 10;
/// A group of so many transactions says that there are many writers at once.
const MANY: usize = 8;
/// While there are many writers, how long a group is left open for more of them: a flush costs the same for a few as
/// for all. A lone writer never waits.
const GATHER: Duration = Duration::from_millis(1);

/// The state that a transaction sees: everything committed before it, and its own
/// changes. Changes are kept when the transaction answers Ok, and dropped otherwise.
pub struct View<'a> {
    base: &'a Objects,
    group: &'a mut Group,
    /// What this transaction changed, with what was staged there before.
    undo: Vec<(Arc<str>, Staged)>,
    first_event: usize,
}

/// What a group has staged for a key: nothing, an object, or that there is none.
type Staged = Option<Option<Arc<Entry>>>;

/// What the transactions of one group have staged.
struct Group {
    changes: Changes,
    events: Vec<Event>,
    revision: Revision,
    bytes: usize,
}

impl View<'_> {
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

    /// Writes an object; `encode` is given the revision that the write takes and answers
    /// with the object's final bytes.
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
            // One copy of the key for as long as the object lives.
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

    /// Deletes an object; `final_encode` is given the deletion's revision and the object,
    /// and answers with its last state as watchers will see it. None when there is no
    /// such object.
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

    /// Takes back everything this transaction staged.
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

/// What a transaction is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Anything. It is refused where the disk is nearly full.
    Ordinary,
    /// It makes room on the disk, or is small and lets somebody in who can. It may use what is kept
    /// free for that.
    MakeRoom,
}

/// A transaction in the queue.
pub(crate) trait Job: Send {
    /// Whether its purpose is to make room.
    fn makes_room(&self) -> bool;
    /// Runs it; whether its changes are to be kept.
    fn run(&mut self, view: &mut View<'_>) -> bool;
    /// Tells whoever waits for it, after the flush.
    fn finish(self: Box<Self>, flushed: Result<(), StoreError>);
}

/// A transaction with whoever waits for it.
pub(crate) struct Transaction<F, T, E> {
    body: Option<F>,
    purpose: Purpose,
    answer: Option<Result<T, E>>,
    reply: oneshot::Sender<Result<T, CommitError<E>>>,
}

impl<F, T, E> Transaction<F, T, E> {
    pub(crate) fn new(
        body: F,
        purpose: Purpose,
        reply: oneshot::Sender<Result<T, CommitError<E>>>,
    ) -> Self {
        Transaction {
            body: Some(body),
            purpose,
            answer: None,
            reply,
        }
    }
}

impl<F, T, E> Job for Transaction<F, T, E>
where
    F: FnOnce(&mut View<'_>) -> Result<T, E> + Send,
    T: Send,
    E: Send,
{
    fn makes_room(&self) -> bool {
        self.purpose == Purpose::MakeRoom
    }

    fn run(&mut self, view: &mut View<'_>) -> bool {
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
        // Whoever asked may have gone away; what was written stays written.
        let _ = self.reply.send(answer);
    }
}

/// Runs until the store is closed.
pub(crate) fn run(shared: &Shared, mut disk: Disk, mut queue: mpsc::Receiver<Box<dyn Job>>) {
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

/// Stages what is in the queue, writes it, publishes it and acknowledges it. Answers how many transactions that were.
fn run_group(
    shared: &Shared,
    disk: &mut Disk,
    queue: &mut mpsc::Receiver<Box<dyn Job>>,
    first: Box<dyn Job>,
    room: &Room,
) -> Result<usize, StoreError> {
    let memory = shared.memory.read();
    let mut group = Group {
        changes: BTreeMap::new(),
        events: Vec::new(),
        revision: memory.revision,
        bytes: 0,
    };
    let bytes_max = match room {
        Room::Ample => GROUP_BYTES_MAX,
        Room::Scarce(_) => GROUP_BYTES_SCARCE,
    };
    let mut jobs = Vec::new();
    let mut next = Some(first);
    while let Some(mut job) = next {
        match room {
            Room::Scarce(refusal) if !job.makes_room() => job.finish(Err(refusal.clone())),
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
                tracing::warn!(file = %record.file.display(), %error, "a damaged object was replaced, and its record can't be marked so");
            }
        }
    }
    for job in jobs {
        job.finish(written.clone());
    }
    written.map(|()| size)
}

/// Runs one transaction; of one that refuses or panics nothing stays.
fn run_job(base: &Objects, group: &mut Group, job: &mut dyn Job) -> Result<(), StoreError> {
    let first_event = group.events.len();
    let mut view = View {
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

fn state_after(memory: &Memory, group: &Group) -> State {
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
    State {
        revision: group.revision,
        objects,
        digest,
        // The disk knows what it still has.
        history_from: Revision::ZERO,
    }
}
