//! Who is before whom within a queue: priority, then age, then name.

use jiff::Timestamp;

use crate::gang::GangKey;

/// A waiting gang's place. Lesser comes first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LineKey {
    /// Negated, so that the higher comes first.
    pub(crate) urgency: i64,
    pub(crate) created: Timestamp,
    pub(crate) gang: GangKey,
}

impl LineKey {
    pub(crate) fn new(priority: i32, created: Option<Timestamp>, gang: GangKey) -> LineKey {
        LineKey {
            urgency: -i64::from(priority),
            created: created.unwrap_or(Timestamp::UNIX_EPOCH),
            gang,
        }
    }
}
