//! Container logs on disk, in the CRI format: `TIME STREAM TAG TEXT`, one line each, where
//! the tag is `F` for a full line and `P` for a part of one that goes on. Files rotate by
//! renaming: `x.log` is current, `x.log.1` the one before it.
//!
//! Owns the format ([`line`]), the writer that the shim uses ([`write`]) and the reader
//! ([`read`]). Knows nothing of containers.

pub mod line;
pub mod read;
pub mod write;

pub use read::{LogRead, read_logs};
