//! Owns the interpretation of the pairs found on disk: objects, history and state, and the repair
//! of damaged records. It does no disk I/O.
//!
//! A damaged object is restored from the history if that contains its last state; otherwise it is
//! lost and goes to the quarantine. If a part of the history is damaged, that part and everything
//! before it are removed: a watch from there has to list again. At the end the number of objects
//! must equal the number in the state record, and, if no object is lost, the sum of their
//! fingerprints must agree too: a store that lost an object without a known key is refused. Cost:
//! one pass over everything. `tests/damage.rs` and the tests below damage each kind of record.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use crate::codec::{self, Broken, StoreState};
use crate::entry::{Entry, Event, EventKind, Revision};
use crate::layout::{HISTORY, OBJECT, STATE, part_count, part_key};
use crate::memory::Objects;

/// The keys of one group's events on disk.
pub(crate) struct HistoryRecord {
    pub(crate) first: Revision,
    pub(crate) last: Revision,
    pub(crate) parts: u16,
}

/// The consequence of a damaged record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DamageEffect {
    /// The object was restored from the history: nothing is lost.
    Recovered,
    /// The object is lost; its record goes to the quarantine.
    Lost,
    /// The history begins later: a watch from before this revision lists again.
    HistoryCut(Revision),
}

impl std::fmt::Display for DamageEffect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DamageEffect::Recovered => f.write_str("recovered from the history, nothing is lost"),
            DamageEffect::Lost => f.write_str("lost; restore it from a backup or create it again"),
            DamageEffect::HistoryCut(from) => {
                write!(f, "watches from before revision {from} list again")
            }
        }
    }
}

/// Why the records found on disk do not form a store.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Damage {
    #[error("a key is too short")]
    ShortKey,
    #[error("the store has a record of an unknown kind")]
    UnknownRecord,
    #[error("its own state cannot be read: {0}")]
    State(Broken),
    #[error("its own state is missing")]
    NoState,
    #[error("its log ends at revision {last}, but revision {acknowledged} was acknowledged")]
    ShortLog {
        last: Revision,
        acknowledged: Revision,
    },
    #[error("the store has {found} objects; it should have {expected}")]
    Objects { found: u64, expected: u64 },
    #[error("some objects are not at their last revision")]
    Outdated,
}

/// A damaged record, and the consequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedRecord {
    /// The object's key, or `history`.
    pub key: String,
    /// What is wrong with the record.
    pub reason: String,
    /// The consequence.
    pub effect: DamageEffect,
}

/// A record that cannot be recovered.
pub(crate) struct UnrecoverableRecord {
    pub(crate) key: String,
    pub(crate) reason: Broken,
    pub(crate) revision: Option<Revision>,
    pub(crate) raw: Vec<u8>,
}

/// The changes on disk that make the store consistent again.
#[derive(Default)]
pub(crate) struct Repair {
    /// Pairs to remove, before the recovered objects are written.
    pub(crate) remove: Vec<Vec<u8>>,
    /// Objects to write again.
    pub(crate) recovered: Vec<Arc<Entry>>,
    /// Records for the quarantine.
    pub(crate) lost: Vec<UnrecoverableRecord>,
    /// The damage found, for the log and the report.
    pub(crate) findings: Vec<DamagedRecord>,
}

impl Repair {
    fn found(&mut self, key: &str, reason: &str, effect: DamageEffect) {
        self.findings.push(DamagedRecord {
            key: key.to_owned(),
            reason: reason.to_owned(),
            effect,
        });
    }
}

/// The store's content after the repair.
pub(crate) struct LoadOutcome {
    pub(crate) objects: Objects,
    pub(crate) events: Vec<Event>,
    pub(crate) history: VecDeque<HistoryRecord>,
    pub(crate) state: StoreState,
    pub(crate) repair: Repair,
}

/// A record, assembled from the parts that were found.
struct RawRecord {
    name: Vec<u8>,
    bytes: Vec<u8>,
    parts: Vec<u16>,
}

impl RawRecord {
    fn is_whole(&self) -> bool {
        (0_u16..)
            .zip(&self.parts)
            .all(|(expected, part)| expected == *part)
    }

    fn keys(&self) -> impl Iterator<Item = Vec<u8>> {
        self.parts.iter().map(|part| part_key(&self.name, *part))
    }

    /// The number of parts, as an entry stores it.
    fn count(&self) -> u16 {
        u16::try_from(self.parts.len()).unwrap_or(u16::MAX)
    }

