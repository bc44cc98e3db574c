//! Owns the bytes of a record: how an object, a range of history and the store's own state are
//! encoded and decoded. It does no disk I/O. Every record contains its checksum and its length, so
//! that damage is detected.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};

use crate::entry::{Entry, EntryMeta, Event, EventKind, Revision};

/// The checksum and the length that every record begins with.
pub(crate) const HEADER: usize = 8;

/// Why a record, or a range of records, is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Broken {
    #[error("the record is shorter than its header")]
    Header,
    #[error("the record's length does not match its header")]
    Length,
    #[error("the record's checksum does not match its content")]
    Checksum,
    #[error("the record ends within a field")]
    CutShort,
    #[error("a text of the record is not UTF-8")]
    NotText,
    #[error("the record has an event of an unknown kind")]
    EventKind,
    #[error("the record has an event with an invalid previous state")]
    PreviousState,
    #[error("the record has bytes after its last event")]
    Trailing,
    #[error("the record's key is not a revision")]
    KeyNotRevision,
    #[error("a revision is missing in the record")]
    RevisionMissing,
    #[error("the revisions after the record are missing")]
    LaterMissing,
    #[error("a part of the record is missing")]
    PartMissing,
}

/// Begins a record; [`sealed`] ends it.
fn begun(capacity: usize) -> Vec<u8> {
    let mut record = Vec::with_capacity(HEADER + capacity);
    record.put_bytes(0, HEADER);
    record
}

/// Fills in the record's checksum, which covers `name` too so that no record can stand
/// in for another.
fn sealed(mut record: Vec<u8>, name: &[u8]) -> (Vec<u8>, u32) {
    let length = u32::try_from(record.len() - HEADER).expect("a record is far below 4 GiB");
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&length.to_be_bytes());
    hasher.update(name);
    hasher.update(&record[HEADER..]);
    let crc = hasher.finalize();
    record[..4].copy_from_slice(&crc.to_be_bytes());
    record[4..HEADER].copy_from_slice(&length.to_be_bytes());
    (record, crc)
}

/// The record's content, after its checksum and its length were verified.
fn opened(mut record: Bytes, name: &[u8]) -> Result<(Bytes, u32), Broken> {
    if record.len() < HEADER {
        return Err(Broken::Header);
    }
    let crc = record.get_u32();
    let length = record.get_u32();
    if length as usize != record.len() {
        return Err(Broken::Length);
    }
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&length.to_be_bytes());
    hasher.update(name);
    hasher.update(&record);
    if hasher.finalize() != crc {
        return Err(Broken::Checksum);
    }
    Ok((record, crc))
}

fn put_bytes(record: &mut Vec<u8>, bytes: &[u8]) {
    record.put_u32(u32::try_from(bytes.len()).expect("a field is far below 4 GiB"));
    record.put_slice(bytes);
}

fn put_map(record: &mut Vec<u8>, map: &BTreeMap<String, String>) {
    record.put_u32(u32::try_from(map.len()).expect("a map is far below 4 Gi entries"));
    for (name, value) in map {
        put_bytes(record, name.as_bytes());
        put_bytes(record, value.as_bytes());
    }
}

fn put_meta(record: &mut Vec<u8>, meta: &EntryMeta) {
    put_map(record, &meta.labels);
    put_map(record, &meta.fields);
}

fn take_u8(record: &mut Bytes) -> Result<u8, Broken> {
    record.try_get_u8().map_err(|_| Broken::CutShort)
}

fn take_u32(record: &mut Bytes) -> Result<u32, Broken> {
    record.try_get_u32().map_err(|_| Broken::CutShort)
}

fn take_u64(record: &mut Bytes) -> Result<u64, Broken> {
    record.try_get_u64().map_err(|_| Broken::CutShort)
}

fn take_bytes(record: &mut Bytes) -> Result<Bytes, Broken> {
    let length = take_u32(record)? as usize;
    if length > record.len() {
        return Err(Broken::CutShort);
    }
    Ok(record.split_to(length))
}

fn take_string(record: &mut Bytes) -> Result<String, Broken> {
    String::from_utf8(take_bytes(record)?.to_vec()).map_err(|_| Broken::NotText)
}

