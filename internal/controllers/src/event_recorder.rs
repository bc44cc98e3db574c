//! Records core/v1 Events for the control loops. Equal notes about the same object become one event
//! whose count grows. Recording never delays or fails a control loop: `note` returns without
//! waiting, and a note that cannot be written is dropped and counted.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt as _};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, Time};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use supervisor::{LoopEnd, keep_running};
use tokio::sync::mpsc;
use workloads::NoteKind;

use crate::retry::{PANICKED, guarded, panic_in, panicked_note};

/// How many notes may wait before new ones are dropped; a note takes a few hundred bytes.
const WAITING_MAX: usize = 16_384;
/// How many distinct notes are remembered for counting repeats.
const REMEMBERED_MAX: usize = 4096;
/// How many event writes may be in flight at once.
const IN_FLIGHT_MAX: usize = 8;
/// The same limit while the writes that the notes are about are in flight.
const IN_FLIGHT_BESIDE: usize = 1;
/// How often the increased counts of repeated notes are written.
const REPEATS_EVERY: Duration = Duration::from_secs(1);
/// The longest message kept, in bytes: the limit that kube-apiserver sets for an event.
const MESSAGE_MAX: usize = 1024;

/// Whether a note reports normal operation or a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventType {
    /// No action is needed.
    Normal,
    /// A user may have to act.
    Warning,
}

impl EventType {
    /// The event's `type` as Kubernetes spells it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            EventType::Normal => "Normal",
            EventType::Warning => "Warning",
        }
    }
}

impl From<NoteKind> for EventType {
    fn from(kind: NoteKind) -> EventType {
        match kind {
            NoteKind::Normal => EventType::Normal,
            NoteKind::Warning => EventType::Warning,
        }
    }
}

/// A handle for recording events under one component's name; clones share its state.
#[derive(Clone)]
pub struct EventRecorder {
    waiting: mpsc::Sender<Note>,
    dropped: Arc<AtomicU64>,
    gives_way: Arc<AtomicBool>,
}

impl EventRecorder {
    /// Starts the writer that serves this handle and its clones; it ends once they are
    /// all gone. Must be called within a tokio runtime.
    #[must_use]
    pub fn new(client: Client, component: &str) -> EventRecorder {
        let (waiting, taken) = mpsc::channel(WAITING_MAX);
        let gives_way = Arc::new(AtomicBool::new(false));
        let taken = Arc::new(tokio::sync::Mutex::new(taken));
        let (component, gives) = (component.to_owned(), gives_way.clone());
        let start = move || {
            let writer = EventWriter::new(client.clone(), &component, gives.clone());
            // A note is taken off the queue before it is handled: after a panic over one, the writer
            // goes on with the next.
            let taken = taken.clone();
            async move {
                writer.run(&mut *taken.lock().await).await;
                LoopEnd::Finished
            }
        };
        tokio::spawn(keep_running("the writer of events", start));
        EventRecorder {
            waiting,
            dropped: Arc::new(AtomicU64::new(0)),
            gives_way,
        }
    }

    /// Sets whether more urgent writes are in flight. While they are, event writes go out one at a
    /// time.
    pub fn set_yielding(&self, gives_way: bool) {
        self.gives_way.store(gives_way, Ordering::Relaxed);
    }

    /// Records one note about an object. Returns at once; when too many wait, the note is dropped.
    pub fn note(&self, about: &ObjectReference, kind: EventType, reason: &str, message: &str) {
        let note = Note {
            about: about.clone(),
            kind,
            reason: reason.to_owned(),
            message: shortened(message),
            at: Timestamp::now(),
        };
        if self.waiting.try_send(note).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records a note about an object if the work about it failed by a panic.
    pub(crate) fn note_panic(&self, about: &ObjectReference, error: &kube::Error) {
        if let Some(panic) = panic_in(error) {
            self.note(about, EventType::Warning, PANICKED, &panicked_note(panic));
        }
    }

    /// How many notes were dropped because too many waited.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// Cuts a message to the size limit of an event, at a character boundary.
fn shortened(message: &str) -> String {
    if message.len() <= MESSAGE_MAX {
        return message.to_owned();
    }
    let mut end = MESSAGE_MAX - '…'.len_utf8();
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &message[..end])
}

struct Note {
    about: ObjectReference,
    kind: EventType,
    reason: String,
    message: String,
    at: Timestamp,
}

/// The identity of a note: notes with equal keys are repeats.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct EventKey {
    object: String,
    kind: EventType,
    reason: String,
    message: String,
}