    /// The revision that follows the checksum and the length; it may be damaged too.
    fn revision(&self) -> Option<Revision> {
        let bytes = self.bytes.get(codec::HEADER..codec::HEADER + 8)?;
        Some(Revision::new(u64::from_be_bytes(bytes.try_into().ok()?)))
    }
}

/// The history of one group, complete or damaged.
struct Stretch {
    first: Option<Revision>,
    keys: Vec<Vec<u8>>,
    parts: u16,
    events: Result<Vec<Event>, Broken>,
}

impl Stretch {
    /// The group's first revision, if the group has every revision from there to before `next`.
    fn until(&self, next: Revision) -> Result<Revision, Broken> {
        let events = self.events.as_ref().map_err(|broken| *broken)?;
        let first = self.first.ok_or(Broken::KeyNotRevision)?;
        let mut expected = first;
        for event in events {
            if event.revision() != expected {
                return Err(Broken::RevisionMissing);
            }
            expected = expected.next();
        }
        if expected == next && !events.is_empty() {
            Ok(first)
        } else {
            Err(Broken::LaterMissing)
        }
    }
}

/// Reads the pairs on disk, one by one in the order of the keys.
#[derive(Default)]
pub(crate) struct Loading {
    current: Option<RawRecord>,
    objects: Objects,
    damaged: BTreeMap<String, (RawRecord, Broken)>,
    history: Vec<Stretch>,
    state: Option<Result<StoreState, Broken>>,
}

impl Loading {
    /// Takes the next pair.
    pub(crate) fn pair(&mut self, key: &[u8], bytes: &[u8]) -> Result<(), Damage> {
        if key == STATE {
            self.state = Some(codec::read_state(Bytes::copy_from_slice(bytes)));
            return Ok(());
        }
        let (name, part) = key.split_last_chunk::<2>().ok_or(Damage::ShortKey)?;
        let part = u16::from_be_bytes(*part);
        if let Some(current) = &mut self.current
            && current.name == name
        {
            current.bytes.extend_from_slice(bytes);
            current.parts.push(part);
            return Ok(());
        }
        let next = RawRecord {
            name: name.to_vec(),
            bytes: bytes.to_vec(),
            parts: vec![part],
        };
        match self.current.replace(next) {
            Some(done) => self.record(done),
            None => Ok(()),
        }
    }

    fn record(&mut self, record: RawRecord) -> Result<(), Damage> {
        match record.name.first() {
            Some(&OBJECT) => self.object(record),
            Some(&HISTORY) => self.stretch(record),
            _ => return Err(Damage::UnknownRecord),
        }
        Ok(())
    }

    fn object(&mut self, record: RawRecord) {
        let key = String::from_utf8_lossy(&record.name[1..]).into_owned();
        let read = if record.is_whole() {
            let bytes = Bytes::copy_from_slice(&record.bytes);
            codec::read_object(&key, bytes, record.count())
        } else {
            Err(Broken::PartMissing)
        };
        match read {
            Ok(entry) => {
                self.objects.insert(Arc::clone(&entry.key), Arc::new(entry));
            }
            Err(broken) => {
                self.damaged.insert(key, (record, broken));
            }
        }
    }

    fn stretch(&mut self, record: RawRecord) {
        let name = record.name.get(1..).unwrap_or_default();
        let number = <[u8; 8]>::try_from(name).ok();
        let events = if record.is_whole() {
            codec::read_history(Bytes::copy_from_slice(&record.bytes))
        } else {
            Err(Broken::PartMissing)
        };
        self.history.push(Stretch {
            first: number.map(|number| Revision::new(u64::from_be_bytes(number))),
            keys: record.keys().collect(),
            parts: record.count(),
            events,
        });
    }

    /// Checks that everything is consistent, after the last pair.
    pub(crate) fn finish(mut self, acknowledged: Revision) -> Result<LoadOutcome, Damage> {
        if let Some(last) = self.current.take() {
            self.record(last)?;
        }
        let nothing = self.objects.is_empty() && self.damaged.is_empty() && self.history.is_empty();
        let state = match self.state.take() {
            Some(Ok(state)) => state,
            Some(Err(broken)) => return Err(Damage::State(broken)),
            None if nothing => StoreState {
                history_from: Revision::new(1),
                ..StoreState::default()
            },
            None => return Err(Damage::NoState),
        };
        if state.revision < acknowledged {
            return Err(Damage::ShortLog {
                last: state.revision,
                acknowledged,
            });
        }
        let mut repair = Repair::default();
        let (events, history, history_from) = self.intact_history(&state, &mut repair);
        self.recover(&events, &mut repair);
        let objects = self.objects;
        let found = (objects.len() + repair.lost.len()) as u64;
        if found != state.objects {
            return Err(Damage::Objects {
                found,
                expected: state.objects,
            });
        }
        let fingerprints = objects.values().map(|entry| codec::fingerprint(entry));
        let digest = fingerprints.fold(0, u64::wrapping_add);
        // The fingerprint of a lost object is unknown.
        if repair.lost.is_empty() && digest != state.digest {
            return Err(Damage::Outdated);
        }
        let state = StoreState {
            revision: state.revision,
            objects: objects.len() as u64,
            digest,
            history_from,
        };
        Ok(LoadOutcome {
            objects,
            events,
            history,
            state,
            repair,
        })
    }

