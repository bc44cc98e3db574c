//! The log of the present hour: frames with a length and a checksum each. Values of the same 15 seconds share a frame; the
//! first frame that has a series also has its name. A frame that was not written completely ends the log.

use crate::series::Series;

const MAGIC: [u8; 8] = *b"MSTRLOG1";
/// Bytes before the first frame: the magic number and the hour.
pub const BEGIN_BYTES: usize = 16;
/// Bytes before a frame's content: its length and its checksum.
const HEAD_BYTES: usize = 8;
/// The longest content of a frame: all series with the longest names.
const FRAME_MAX: usize = 16 << 20;

/// The values of 15 seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogFrame {
    /// The 15 seconds of the hour, from 0 to 239.
    pub tick: u16,
    /// The series that are new, with the numbers that stand for them in this log.
    pub names: Vec<(u32, Series)>,
    /// Numbers of series and their values.
    pub values: Vec<(u32, f32)>,
}

/// Why bytes are no log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// It has not even a beginning.
    #[error("its first {BEGIN_BYTES} bytes are missing")]
    Short,
    /// The beginning is another file's.
    #[error("it does not begin as a log of measurements")]
    Foreign,
}

/// What was read.
#[derive(Clone, Debug, PartialEq)]
pub struct LogRead {
    /// The hour, counted from 1970.
    pub hour: i64,
    /// The frames.
    pub frames: Vec<LogFrame>,
    /// Bytes until the end of the last valid frame. What follows was not written completely, or is damaged.
    pub valid: usize,
}

/// The beginning of an hour's log.
pub fn begin(hour: i64) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(hour.to_le_bytes());
    bytes
}

/// The bytes of a frame.
pub fn encode(frame: &LogFrame) -> Vec<u8> {
    let mut content = frame.tick.to_le_bytes().to_vec();
    let count = |length: usize| u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes();
    content.extend(count(frame.names.len()));
    for (id, series) in &frame.names {
        let name = series.to_string();
        content.extend(id.to_le_bytes());
        content.extend(u16::try_from(name.len()).unwrap_or(0).to_le_bytes());
        content.extend(name.as_bytes());
    }
    content.extend(count(frame.values.len()));
    for (id, value) in &frame.values {
        content.extend(id.to_le_bytes());
        content.extend(value.to_le_bytes());
    }
    let mut bytes = count(content.len()).to_vec();
    bytes.extend(crc32fast::hash(&content).to_le_bytes());
    bytes.extend(content);
    bytes
}

/// Reads a log until its end, or until the first frame that is incomplete or damaged.
///
/// # Errors
/// The bytes are no log.
pub fn read(bytes: &[u8]) -> Result<LogRead, LogError> {
    let (magic, rest) = bytes.split_first_chunk::<8>().ok_or(LogError::Short)?;
    if *magic != MAGIC {
        return Err(LogError::Foreign);
    }
    let (hour, mut rest) = rest.split_first_chunk::<8>().ok_or(LogError::Short)?;
    let mut read = LogRead {
        hour: i64::from_le_bytes(*hour),
        frames: Vec::new(),
        valid: BEGIN_BYTES,
    };
    while let Some((content, after)) = framed(rest) {
        let Some(frame) = decode(content) else { break };
        read.frames.push(frame);
        read.valid += HEAD_BYTES + content.len();
        rest = after;
    }
    Ok(read)
}

/// The content of the first frame, and what follows it.
fn framed(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (crc, rest) = rest.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    if length > FRAME_MAX {
        return None;
    }
    let (content, after) = rest.split_at_checked(length)?;
    (crc32fast::hash(content) == u32::from_le_bytes(*crc)).then_some((content, after))
}

fn decode(content: &[u8]) -> Option<LogFrame> {
    let mut rest = content;
    let mut frame = LogFrame {
        tick: u16::from_le_bytes(take(&mut rest)?),
        ..LogFrame::default()
    };
    for _ in 0..u32::from_le_bytes(take(&mut rest)?) {
        let id = u32::from_le_bytes(take(&mut rest)?);
        let length = usize::from(u16::from_le_bytes(take(&mut rest)?));
        let (name, after) = rest.split_at_checked(length)?;
        rest = after;
        // A later version may know more series.
        if let Ok(series) = std::str::from_utf8(name).ok()?.parse() {
            frame.names.push((id, series));
        }
    }
    for _ in 0..u32::from_le_bytes(take(&mut rest)?) {
        let id = u32::from_le_bytes(take(&mut rest)?);
        frame
            .values
            .push((id, f32::from_le_bytes(take(&mut rest)?)));
    }
    rest.is_empty().then_some(frame)
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, after) = rest.split_first_chunk::<N>()?;
    *rest = after;
    Some(*first)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::series::{Metric, Subject};

    proptest! {
        #[test]
        fn no_bytes_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&bytes);
            let mut log = begin(3);
            log.append(&mut bytes);
            prop_assert!(read(&log).is_ok());
        }
    }

    #[test]
    fn a_damaged_frame_ends_the_log() {
        let frame = LogFrame {
            tick: 3,
            names: vec![(0, Subject::Cluster.series(Metric::Gpus))],
            values: vec![(0, 8.0)],
        };
        let mut bytes = begin(4);
        bytes.extend(encode(&frame));
        let end = bytes.len();
        bytes.extend(encode(&frame));
        assert_eq!(read(&bytes).unwrap().frames.len(), 2);
        bytes[end + 12] ^= 1;
        let found = read(&bytes).unwrap();
        assert_eq!((found.frames, found.valid), (vec![frame], end));
        assert_eq!(read(b"short"), Err(LogError::Short));
        assert_eq!(read(&[7; 40]), Err(LogError::Foreign));
    }
}