impl EventKey {
    fn of(note: &Note) -> EventKey {
        let part = |text: &Option<String>| text.clone().unwrap_or_default();
        EventKey {
            object: [
                part(&note.about.kind),
                part(&note.about.namespace),
                part(&note.about.name),
                part(&note.about.uid),
                part(&note.about.field_path),
            ]
            .join("/"),
            kind: note.kind,
            reason: note.reason.clone(),
            message: note.message.clone(),
        }
    }
}

struct Remark {
    about: ObjectReference,
    name: String,
    count: i32,
    first: Timestamp,
    last: Timestamp,
    /// The count in the stored event; zero if the event was never written.
    written: i32,
    in_flight: bool,
}

struct EventWriter {
    client: Client,
    component: String,
    remarks: BTreeMap<EventKey, Remark>,
    /// The remembered keys, the oldest first, for eviction from memory.
    order: VecDeque<EventKey>,
    named: u64,
    gives_way: Arc<AtomicBool>,
}

/// The outcome of one write.
struct EventWriteOutcome {
    key: EventKey,
    count: i32,
    result: Result<(), kube::Error>,
}

impl EventWriter {
    fn new(client: Client, component: &str, gives_way: Arc<AtomicBool>) -> EventWriter {
        EventWriter {
            client,
            component: component.to_owned(),
            remarks: BTreeMap::new(),
            order: VecDeque::new(),
            named: 0,
            gives_way,
        }
    }

    /// How many writes may be in flight now.
    fn in_flight_max(&self) -> usize {
        if self.gives_way.load(Ordering::Relaxed) {
            IN_FLIGHT_BESIDE
        } else {
            IN_FLIGHT_MAX
        }
    }

    async fn run(mut self, taken: &mut mpsc::Receiver<Note>) {
        let mut writes: FuturesUnordered<WriteFuture> = FuturesUnordered::new();
        let mut repeats = tokio::time::interval(REPEATS_EVERY);
        repeats.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut open = true;
        while open || !writes.is_empty() {
            tokio::select! {
                note = taken.recv(), if open && writes.len() < self.in_flight_max() => match note {
                    Some(note) => {
                        if let Some(key) = self.take(note) {
                            writes.extend(self.write(&key));
                        }
                    }
                    None => open = false,
                },
                Some(done) = writes.next(), if !writes.is_empty() => self.finish(done),
                _ = repeats.tick(), if open => self.flush(&mut writes),
            }
            if !open {
                // The handles are gone and no repeat can come: everything unwritten is written now.
                self.flush(&mut writes);
            }
        }
    }

