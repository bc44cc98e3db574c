//! The frames of SPDY/3.1 as far as port forwarding needs them, and its compressed header blocks. Pure.
//!
//! A header block is part of one zlib stream for each direction, which begins with a dictionary that the protocol
//! fixes. Read blocks are inflated; written ones are stored without compression, which every zlib reader takes.

use std::collections::BTreeMap;

use bytes::Bytes;
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress, inflate_flags};

/// Bytes before a frame's content.
const HEAD: usize = 8;
/// Longest content of a frame that is read, in bytes; kubectl's have at most 32 KiB.
pub(super) const FRAME_BYTES_MAX: usize = 1 << 20;
/// Most bytes of one header block, inflated.
const HEADER_BYTES_MAX: usize = 16 * 1024;
/// The window of the compression, in bytes.
const WINDOW: usize = 32 * 1024;
/// The version in control frames.
const VERSION: u16 = 3;
/// The flag of a stream's last frame.
const FIN: u8 = 1;
/// The flag in a zlib stream's head: a dictionary comes first.
const HAS_DICTIONARY: u8 = 0x20;

const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const HEADERS: u16 = 8;
/// The reason of a reset: the stream was refused before anything was done with it.
const REFUSED_STREAM: u32 = 3;

/// The dictionary's words, each after its length in four bytes.
const WORDS: [&str; 65] = [
    "options",
    "head",
    "post",
    "put",
    "delete",
    "trace",
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "accept-ranges",
    "age",
    "allow",
    "authorization",
    "cache-control",
    "connection",
    "content-base",
    "content-encoding",
    "content-language",
    "content-length",
    "content-location",
    "content-md5",
    "content-range",
    "content-type",
    "date",
    "etag",
    "expect",
    "expires",
    "from",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "last-modified",
    "location",
    "max-forwards",
    "pragma",
    "proxy-authenticate",
    "proxy-authorization",
    "range",
    "referer",
    "retry-after",
    "server",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "vary",
    "via",
    "warning",
    "www-authenticate",
    "method",
    "get",
    "status",
    "200 OK",
    "version",
    "HTTP/1.1",
    "url",
    "public",
    "set-cookie",
    "keep-alive",
    "origin",
];
/// The rest of the dictionary.
const REST: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505\
    203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden\
    404 Not Found500 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug \
    Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,\
    application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=\
    utf-8charset=iso-8859-1,utf-,*,enq=0.";

/// A frame with a meaning here.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// The client opens a stream.
    Open {
        stream: u32,
        headers: BTreeMap<String, String>,
    },
    /// A piece of a stream.
    Data {
        stream: u32,
        data: Bytes,
        last: bool,
    },
    /// The client ends a stream.
    Reset { stream: u32 },
    /// The client asks for the same number back.
    Ping(u32),
}

/// Why bytes are no SPDY.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum SpdyError {
    #[error("a control frame of version {0}, not 3")]
    Version(u16),
    #[error("a frame of {0} bytes, more than 1 MiB")]
    TooLong(usize),
    #[error("a control frame is shorter than its fields")]
    TooShort,
    #[error("a header block cannot be inflated, or has more than 16 KiB")]
    Inflate,
    #[error("a header block is not a list of names and values")]
    Headers,
}

/// Reads a client's frames out of bytes that come in any pieces.
#[derive(Default)]
pub(super) struct FrameReader {
    received: Vec<u8>,
    blocks: BlockReader,
}

impl FrameReader {
    /// The frames that are whole now.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Result<Vec<Frame>, SpdyError> {
        self.received.extend_from_slice(bytes);
        let mut frames = Vec::new();
        let mut begin = 0;
        while let Some(head) = self.received.get(begin..begin + HEAD) {
            let length =
                usize::from(head[5]) << 16 | usize::from(head[6]) << 8 | usize::from(head[7]);
            if length > FRAME_BYTES_MAX {
                return Err(SpdyError::TooLong(length));
            }
            let end = begin + HEAD + length;
            let Some(content) = self.received.get(begin + HEAD..end) else {
                break;
            };
            let word = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
            let last = head[4] & FIN != 0;
            match control(word)? {
                None => frames.push(Frame::Data {
                    stream: word,
                    data: Bytes::copy_from_slice(content),
                    last,
                }),
                Some(kind) => frames.extend(self.blocks.control(kind, content)?),
            }
            begin = end;
        }
        self.received.drain(..begin);
        Ok(frames)
    }
}