fn take_map(record: &mut Bytes) -> Result<BTreeMap<String, String>, Broken> {
    let count = take_u32(record)?;
    let mut map = BTreeMap::new();
    for _ in 0..count {
        map.insert(take_string(record)?, take_string(record)?);
    }
    Ok(map)
}

fn take_meta(record: &mut Bytes) -> Result<EntryMeta, Broken> {
    Ok(EntryMeta {
        labels: take_map(record)?,
        fields: take_map(record)?,
    })
}

fn meta_size(meta: &EntryMeta) -> usize {
    let text = |map: &BTreeMap<String, String>| -> usize {
        map.iter().map(|(n, v)| n.len() + v.len() + 8).sum()
    };
    8 + text(&meta.labels) + text(&meta.fields)
}

/// An object's record and its checksum.
pub(crate) fn object(
    key: &str,
    revision: Revision,
    meta: &EntryMeta,
    value: &[u8],
) -> (Vec<u8>, u32) {
    let mut record = begun(8 + meta_size(meta) + value.len());
    record.put_u64(revision.get());
    put_meta(&mut record, meta);
    record.put_slice(value);
    sealed(record, key.as_bytes())
}

/// Decodes an object's record; `parts` is the number of parts that the record was read from.
pub(crate) fn read_object(key: &str, record: Bytes, parts: u16) -> Result<Entry, Broken> {
    let (mut content, crc) = opened(record, key.as_bytes())?;
    let revision = Revision::new(take_u64(&mut content)?);
    let meta = take_meta(&mut content)?;
    Ok(Entry {
        key: key.into(),
        // Copies the bytes: a slice would keep the whole record allocated.
        value: Bytes::copy_from_slice(&content),
        revision,
        meta: Arc::new(meta),
        crc,
        parts,
    })
}

/// The record of one commit's events, which follow one another without a gap.
pub(crate) fn history(events: &[Event]) -> Vec<u8> {
    let size = events
        .iter()
        .map(|event| event.entry.value.len() + 256)
        .sum();
    let mut record = begun(size);
    record.put_u32(u32::try_from(events.len()).expect("a commit has few events"));
    for event in events {
        record.put_u8(match event.kind {
            EventKind::Added => 0,
            EventKind::Modified => 1,
            EventKind::Deleted => 2,
        });
        record.put_u64(event.entry.revision.get());
        put_bytes(&mut record, event.entry.key.as_bytes());
        put_meta(&mut record, &event.entry.meta);
        match &event.previous {
            None => record.put_u8(0),
            // Most changes do not change the fields that selectors use.
            Some(previous) if **previous == *event.entry.meta => record.put_u8(1),
            Some(previous) => {
                record.put_u8(2);
                put_meta(&mut record, previous);
            }
        }
        put_bytes(&mut record, &event.entry.value);
    }
    sealed(record, b"history").0
}

/// The events of a stretch of history.
pub(crate) fn read_history(record: Bytes) -> Result<Vec<Event>, Broken> {
    let (mut content, _) = opened(record, b"history")?;
    let count = take_u32(&mut content)?;
    let mut events = Vec::new();
    for _ in 0..count {
        let kind = match take_u8(&mut content)? {
            0 => EventKind::Added,
            1 => EventKind::Modified,
            2 => EventKind::Deleted,
            _ => return Err(Broken::EventKind),
        };
        let revision = Revision::new(take_u64(&mut content)?);
        let key = take_string(&mut content)?;
        let meta = Arc::new(take_meta(&mut content)?);
        let previous = match take_u8(&mut content)? {
            0 => None,
            1 => Some(Arc::clone(&meta)),
            2 => Some(Arc::new(take_meta(&mut content)?)),
            _ => return Err(Broken::PreviousState),
        };
        let value = Bytes::copy_from_slice(&take_bytes(&mut content)?);
        events.push(Event {
            kind,
            entry: Arc::new(Entry {
                key: key.into(),
                value,
                revision,
                meta,
                crc: 0,
                parts: 0,
            }),
            previous,
        });
    }
    if content.is_empty() {
        Ok(events)
    } else {
        Err(Broken::Trailing)
    }
}