    /// Counts a note; returns its key if it is new and must be written at once.
    fn take(&mut self, note: Note) -> Option<EventKey> {
        let key = EventKey::of(&note);
        if let Some(remark) = self.remarks.get_mut(&key) {
            remark.count = remark.count.saturating_add(1);
            remark.last = note.at;
            return None;
        }
        while self.order.len() >= REMEMBERED_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.remarks.remove(&oldest);
            }
        }
        let name = self.fresh_name(&note.about, note.at);
        self.order.push_back(key.clone());
        self.remarks.insert(
            key.clone(),
            Remark {
                name,
                about: note.about,
                count: 1,
                first: note.at,
                last: note.at,
                written: 0,
                in_flight: false,
            },
        );
        Some(key)
    }

    /// `<object>.<hex>`, the form of event names that kubectl's users know.
    fn fresh_name(&mut self, about: &ObjectReference, at: Timestamp) -> String {
        self.named = self.named.wrapping_add(1);
        let object = about.name.as_deref().unwrap_or("cluster");
        let stamp = u64::try_from(at.as_nanosecond()).unwrap_or_default();
        let component: u64 = self
            .component
            .bytes()
            .fold(0, |sum, byte| sum * 31 % 4093 + u64::from(byte));
        format!(
            "{object}.{:016x}",
            stamp.wrapping_mul(4096) ^ component ^ (self.named << 48)
        )
    }

    /// Starts writes for notes whose count grew since they were last written.
    fn flush(&mut self, writes: &mut FuturesUnordered<WriteFuture>) {
        let grown: Vec<EventKey> = self
            .remarks
            .iter()
            .filter(|(_, remark)| remark.count > remark.written && !remark.in_flight)
            .map(|(key, _)| key.clone())
            .take(self.in_flight_max().saturating_sub(writes.len()))
            .collect();
        for key in grown {
            writes.extend(self.write(&key));
        }
    }

    fn write(&mut self, key: &EventKey) -> Option<WriteFuture> {
        let remark = self.remarks.get_mut(key)?;
        remark.in_flight = true;
        let namespace = remark.about.namespace.clone();
        let namespace = namespace.filter(|name| !name.is_empty());
        let namespace = namespace.unwrap_or_else(|| "default".to_owned());
        let event = event_of(key, remark, &namespace, &self.component);
        let exists = remark.written > 0;
        let count = remark.count;
        let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        let key = key.clone();
        Some(Box::pin(async move {
            let result = guarded(write_event(&api, event, exists)).await;
            EventWriteOutcome { key, count, result }
        }))
    }

    fn finish(&mut self, done: EventWriteOutcome) {
        let Some(remark) = self.remarks.get_mut(&done.key) else {
            return;
        };
        remark.in_flight = false;
        match done.result {
            Ok(()) => remark.written = done.count,
            Err(error) => {
                // A failed write is retried only when the note is repeated: events are best effort.
                remark.count = remark.written.max(remark.count - done.count);
                tracing::debug!(%error, reason = done.key.reason, "the server could not write an event");
                if remark.written == 0 && remark.count == 0 {
                    self.remarks.remove(&done.key);
                    self.order.retain(|key| *key != done.key);
                }
            }
        }
    }
}

type WriteFuture = futures::future::BoxFuture<'static, EventWriteOutcome>;

async fn write_event(api: &Api<Event>, event: Event, exists: bool) -> Result<(), kube::Error> {
    if exists {
        let name = event.metadata.name.as_deref().unwrap_or_default();
        let grown = serde_json::json!({
            "count": event.count,
            "lastTimestamp": event.last_timestamp,
        });
        match api
            .patch(name, &PatchParams::default(), &Patch::Merge(grown))
            .await
        {
            Ok(_) => return Ok(()),
            // The event expired meanwhile: write it anew.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error),
        }
    }
    api.create(&PostParams::default(), &event).await.map(|_| ())
}

fn event_of(key: &EventKey, remark: &Remark, namespace: &str, component: &str) -> Event {
    Event {
        metadata: ObjectMeta {
            name: Some(remark.name.clone()),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        involved_object: remark.about.clone(),
        reason: Some(key.reason.clone()),
        message: Some(key.message.clone()),
        type_: Some(key.kind.as_str().to_owned()),
        count: Some(remark.count),
        first_timestamp: Some(Time(remark.first)),
        last_timestamp: Some(Time(remark.last)),
        event_time: None::<MicroTime>,
        source: Some(EventSource {
            component: Some(component.to_owned()),
            host: None,
        }),
        reporting_component: Some(component.to_owned()),
        reporting_instance: Some(String::new()),
        ..Event::default()
    }
}
