//! Owns the state that readers see: the live objects, the revision and the recent history, all of
//! it flushed. Only the commit thread changes it. It does no disk I/O.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::codec::StoreState;
use crate::entry::{Entry, Event, EventKind, ListPage, Revision};
use crate::error::WatchError;
use crate::quarantine::Quarantined;
use crate::sizes::NamespaceSizes;
use crate::topic::Topic;
use crate::version::StoreVersion;

pub(crate) type Objects = BTreeMap<Arc<str>, Arc<Entry>>;
/// Objects that differ from a base: the other state, or `None` for a deleted object.
pub(crate) type ObjectChanges = BTreeMap<Arc<str>, Option<Arc<Entry>>>;

/// The approximate overhead of an event in addition to its object, in bytes.
const EVENT_OVERHEAD: usize = 256;

/// The state that was read from disk.
pub(crate) struct Loaded {
    pub(crate) objects: Objects,
    pub(crate) events: Vec<Event>,
    pub(crate) state: StoreState,
    /// Damaged records whose keys are quarantined.
    pub(crate) held: Vec<Quarantined>,
    /// The version that the directory had; none if the store was created now.
    pub(crate) found: Option<StoreVersion>,
}

/// The state that readers, watchers and the commit thread share.
pub(crate) struct SharedState {
    pub(crate) memory: RwLock<FlushedState>,
}

/// One event with the state before it, so that an earlier list can be rebuilt.
struct Logged {
    event: Event,
    before: Option<Arc<Entry>>,
}

impl Logged {
    fn cost(&self) -> usize {
        let before = self.before.as_ref().map_or(0, |entry| entry.value.len());
        EVENT_OVERHEAD + self.event.entry.value.len() + before
    }
}

/// The flushed state.
pub(crate) struct FlushedState {
    pub(crate) objects: Objects,
    /// The bytes of `objects`.
    pub(crate) sizes: NamespaceSizes,
    pub(crate) revision: Revision,
    pub(crate) digest: u64,
    /// Events after this revision are in the history; earlier ones are gone.
    pub(crate) compacted: Revision,
    history: VecDeque<Logged>,
    history_bytes: usize,
    history_max: usize,
    history_bytes_max: usize,
    topics: Vec<Arc<Topic>>,
    /// Damaged objects by key: the store can neither return them nor report them as deleted.
    held: BTreeMap<String, Quarantined>,
    pub(crate) closed: bool,
}

impl FlushedState {
    pub(crate) fn new(
        loaded: Loaded,
        history_max: usize,
        history_bytes_max: usize,
    ) -> FlushedState {
        let Loaded {
            objects,
            events,
            state,
            held,
            ..
        } = loaded;
        let revision = state.revision;
        let held = held.into_iter();
        let mut memory = FlushedState {
            sizes: NamespaceSizes::of(objects.values().map(Arc::as_ref)),
            objects,
            revision,
            digest: state.digest,
            compacted: events.first().map_or(revision, |event| {
                Revision::new(event.revision().get().saturating_sub(1))
            }),
            history: VecDeque::new(),
            history_bytes: 0,
            history_max,
            history_bytes_max,
            topics: Vec::new(),
            held: held.map(|record| (record.key.clone(), record)).collect(),
            closed: false,
        };
        // The state before an event is the state after an earlier event, if the history contains
        // that.
        let mut latest: HashMap<Arc<str>, Arc<Entry>> = HashMap::new();
        for mut event in events {
            // One copy of an object that is both in the history and live.
            if let Some(live) = memory.objects.get(&event.entry.key)
                && live.revision == event.entry.revision
            {
                event.entry = Arc::clone(live);
            }
            let before = match event.kind {
                EventKind::Deleted => latest.remove(&event.entry.key),
                EventKind::Added | EventKind::Modified => {
                    latest.insert(Arc::clone(&event.entry.key), Arc::clone(&event.entry))
                }
            };
            memory.remember(event, before);
        }
        memory.trim();
        memory
    }

    fn remember(&mut self, event: Event, before: Option<Arc<Entry>>) {
        let logged = Logged { event, before };
        self.history_bytes += logged.cost();
        self.history.push_back(logged);
    }

    fn trim(&mut self) {
        let compacted = self.compacted;
        while self.history.len() > self.history_max || self.history_bytes > self.history_bytes_max {
            let Some(oldest) = self.history.pop_front() else {
                break;
            };
            self.history_bytes -= oldest.cost();
            self.compacted = oldest.event.revision();
        }
        if self.compacted != compacted {
            for topic in &self.topics {
                topic.trim(self.compacted);
            }
        }
    }

    /// The damaged object that holds a key, if no object has replaced it.
    pub(crate) fn held(&self, key: &str) -> Option<&Quarantined> {
        self.held.get(key)
    }

    /// Releases the keys under which objects were written; returns the damaged records that they
    /// replace.
    pub(crate) fn replaced(&mut self, changes: &ObjectChanges) -> Vec<Quarantined> {
        if self.held.is_empty() {
            return Vec::new();
        }
        let written = changes.iter().filter(|(_, change)| change.is_some());
        let keys = written.map(|(key, _)| key);
        keys.filter_map(|key| self.held.remove(&**key)).collect()
    }