/// The store's own state, written with every commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoreState {
    /// The last change's revision.
    pub(crate) revision: Revision,
    /// How many objects there are.
    pub(crate) objects: u64,
    /// The sum of [`fingerprint`] over all objects. It reveals an object that disappeared or
    /// returned to an earlier state.
    pub(crate) digest: u64,
    /// The first revision in the history on disk.
    pub(crate) history_from: Revision,
}

/// The record of the store's own state.
pub(crate) fn state(state: &StoreState) -> Vec<u8> {
    let mut record = begun(32);
    record.put_u64(state.revision.get());
    record.put_u64(state.objects);
    record.put_u64(state.digest);
    record.put_u64(state.history_from.get());
    sealed(record, b"state").0
}

/// The store's own state from its record.
pub(crate) fn read_state(record: Bytes) -> Result<StoreState, Broken> {
    let (mut content, _) = opened(record, b"state")?;
    Ok(StoreState {
        revision: Revision::new(take_u64(&mut content)?),
        objects: take_u64(&mut content)?,
        digest: take_u64(&mut content)?,
        history_from: Revision::new(take_u64(&mut content)?),
    })
}

/// The contribution of one object to the store's digest.
pub(crate) fn fingerprint(entry: &Entry) -> u64 {
    // splitmix64's finaliser: sums of neighbouring revisions must not cancel out.
    let mut x = (entry.revision.get() << 32) ^ u64::from(entry.crc) ^ (entry.revision.get() >> 32);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta() -> EntryMeta {
        EntryMeta {
            labels: [("app".to_owned(), "web".to_owned())].into(),
            fields: [("status.phase".to_owned(), "Running".to_owned())].into(),
        }
    }

    #[test]
    fn an_object_reads_back_as_it_was_written() {
        let (record, crc) = object("/core/pods/a/b", Revision::new(7), &meta(), b"{}");
        let entry = read_object("/core/pods/a/b", record.into(), 1).unwrap();
        assert_eq!(&*entry.key, "/core/pods/a/b");
        assert_eq!(entry.revision, Revision::new(7));
        assert_eq!(*entry.meta, meta());
        assert_eq!(&entry.value[..], b"{}");
        assert_eq!(entry.crc, crc);
    }

    #[test]
    fn any_flipped_bit_of_an_object_is_noticed() {
        let (record, _) = object("/k", Revision::new(7), &meta(), b"{\"a\":1}");
        for bit in 0..record.len() * 8 {
            let mut bad = record.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(read_object("/k", bad.into(), 1).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_record_cannot_stand_in_for_another_key() {
        let (record, _) = object("/a", Revision::new(7), &meta(), b"{}");
        assert!(matches!(
            read_object("/b", record.into(), 1),
            Err(Broken::Checksum)
        ));
    }

    #[test]
    fn a_record_cut_short_anywhere_is_noticed() {
        let (record, _) = object("/k", Revision::new(7), &meta(), b"{}");
        for length in 0..record.len() {
            assert!(read_object("/k", record[..length].to_vec().into(), 1).is_err());
        }
    }

    #[test]
    fn history_reads_back_with_its_previous_states() {
        let entry = |revision| {
            Arc::new(Entry {
                key: "/k".into(),
                value: Bytes::from_static(b"{}"),
                revision: Revision::new(revision),
                meta: Arc::new(meta()),
                crc: 0,
                parts: 0,
            })
        };
        let events = [
            (EventKind::Added, entry(1), None),
            (EventKind::Modified, entry(2), Some(Arc::new(meta()))),
            (EventKind::Deleted, entry(3), Some(Arc::default())),
        ]
        .map(|(kind, entry, previous)| Event {
            kind,
            entry,
            previous,
        });
        let read = read_history(history(&events).into()).unwrap();
        assert_eq!(read.len(), 3);
        for (a, b) in events.iter().zip(&read) {
            assert_eq!(a.kind, b.kind);
            assert_eq!(a.revision(), b.revision());
            assert_eq!(a.entry.value, b.entry.value);
            assert_eq!(a.entry.meta, b.entry.meta);
            assert_eq!(a.previous, b.previous);
        }
    }

    #[test]
    fn the_state_reads_back() {
        let written = StoreState {
            revision: Revision::new(9),
            objects: 3,
            digest: u64::MAX,
            history_from: Revision::new(2),
        };
        assert_eq!(read_state(state(&written).into()), Ok(written));
    }
}