/// The type of a control frame; none for data.
fn control(word: u32) -> Result<Option<u16>, SpdyError> {
    if word >> 31 == 0 {
        return Ok(None);
    }
    let [high, low, kind @ ..] = word.to_be_bytes();
    match u16::from_be_bytes([high & 0x7f, low]) {
        VERSION => Ok(Some(u16::from_be_bytes(kind))),
        other => Err(SpdyError::Version(other)),
    }
}

/// The stream or number at the beginning of a control frame.
fn number(content: &[u8]) -> Result<u32, SpdyError> {
    let first = content.first_chunk::<4>().ok_or(SpdyError::TooShort)?;
    Ok(u32::from_be_bytes(*first) & 0x7fff_ffff)
}

/// Inflates header blocks.
struct BlockReader {
    state: Box<DecompressorOxide>,
    window: Vec<u8>,
    at: usize,
    begun: bool,
}

impl Default for BlockReader {
    fn default() -> BlockReader {
        let mut window = dictionary();
        let at = window.len();
        window.resize(WINDOW, 0);
        BlockReader {
            state: Box::default(),
            window,
            at,
            begun: false,
        }
    }
}

impl BlockReader {
    fn control(&mut self, kind: u16, content: &[u8]) -> Result<Option<Frame>, SpdyError> {
        let frame = match kind {
            SYN_STREAM => {
                let block = content.get(10..).ok_or(SpdyError::TooShort)?;
                Frame::Open {
                    stream: number(content)?,
                    headers: headers(&self.inflate(block)?)?,
                }
            }
            RST_STREAM => Frame::Reset {
                stream: number(content)?,
            },
            PING => {
                let first = content.first_chunk::<4>().ok_or(SpdyError::TooShort)?;
                Frame::Ping(u32::from_be_bytes(*first))
            }
            // Their blocks are part of the stream of compression.
            SYN_REPLY | HEADERS => {
                self.inflate(content.get(4..).ok_or(SpdyError::TooShort)?)?;
                return Ok(None);
            }
            // Settings, windows and a goodbye change nothing here.
            _ => return Ok(None),
        };
        Ok(Some(frame))
    }

    fn inflate(&mut self, mut block: &[u8]) -> Result<Vec<u8>, SpdyError> {
        if !self.begun {
            let (head, rest) = block.split_at_checked(2).ok_or(SpdyError::Inflate)?;
            block = rest;
            if head[1] & HAS_DICTIONARY != 0 {
                block = block.get(4..).ok_or(SpdyError::Inflate)?;
            }
            self.begun = true;
        }
        let mut inflated = Vec::new();
        loop {
            let flags = inflate_flags::TINFL_FLAG_HAS_MORE_INPUT;
            let (status, read, written) =
                decompress(&mut self.state, block, &mut self.window, self.at, flags);
            inflated.extend_from_slice(&self.window[self.at..self.at + written]);
            if inflated.len() > HEADER_BYTES_MAX {
                return Err(SpdyError::Inflate);
            }
            block = &block[read..];
            self.at = (self.at + written) % WINDOW;
            match status {
                TINFLStatus::NeedsMoreInput => return Ok(inflated),
                TINFLStatus::HasMoreOutput => {}
                _ => return Err(SpdyError::Inflate),
            }
        }
    }
}

fn dictionary() -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in WORDS {
        // The longest has 19 characters.
        bytes.extend_from_slice(&[0, 0, 0, u8::try_from(word.len()).unwrap_or(u8::MAX)]);
        bytes.extend_from_slice(word.as_bytes());
    }
    bytes.extend_from_slice(REST.as_bytes());
    bytes
}