    /// Publishes a flushed group of changes.
    pub(crate) fn publish(&mut self, changes: ObjectChanges, events: Vec<Event>, digest: u64) {
        self.digest = digest;
        self.topics.retain(|topic| Arc::strong_count(topic) > 1);
        for topic in &self.topics {
            topic.publish(&events);
        }
        let mut before: HashMap<Arc<str>, Option<Arc<Entry>>> = HashMap::new();
        for event in events {
            self.revision = event.revision();
            let key = Arc::clone(&event.entry.key);
            let after = match event.kind {
                EventKind::Deleted => None,
                EventKind::Added | EventKind::Modified => Some(Arc::clone(&event.entry)),
            };
            let previous = match before.insert(Arc::clone(&key), after) {
                Some(previous) => previous,
                None => self.objects.get(&key).cloned(),
            };
            self.remember(event, previous);
        }
        for (key, change) in changes {
            let before = match &change {
                Some(entry) => self.objects.insert(key, Arc::clone(entry)),
                None => self.objects.remove(&key),
            };
            self.sizes.change(before.as_deref(), change.as_deref());
        }
        self.trim();
    }

    /// Ends all watches: the store is closing.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        for topic in &self.topics {
            topic.close();
        }
    }

    /// The events under a prefix after `compacted`, shared by all watches of the prefix.
    pub(crate) fn topic(&mut self, prefix: &str) -> Arc<Topic> {
        if let Some(topic) = self.topics.iter().find(|topic| topic.prefix() == prefix) {
            return Arc::clone(topic);
        }
        let events = self
            .history
            .iter()
            .filter(|logged| logged.event.entry.key.starts_with(prefix))
            .map(|logged| logged.event.clone())
            .collect();
        let topic = Arc::new(Topic::new(prefix, events, self.compacted, self.closed));
        self.topics.push(Arc::clone(&topic));
        topic
    }

    /// Refuses revisions that the history does not contain.
    pub(crate) fn check_reach(&self, asked: Revision) -> Result<(), WatchError> {
        if asked < self.compacted {
            return Err(WatchError::Expired {
                oldest: self.compacted,
            });
        }
        if asked > self.revision {
            return Err(WatchError::Ahead {
                asked,
                current: self.revision,
            });
        }
        Ok(())
    }

    /// The current list.
    pub(crate) fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> ListPage {
        page(
            overlaid(&self.objects, &ObjectChanges::new(), prefix, after),
            self.revision,
            limit,
        )
    }

    /// The list at an earlier revision: later changes are undone.
    pub(crate) fn list_at(
        &self,
        revision: Revision,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<ListPage, WatchError> {
        self.check_reach(revision)?;
        let mut undone = ObjectChanges::new();
        let start = self
            .history
            .partition_point(|logged| logged.event.revision() <= revision);
        for logged in self.history.range(start..) {
            let key = &logged.event.entry.key;
            if !key.starts_with(prefix) || undone.contains_key(key) {
                continue;
            }
            if logged.before.is_none() && logged.event.kind != EventKind::Added {
                // The earlier state was written before the server's last start.
                return Err(WatchError::Expired {
                    oldest: self.compacted,
                });
            }
            undone.insert(Arc::clone(key), logged.before.clone());
        }
        Ok(page(
            overlaid(&self.objects, &undone, prefix, after),
            revision,
            limit,
        ))
    }
}

fn page<'a>(
    mut entries: impl Iterator<Item = &'a Arc<Entry>>,
    revision: Revision,
    limit: usize,
) -> ListPage {
    ListPage {
        entries: entries.by_ref().take(limit).cloned().collect(),
        revision,
        remaining: entries.count(),
    }
}

/// The objects under a prefix after a key, with some of them changed, in key order.
pub(crate) fn overlaid<'a>(
    objects: &'a Objects,
    changes: &'a ObjectChanges,
    prefix: &'a str,
    after: Option<&str>,
) -> impl Iterator<Item = &'a Arc<Entry>> {
    let start = match after {
        Some(after) if after >= prefix => Bound::Excluded(after),
        _ => Bound::Included(prefix),
    };
    let range = (start, Bound::Unbounded);
    let mut base = objects
        .range::<str, _>(range)
        .take_while(move |(key, _)| key.starts_with(prefix))
        .peekable();
    let mut over = changes
        .range::<str, _>(range)
        .take_while(move |(key, _)| key.starts_with(prefix))
        .peekable();
    std::iter::from_fn(move || {
        loop {
            let changed = match (base.peek(), over.peek()) {
                (None, None) => return None,
                (Some(_), None) => false,
                (None, Some(_)) => true,
                (Some((base_key, _)), Some((over_key, _))) => over_key <= base_key,
            };
            if !changed {
                return base.next().map(|(_, entry)| entry);
            }
            let (key, change) = over.next()?;
            if base.peek().is_some_and(|(base_key, _)| *base_key == key) {
                base.next();
            }
            if let Some(entry) = change {
                return Some(entry);
            }
        }
    })
}
