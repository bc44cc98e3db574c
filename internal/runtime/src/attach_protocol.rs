//! The socket between a container's shim and attached clients, and the messages on it: one byte for the
//! kind, four for the length (big endian), then the content.

use std::fs::File;
use std::os::fd::AsRawFd;

/// The socket, in a container's directory.
pub const SOCKET: &str = "attach.sock";

/// Bytes before the content.
const HEAD: usize = 5;
/// Longest content; a longer one is no message of this protocol.
pub const CONTENT_BYTES_MAX: usize = 64 * 1024;

/// The path of a container's socket through a descriptor of its directory, which is as short as a socket's
/// path must be.
pub fn socket_path(directory: &File) -> String {
    format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd())
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// From the client: a piece of the container's standard input.
    Input,
    /// From the shim: a piece of the standard output, or of the terminal.
    Output,
    /// From the shim: a piece of the standard error.
    Errors,
    /// From the client: columns and rows of the terminal, two bytes each.
    Resize,
    /// From the client, first: this client sends the container's input.
    HoldsInput,
    /// From the client: its input is over.
    InputEnd,
    /// From the shim, last: the container has ended.
    Ended,
}

impl FrameKind {
    const ALL: [FrameKind; 7] = [
        FrameKind::Input,
        FrameKind::Output,
        FrameKind::Errors,
        FrameKind::Resize,
        FrameKind::HoldsInput,
        FrameKind::InputEnd,
        FrameKind::Ended,
    ];
}

/// A message that is no part of the protocol.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("a message of kind {kind} with {bytes} bytes is no part of the protocol")]
pub struct BadFrame {
    kind: u8,
    bytes: usize,
}

/// Adds a message; a content that is too long for one becomes several.
pub fn put(to: &mut Vec<u8>, kind: FrameKind, content: &[u8]) {
    let head = |length: usize, to: &mut Vec<u8>| {
        to.push(kind as u8);
        // CONTENT_BYTES_MAX bounds the length.
        to.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    };
    if content.is_empty() {
        head(0, to);
    }
    for piece in content.chunks(CONTENT_BYTES_MAX) {
        head(piece.len(), to);
        to.extend_from_slice(piece);
    }
}

/// Takes the first whole message out of what was received; none if more bytes must come first.
///
/// # Errors
/// If the bytes are no message.
pub fn take(from: &mut Vec<u8>) -> Result<Option<(FrameKind, Vec<u8>)>, BadFrame> {
    let Some((head, rest)) = from.split_at_checked(HEAD) else {
        return Ok(None);
    };
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
    let bytes = usize::try_from(length).unwrap_or(usize::MAX);
    let bad = BadFrame {
        kind: head[0],
        bytes,
    };
    let kind = FrameKind::ALL.get(usize::from(head[0])).copied();
    let Some(kind) = kind.filter(|_| bytes <= CONTENT_BYTES_MAX) else {
        return Err(bad);
    };
    if rest.len() < bytes {
        return Ok(None);
    }
    let content = rest[..bytes].to_vec();
    from.drain(..HEAD + bytes);
    Ok(Some((kind, content)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_out_as_they_were_put_in_however_they_are_cut() {
        let long = vec![7; CONTENT_BYTES_MAX + 1];
        let mut bytes = Vec::new();
        put(&mut bytes, FrameKind::HoldsInput, b"");
        put(&mut bytes, FrameKind::Input, b"ls\n");
        put(&mut bytes, FrameKind::Output, &long);
        let (mut received, mut seen) = (Vec::new(), Vec::new());
        for piece in bytes.chunks(1000) {
            received.extend_from_slice(piece);
            while let Some(message) = take(&mut received).unwrap() {
                seen.push(message);
            }
        }
        let expected = vec![
            (FrameKind::HoldsInput, Vec::new()),
            (FrameKind::Input, b"ls\n".to_vec()),
            (FrameKind::Output, long[..CONTENT_BYTES_MAX].to_vec()),
            (FrameKind::Output, vec![7]),
        ];
        assert!(seen == expected && received.is_empty());
    }

    #[test]
    fn what_is_no_message_is_refused_before_its_content_is_awaited() {
        let long = u32::try_from(CONTENT_BYTES_MAX + 1).unwrap().to_be_bytes();
        assert!(take(&mut [&[0], &long[..]].concat()).is_err());
        assert!(take(&mut vec![7, 0, 0, 0, 0]).is_err());
        assert_eq!(take(&mut vec![0, 0, 0, 0]), Ok(None));
    }
}
