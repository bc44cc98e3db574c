//! A file of sealed values: a directory of names, and a column of bytes for each. Directory and columns have checksums; a
//! reader reads the head, the directory, and of the columns those that it needs.

use std::collections::BTreeMap;

const MAGIC: [u8; 8] = *b"MSTRSEG1";
/// Bytes of the head: magic number, length and checksum of the directory.
pub const HEAD_BYTES: usize = 16;
/// The longest directory: [`crate::SERIES_MAX`] series with names of 560 bytes.
pub const DIRECTORY_MAX: usize = 12 << 20;

/// Why a file's bytes cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SegmentError {
    /// It does not begin as such a file.
    #[error("it does not begin as a file of measurements")]
    Foreign,
    /// The directory is damaged.
    #[error("its directory is damaged")]
    Directory,
    /// A column is damaged.
    #[error("its column {name:?} is damaged")]
    Column {
        /// The series.
        name: String,
    },
}

/// Where a column is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnPlace {
    /// Bytes from the file's beginning.
    pub offset: u64,
    /// Its length in bytes.
    pub length: usize,
    crc: u32,
}

/// The length and the checksum of the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHead {
    /// Bytes of the directory, which follows the head.
    pub directory: usize,
    crc: u32,
}

/// The bytes of a file with these columns.
pub fn encode(columns: &BTreeMap<String, Vec<u8>>) -> Vec<u8> {
    let number = |length: usize| u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes();
    let mut directory = Vec::new();
    for (name, bytes) in columns {
        directory.extend(u16::try_from(name.len()).unwrap_or(0).to_le_bytes());
        directory.extend(name.as_bytes());
        directory.extend(number(bytes.len()));
        directory.extend(crc32fast::hash(bytes).to_le_bytes());
    }
    let mut all = MAGIC.to_vec();
    all.extend(number(directory.len()));
    all.extend(crc32fast::hash(&directory).to_le_bytes());
    all.extend(directory);
    columns.values().for_each(|bytes| all.extend(bytes));
    all
}

/// Reads the head.
///
/// # Errors
/// The file is another one.
pub fn head(bytes: &[u8; HEAD_BYTES]) -> Result<SegmentHead, SegmentError> {
    let [magic @ .., a, b, c, d, e, f, g, h] = *bytes;
    if magic != MAGIC {
        return Err(SegmentError::Foreign);
    }
    let directory = usize::try_from(u32::from_le_bytes([a, b, c, d])).unwrap_or(usize::MAX);
    if directory > DIRECTORY_MAX {
        return Err(SegmentError::Directory);
    }
    Ok(SegmentHead {
        directory,
        crc: u32::from_le_bytes([e, f, g, h]),
    })
}

/// The places of the columns that `wanted` admits.
///
/// # Errors
/// The directory is damaged.
pub fn places(
    head: SegmentHead,
    directory: &[u8],
    wanted: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, ColumnPlace>, SegmentError> {
    if directory.len() != head.directory || crc32fast::hash(directory) != head.crc {
        return Err(SegmentError::Directory);
    }
    let mut found = BTreeMap::new();
    let mut offset = (HEAD_BYTES + head.directory) as u64;
    let mut rest = directory;
    while !rest.is_empty() {
        let (name, place) = entry(&mut rest, offset).ok_or(SegmentError::Directory)?;
        offset = offset.saturating_add(place.length as u64);
        if wanted(name) {
            found.insert(name.to_owned(), place);
        }
    }
    Ok(found)
}

fn entry<'a>(rest: &mut &'a [u8], offset: u64) -> Option<(&'a str, ColumnPlace)> {
    let (length, after) = rest.split_first_chunk::<2>()?;
    let (name, after) = after.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
    let (bytes, after) = after.split_first_chunk::<4>()?;
    let (crc, after) = after.split_first_chunk::<4>()?;
    *rest = after;
    let place = ColumnPlace {
        offset,
        length: usize::try_from(u32::from_le_bytes(*bytes)).ok()?,
        crc: u32::from_le_bytes(*crc),
    };
    Some((std::str::from_utf8(name).ok()?, place))
}

impl ColumnPlace {
    /// Checks the column's bytes.
    ///
    /// # Errors
    /// They are not those that were written.
    pub fn check(&self, name: &str, bytes: &[u8]) -> Result<(), SegmentError> {
        if bytes.len() == self.length && crc32fast::hash(bytes) == self.crc {
            return Ok(());
        }
        let name = name.to_owned();
        Err(SegmentError::Column { name })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn columns() -> impl Strategy<Value = BTreeMap<String, Vec<u8>>> {
        let bytes = proptest::collection::vec(any::<u8>(), 0..20);
        proptest::collection::btree_map("[a-z/]{1,12}", bytes, 0..8)
    }

    fn read(bytes: &[u8]) -> Result<BTreeMap<String, Vec<u8>>, SegmentError> {
        let first = bytes.first_chunk().ok_or(SegmentError::Foreign)?;
        let head = head(first)?;
        let directory = bytes.get(HEAD_BYTES..HEAD_BYTES + head.directory);
        let found = places(head, directory.ok_or(SegmentError::Directory)?, |_| true)?;
        let column = |(name, place): (String, ColumnPlace)| {
            let at = usize::try_from(place.offset).unwrap();
            let bytes = bytes.get(at..at + place.length).unwrap_or_default();
            place.check(&name, bytes)?;
            Ok((name, bytes.to_vec()))
        };
        found.into_iter().map(column).collect()
    }

    proptest! {
        #[test]
        fn files_are_read_as_written_and_no_damage_panics(columns in columns(), at in 0usize..400, cut in any::<bool>()) {
            let written = encode(&columns);
            prop_assert_eq!(read(&written).unwrap(), columns.clone());
            let mut damaged = written.clone();
            if cut {
                damaged.truncate(at.min(written.len()));
            } else if at < written.len() {
                damaged[at] ^= 4;
            }
            if damaged != written {
                prop_assert_ne!(read(&damaged).ok(), Some(columns));
            }
        }
    }
}