fn headers(mut block: &[u8]) -> Result<BTreeMap<String, String>, SpdyError> {
    let mut count = || {
        let (first, rest) = block.split_first_chunk::<4>().ok_or(SpdyError::Headers)?;
        block = rest;
        usize::try_from(u32::from_be_bytes(*first)).map_err(|_| SpdyError::Headers)
    };
    let pairs = count()?;
    let mut found = BTreeMap::new();
    for _ in 0..pairs {
        let mut text = || {
            let (first, rest) = block.split_first_chunk::<4>().ok_or(SpdyError::Headers)?;
            let length =
                usize::try_from(u32::from_be_bytes(*first)).map_err(|_| SpdyError::Headers)?;
            let (text, rest) = rest.split_at_checked(length).ok_or(SpdyError::Headers)?;
            block = rest;
            String::from_utf8(text.to_vec()).map_err(|_| SpdyError::Headers)
        };
        let (name, value) = (text()?, text()?);
        found.insert(name.to_ascii_lowercase(), value);
    }
    Ok(found)
}

/// Writes the server's frames.
#[derive(Default)]
pub(super) struct FrameWriter {
    begun: bool,
}

impl FrameWriter {
    /// Accepts a stream, with no headers.
    pub(super) fn reply(&mut self, stream: u32) -> Bytes {
        let mut content = stream.to_be_bytes().to_vec();
        if !self.begun {
            // The head of a zlib stream without dictionary.
            content.extend_from_slice(&[0x78, 0x01]);
            self.begun = true;
        }
        // A stored block of four bytes, the number of headers, and an empty one, after which readers hand out what they
        // have.
        content.extend_from_slice(&[0, 4, 0, 0xfb, 0xff, 0, 0, 0, 0]);
        content.extend_from_slice(&[0, 0, 0, 0xff, 0xff]);
        control_frame(SYN_REPLY, &content)
    }
}

/// Refuses a stream.
pub(super) fn refusal(stream: u32) -> Bytes {
    let content = [stream.to_be_bytes(), REFUSED_STREAM.to_be_bytes()].concat();
    control_frame(RST_STREAM, &content)
}

/// Gives a number back.
pub(super) fn pong(number: u32) -> Bytes {
    control_frame(PING, &number.to_be_bytes())
}

/// A piece of a stream.
pub(super) fn data(stream: u32, data: &[u8], last: bool) -> Bytes {
    framed(stream, if last { FIN } else { 0 }, data)
}

fn control_frame(kind: u16, content: &[u8]) -> Bytes {
    framed(
        0x8000_0000 | u32::from(VERSION) << 16 | u32::from(kind),
        0,
        content,
    )
}

