//! Owns the types that the store returns: revisions, entries, events, pages. They are plain data,
//! without disk access or locks.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

/// A point in the store's history. Every change of an object takes the next revision; zero is the
/// empty store before the first write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(u64);

impl Revision {
    /// The revision before the first change.
    pub const ZERO: Revision = Revision(0);

    /// The revision with this number.
    #[must_use]
    pub const fn new(number: u64) -> Revision {
        Revision(number)
    }

    /// The revision's number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    pub(crate) const fn next(self) -> Revision {
        Revision(self.0 + 1)
    }
}

impl From<u64> for Revision {
    fn from(number: u64) -> Revision {
        Revision(number)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The fields that selectors use, kept with the object so that a list does not parse it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryMeta {
    /// The object's labels.
    pub labels: BTreeMap<String, String>,
    /// The values of the fields that field selectors may name, by path.
    pub fields: BTreeMap<String, String>,
}

/// One object as it was at its last write.
#[derive(Debug)]
pub struct Entry {
    /// The object's key.
    pub key: Arc<str>,
    /// The object's final bytes (JSON).
    pub value: Bytes,
    /// The revision of the last write.
    pub revision: Revision,
    /// The fields that selectors use.
    pub meta: Arc<EntryMeta>,
    /// The checksum of the record on disk.
    pub(crate) crc: u32,
    /// The number of parts of the record on disk.
    pub(crate) parts: u16,
}

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The key was free before.
    Added,
    /// The object replaced an earlier state.
    Modified,
    /// The object was deleted; the event's entry is its last state at the deletion's revision.
    Deleted,
}

/// One change, as a watcher receives it.
#[derive(Clone, Debug)]
pub struct Event {
    /// The kind of change.
    pub kind: EventKind,
    /// The object after the change (its last state where it was deleted).
    pub entry: Arc<Entry>,
    /// The selector fields before the change; none if the object was added.
    pub previous: Option<Arc<EntryMeta>>,
}

impl Event {
    /// The revision of the change.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.entry.revision
    }
}

/// A part of a list, consistent with one revision.
#[derive(Clone, Debug)]
pub struct ListPage {
    /// The objects in the order of their keys.
    pub entries: Vec<Arc<Entry>>,
    /// The revision that the list shows.
    pub revision: Revision,
    /// How many objects of the list come after this page.
    pub remaining: usize,
}
