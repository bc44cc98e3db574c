//! What is known of a gang that got in by an eviction: how soon it may lose its place again. See
//! `evict` for why that ends every circle.

use jiff::{SignedDuration, Timestamp};

use crate::gang::Gang;
use crate::plan::EvictionReason;

/// Who loses within this time what it got by an eviction holds it at least for as long the next time; seconds.
const SPARED_FIRST: i64 = 3600;

/// When a gang got in by an eviction, or was moved, last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Won {
    /// The age of the world: see `Scheduler::age`.
    pub(crate) age: u64,
    at: Timestamp,
    /// For how long from then on it loses nothing to other queues, and for how long the next time; seconds.
    spared: i64,
    next: i64,
}

impl Gang {
    pub(super) fn wins(&mut self, age: u64, at: Timestamp) {
        let spared = self.won.map_or(0, |won| won.next);
        self.won = Some(Won {
            age,
            at,
            spared,
            next: spared,
        });
    }

    /// It goes, or shrinks. What it loses to another queue soon it holds for longer the next time: twice as long as
    /// this time.
    pub(super) fn loses(&mut self, why: EvictionReason, now: Timestamp) {
        let to_others = matches!(
            why,
            EvictionReason::Reclaimed
                | EvictionReason::ReclaimedWhileBorrowing
                | EvictionReason::FairShare
        );
        if let Some(won) = self.won.as_mut().filter(|_| to_others) {
            let longer = won.spared.saturating_mul(2).max(SPARED_FIRST);
            let soon = now.duration_since(won.at).as_secs() <= longer;
            won.next = if soon { longer } else { 0 };
        }
    }

    /// Until when it loses nothing to other queues.
    pub(super) fn spared_from_others(&self, now: Timestamp) -> Option<Timestamp> {
        let won = self.won.filter(|won| won.spared > 0)?;
        let until = won.at.checked_add(SignedDuration::from_secs(won.spared));
        Some(until.unwrap_or(Timestamp::MAX)).filter(|until| now < *until)
    }
}