fn framed(word: u32, flags: u8, content: &[u8]) -> Bytes {
    let mut frame = Vec::with_capacity(HEAD + content.len());
    frame.extend_from_slice(&word.to_be_bytes());
    frame.push(flags);
    // A node's pieces are far below the 16 MiB of this number.
    let length = u32::try_from(content.len())
        .unwrap_or(u32::MAX)
        .to_be_bytes();
    frame.extend_from_slice(&length[1..]);
    frame.extend_from_slice(content);
    frame.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adler32(bytes: &[u8]) -> u32 {
        let (mut a, mut b) = (1_u32, 0_u32);
        for byte in bytes {
            a = (a + u32::from(*byte)) % 65_521;
            b = (b + a) % 65_521;
        }
        b << 16 | a
    }

    #[test]
    fn the_dictionary_is_the_protocols() {
        let bytes = dictionary();
        assert_eq!((bytes.len(), adler32(&bytes)), (1423, 0xe3c6_a7c2));
    }

    const OPENED: &str = "\
        80 03 00 01 00 00 00 3d 00 00 00 01 00 00 00 00 00 00 78 f9 e3 c6 a7 c2 02 25 3a 70 3a 2b 29 4a \
        4d cc 85 16 25 ac a9 a0 80 86 14 cb 45 e0 1c 60 61 60 61 00 a4 39 8b 20 d1 98 09 4a de 8c 06 00 \
        00 00 00 ff ff 80 03 00 01 00 00 00 18 00 00 00 03 00 00 00 00 00 00 c2 aa 19 54 0e 25 12 d6 0b \
        00 00 00 ff ff";

    /// Two frames as a client of Go's spdystream sends them, compressed with the dictionary by zlib.
    fn opened() -> Vec<u8> {
        OPENED
            .split_ascii_whitespace()
            .map(|byte| u8::from_str_radix(byte, 16).unwrap())
            .collect()
    }

    #[test]
    fn streams_that_a_client_opens_are_read_however_they_are_cut() {
        let expected = |stream, kind: &str| Frame::Open {
            stream,
            headers: [("streamtype", kind), ("port", "8080"), ("requestid", "0")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
        };
        for size in [1, 7, 1000] {
            let mut reader = FrameReader::default();
            let mut frames = Vec::new();
            for piece in opened().chunks(size) {
                frames.extend(reader.read(piece).unwrap());
            }
            assert_eq!(frames, [expected(1, "error"), expected(3, "data")]);
        }
    }

    #[test]
    fn data_and_resets_and_pings_are_read() {
        let mut reader = FrameReader::default();
        let bytes = [
            data(3, b"GET", false),
            data(3, b"", true),
            refusal(3),
            pong(7),
        ]
        .concat();
        let piece = |data: &'static [u8], last| Frame::Data {
            stream: 3,
            data: Bytes::from_static(data),
            last,
        };
        let expected = [
            piece(b"GET", false),
            piece(b"", true),
            Frame::Reset { stream: 3 },
            Frame::Ping(7),
        ];
        assert_eq!(reader.read(&bytes).unwrap(), expected);
    }

    #[test]
    fn what_is_no_spdy_is_refused() {
        let read = |bytes: &[u8]| FrameReader::default().read(bytes).unwrap_err();
        assert_eq!(read(&[0x80, 2, 0, 1, 0, 0, 0, 0]), SpdyError::Version(2));
        assert_eq!(
            read(&[0, 0, 0, 1, 0, 0x10, 0, 1]),
            SpdyError::TooLong(FRAME_BYTES_MAX + 1)
        );
        assert_eq!(read(&[0x80, 3, 0, 6, 0, 0, 0, 0]), SpdyError::TooShort);
        assert_eq!(
            read(&[0x80, 3, 0, 1, 0, 0, 0, 3, 1, 2, 3]),
            SpdyError::TooShort
        );
        let mut nonsense = opened();
        nonsense[30..].fill(0xff);
        assert!(FrameReader::default().read(&nonsense).is_err());
    }

    /// What a client may send: the two opened streams, then any control frame, data, and the rest.
    fn sent(kind: u16, content: &[u8], stream: u32) -> Vec<u8> {
        [
            opened(),
            control_frame(kind, content).to_vec(),
            data(stream, content, true).to_vec(),
            pong(stream).to_vec(),
            refusal(stream).to_vec(),
        ]
        .concat()
    }

    proptest::proptest! {
        #[test]
        fn no_frames_of_a_client_panic(
            rubbish in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..80),
            kind in 0..12_u16,
            content in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..60),
            stream in 0..=u32::MAX >> 1,
            changes in proptest::collection::vec(
                (proptest::prelude::any::<proptest::sample::Index>(), proptest::prelude::any::<u8>()), 0..4,
            ),
            cut in proptest::prelude::any::<proptest::sample::Index>(),
            size in 1..40_usize,
        ) {
            let _ = FrameReader::default().read(&rubbish);
            let mut bytes = sent(kind, &content, stream);
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes.truncate(cut.index(bytes.len() + 1));
            // The pieces in which the bytes come make no difference.
            let whole = FrameReader::default().read(&bytes);
            let mut reader = FrameReader::default();
            let mut frames = Vec::new();
            let mut failed = None;
            for piece in bytes.chunks(size) {
                match reader.read(piece) {
                    Ok(more) => frames.extend(more),
                    Err(error) => {
                        failed = Some(error);
                        break;
                    }
                }
            }
            match (whole, failed) {
                (Ok(whole), None) => proptest::prop_assert_eq!(whole, frames),
                (whole, failed) => proptest::prop_assert_eq!(whole.err(), failed),
            }
        }
    }

    #[test]
    fn a_header_block_is_bounded_however_well_it_is_compressed() {
        // 64 KiB of one byte.
        let bomb = miniz_oxide::deflate::compress_to_vec_zlib(&vec![0; 64 * 1024], 9);
        let mut content = vec![0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        content.extend_from_slice(&bomb);
        let frame = control_frame(SYN_STREAM, &content);
        let refused = FrameReader::default().read(&frame);
        assert_eq!(refused, Err(SpdyError::Inflate));
    }
}
