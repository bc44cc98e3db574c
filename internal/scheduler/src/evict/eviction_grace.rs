//! How long a gang that was placed by evictions is protected from being evicted itself. Module
//! `evict` explains why this ends every cycle of evictions.
//!
//! A gang that was placed by evictions and is reclaimed within an hour is exempt from reclaim for
//! an hour after its next start by evictions. If another queue takes its place soon after that too,
//! the next exemption is two hours, and so on; if the gang keeps its place for longer, the
//! exemption ends.

use jiff::{SignedDuration, Timestamp};

use crate::gang::Gang;
use crate::plan::EvictionReason;

/// A gang that is reclaimed within this time after it was placed by evictions is exempt from
/// reclaim at least this long the next time; seconds.
const FIRST_EXEMPTION: i64 = 3600;

/// The last time at which a gang was placed by evictions, or was moved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EvictionGrace {
    /// The scheduler's age at that time: see `Scheduler::age`.
    pub(crate) age: u64,
    at: Timestamp,
    /// For how long from then on the gang is exempt from reclaim, and for how long the next time;
    /// seconds.
    spared: i64,
    next: i64,
}

impl Gang {
    pub(super) fn note_placed_by_eviction(&mut self, age: u64, at: Timestamp) {
        let spared = self.eviction_grace.map_or(0, |grace| grace.next);
        self.eviction_grace = Some(EvictionGrace {
            age,
            at,
            spared,
            next: spared,
        });
    }

    /// Notes that the gang is evicted or shrinks. A gang that another queue reclaims soon is exempt
    /// for longer the next time: twice as long as this time.
    pub(super) fn note_evicted(&mut self, why: EvictionReason, now: Timestamp) {
        let to_others = matches!(
            why,
            EvictionReason::Reclaimed
                | EvictionReason::ReclaimedWhileBorrowing
                | EvictionReason::FairShare
        );
        if let Some(grace) = self.eviction_grace.as_mut().filter(|_| to_others) {
            let longer = grace.spared.saturating_mul(2).max(FIRST_EXEMPTION);
            let soon = now.duration_since(grace.at).as_secs() <= longer;
            grace.next = if soon { longer } else { 0 };
        }
    }

    /// Until when the gang is exempt from reclaim by other queues.
    pub(super) fn reclaim_exempt_until(&self, now: Timestamp) -> Option<Timestamp> {
        let grace = self.eviction_grace.filter(|grace| grace.spared > 0)?;
        let until = grace
            .at
            .checked_add(SignedDuration::from_secs(grace.spared));
        Some(until.unwrap_or(Timestamp::MAX)).filter(|until| now < *until)
    }
}
