//! The hash chain over the log's lines: each line contains the hash of the line before it. Pure.

use resources::audit::AuditEvent;
use sha2::{Digest, Sha256};

/// The annotation with a line's number.
pub(super) const SEQUENCE: &str = "audit.muster.io/sequence";
/// The annotation with the SHA-256 of the line before, in hexadecimal.
pub(super) const PREVIOUS: &str = "audit.muster.io/previous";
/// The annotation with the number of events that could not be written before this one.
pub(super) const LOST: &str = "audit.muster.io/events-lost";

/// The previous hash in the first line.
pub(super) const FIRST: &str = "";

/// The end of a chain: the number and hash of its last line.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct ChainHead {
    pub(super) sequence: u64,
    pub(super) hash: String,
}

/// The hash of a line, without its line feed.
pub(super) fn hash(line: &[u8]) -> String {
    let digest = Sha256::digest(line);
    let mut text = String::with_capacity(64);
    for byte in digest {
        use std::fmt::Write;
        // Writing to a String does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

impl ChainHead {
    /// The next line of the chain, without its line feed, and the chain's new end.
    pub(super) fn link(
        &self,
        mut event: AuditEvent,
        lost: u64,
    ) -> serde_json::Result<(Vec<u8>, ChainHead)> {
        let sequence = self.sequence.saturating_add(1);
        let notes = &mut event.annotations;
        notes.insert(SEQUENCE.to_owned(), sequence.to_string());
        notes.insert(PREVIOUS.to_owned(), self.hash.clone());
        if lost > 0 {
            notes.insert(LOST.to_owned(), lost.to_string());
        }
        let line = serde_json::to_vec(&event)?;
        let hash = hash(&line);
        Ok((line, ChainHead { sequence, hash }))
    }

    /// A line's own number, and its hash of the line before. No line has the number `u64::MAX`, so
    /// that each has a next one.
    pub(super) fn named_by(line: &[u8]) -> Option<(u64, String)> {
        let event: AuditEvent = serde_json::from_slice(line).ok()?;
        let sequence = event.annotations.get(SEQUENCE)?.parse().ok()?;
        if sequence == u64::MAX {
            return None;
        }
        Some((sequence, event.annotations.get(PREVIOUS)?.clone()))
    }
}
