//! Owns the keys of the records on disk, and how a record is cut into parts. Pure.
//!
//! One sled tree contains everything, so that a group is one atomic batch:
//!
//! - `o` + key + part number: an object's record
//! - `e` + first revision + part number: the events of one group
//! - `m`: the store's own state
//!
//! Records are cut into parts so that no page of sled's exceeds the size that sled keeps in its
//! log; sled writes larger pages to files that it does not sync.

use crate::entry::Revision;

pub(crate) const OBJECT: u8 = b'o';
pub(crate) const HISTORY: u8 = b'e';
pub(crate) const STATE: &[u8] = b"m";

/// The maximum number of bytes in one sled value. A leaf has at most 17 values, and a leaf larger
/// than a quarter of a segment leaves the log: 17 * 24 KiB < 2 MiB / 4.
const PART_MAX: usize = 24 << 10;

pub(crate) fn object_key(key: &str, part: u16) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(key.len() + 3);
    bytes.push(OBJECT);
    bytes.extend_from_slice(key.as_bytes());
    bytes.extend_from_slice(&part.to_be_bytes());
    bytes
}

/// The key of one part of a record whose parts' keys begin with `name`.
pub(crate) fn part_key(name: &[u8], part: u16) -> Vec<u8> {
    [name, &part.to_be_bytes()].concat()
}

pub(crate) fn history_key(first: Revision, part: u16) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(11);
    bytes.push(HISTORY);
    bytes.extend_from_slice(&first.get().to_be_bytes());
    bytes.extend_from_slice(&part.to_be_bytes());
    bytes
}

/// The number of parts that a record of this many bytes takes.
pub(crate) fn part_count(bytes: usize) -> u16 {
    u16::try_from(bytes.div_ceil(PART_MAX)).expect("a record is below 1.5 GiB")
}

pub(crate) fn parts(record: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    (0..).zip(record.chunks(PART_MAX))
}
