//! Why a transaction of the store wrote nothing.

use bytes::Bytes;

use crate::status::Failure;

/// Why a transaction wrote nothing.
pub(crate) enum RewriteRefusal {
    /// An error for the client.
    Failure(Failure),
    /// The state that the change was computed from has changed.
    Stale,
    /// A dry run: all checks passed, and this would have been written.
    DryRun(Bytes),
}

impl From<Failure> for RewriteRefusal {
    fn from(failure: Failure) -> Self {
        RewriteRefusal::Failure(failure)
    }
}