    /// The longest range of history that ends at the last revision without a gap, and the revision
    /// it begins at. The caller removes everything before it.
    fn intact_history(
        &mut self,
        state: &StoreState,
        repair: &mut Repair,
    ) -> (Vec<Event>, VecDeque<HistoryRecord>, Revision) {
        let mut next = state.revision.next();
        let mut intact = Vec::new();
        let mut reason = None;
        while let Some(stretch) = self.history.pop() {
            match stretch.until(next) {
                Ok(first) => {
                    next = first;
                    intact.push(stretch);
                }
                Err(broken) => {
                    reason = Some(broken.to_string());
                    self.history.push(stretch);
                    break;
                }
            }
        }
        if reason.is_none() && next > state.history_from {
            reason = Some("its first records are missing".to_owned());
        }
        if let Some(reason) = reason {
            let dropped = self.history.drain(..);
            repair.remove.extend(dropped.flat_map(|one| one.keys));
            repair.found("history", &reason, DamageEffect::HistoryCut(next));
        }
        let (mut events, mut history) = (Vec::new(), VecDeque::new());
        for stretch in intact.into_iter().rev() {
            let group = stretch.events.unwrap_or_default();
            if let (Some(first), Some(last)) = (group.first(), group.last()) {
                history.push_back(HistoryRecord {
                    first: first.revision(),
                    last: last.revision(),
                    parts: stretch.parts,
                });
            }
            events.extend(group);
        }
        (events, history, next)
    }

    /// Brings every object to its last state in the history, and separates the damaged ones.
    fn recover(&mut self, events: &[Event], repair: &mut Repair) {
        let mut last: BTreeMap<&str, &Event> = BTreeMap::new();
        for event in events {
            last.insert(&event.entry.key, event);
        }
        for (key, (record, reason)) in std::mem::take(&mut self.damaged) {
            repair.remove.extend(record.keys());
            match last.get(key.as_str()) {
                Some(event) => {
                    self.take_last(event, repair);
                    repair.found(&key, &reason.to_string(), DamageEffect::Recovered);
                }
                None => {
                    repair.found(&key, &reason.to_string(), DamageEffect::Lost);
                    repair.lost.push(UnrecoverableRecord {
                        revision: record.revision(),
                        raw: record.bytes,
                        reason,
                        key,
                    });
                }
            }
        }
        for (key, event) in last {
            let there = self.objects.get(key).map(|entry| entry.revision);
            let behind = match event.kind {
                EventKind::Deleted => there.is_some_and(|there| there < event.revision()),
                EventKind::Added | EventKind::Modified => {
                    there.is_none_or(|there| there < event.revision())
                }
            };
            if behind {
                self.take_last(event, repair);
                let reason = "its record is not the last one";
                repair.found(key, reason, DamageEffect::Recovered);
            }
        }
    }

    /// Sets an object to the state after an event.
    fn take_last(&mut self, event: &Event, repair: &mut Repair) {
        let event_entry = &event.entry;
        if let Some(old) = self.objects.remove(&event_entry.key) {
            let name = [&[OBJECT], old.key.as_bytes()].concat();
            let parts = (0..old.parts).map(|part| part_key(&name, part));
            repair.remove.extend(parts);
        }
        if event.kind == EventKind::Deleted {
            return;
        }
        let (key, value) = (&event_entry.key, &event_entry.value);
        let (record, crc) = codec::object(key, event_entry.revision, &event_entry.meta, value);
        let entry = Arc::new(Entry {
            key: Arc::clone(key),
            value: value.clone(),
            revision: event_entry.revision,
            meta: Arc::clone(&event_entry.meta),
            crc,
            parts: part_count(record.len()),
        });
        repair.recovered.push(Arc::clone(&entry));
        self.objects.insert(Arc::clone(key), entry);
    }
}
