//! When access tokens were used last: in memory for each request, and now and then in the store.
//! Pure: the caller gives the time and carries out the writes.
//!
//! A durable write for each request would cost a flush to disk, so a use only changes an entry here.
//! The time is written when the stored one is [`LAST_USE_WRITE_INTERVAL`] older, or when there is
//! none. After a restart the shown time is therefore at most that much too early.
//!
//! Cost: a request with an access token takes one lock and changes one entry of a map. The store gets
//! one write of a small Secret an hour for each token that is in use, one after another, with one
//! event of the watches and of the audit log each: 100 programs that never rest cause 100 writes an
//! hour. Memory: at most [`LAST_USES_MAX`] entries of about 100 bytes.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::limits::{LAST_USE_WRITE_INTERVAL, LAST_USES_MAX};
use crate::tokens::TokenInfo;

#[derive(Clone, Copy, Debug)]
struct TokenUse {
    last: Timestamp,
    /// The time that the store has.
    written: Option<Timestamp>,
}

impl TokenUse {
    fn is_due(&self) -> bool {
        let Some(written) = self.written else {
            return true;
        };
        let age = Duration::try_from(self.last.duration_since(written)).unwrap_or_default();
        age >= LAST_USE_WRITE_INTERVAL
    }
}

/// The last uses of access tokens, by the tokens' ids.
#[derive(Debug, Default)]
pub(crate) struct LastUses(BTreeMap<String, TokenUse>);

impl LastUses {
    /// Notes a use of a token at `now`, for which the store has the time `stored`. Returns true if a write is due.
    ///
    /// If the map is full, the entries that need no write are dropped: what is stored of them is right to the hour.
    /// If all need one, because the store refuses writes, the use of a further token is not noted.
    pub(crate) fn note(&mut self, id: &str, now: Timestamp, stored: Option<Timestamp>) -> bool {
        let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
        if let Some(known) = self.0.get_mut(id) {
            known.last = known.last.max(now);
            known.written = known.written.max(stored);
            return known.is_due();
        }
        if self.0.len() >= LAST_USES_MAX {
            self.0.retain(|_, known| known.is_due());
        }
        if self.0.len() >= LAST_USES_MAX {
            return false;
        }
        let new = TokenUse {
            last: now,
            written: stored,
        };
        self.0.insert(id.to_owned(), new);
        new.is_due()
    }

    /// The tokens whose last use has to be written, with the time to write.
    pub(crate) fn due(&self) -> Vec<(String, Timestamp)> {
        let due = self.0.iter().filter(|(_, known)| known.is_due());
        due.map(|(id, known)| (id.clone(), known.last)).collect()
    }

    /// The store has this time of a token now.
    pub(crate) fn written(&mut self, id: &str, at: Timestamp) {
        if let Some(known) = self.0.get_mut(id) {
            known.written = known.written.max(Some(at));
        }
    }

    /// Forgets a token that is gone.
    pub(crate) fn forget(&mut self, id: &str) {
        self.0.remove(id);
    }

    /// Replaces a token's stored last use by a later one in memory.
    pub(crate) fn complete(&self, token: &mut TokenInfo) {
        let known = self.0.get(&token.id).map(|known| known.last);
        token.last_used = token.last_used.max(known);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_use_is_written_at_once_and_then_an_hour_later() {
        // When it was used, what the store had, and whether a write is due.
        for (used, stored, due) in [
            (10_000, None, true),
            (10_000, Some(10_000), false),
            (13_599, Some(10_000), false),
            (13_600, Some(10_000), true),
            // The clock was set back.
            (9_000, Some(10_000), false),
        ] {
            let mut uses = LastUses::default();
            assert_eq!(
                uses.note("a", at(used), stored.map(at)),
                due,
                "{used} {stored:?}"
            );
            assert_eq!(uses.due().len(), usize::from(due), "{used} {stored:?}");
        }
        let mut uses = LastUses::default();
        assert!(uses.note("a", at(10_000), None));
        assert_eq!(uses.due(), [("a".to_owned(), at(10_000))]);
        uses.written("a", at(10_000));
        // The mirror of the store may be behind.
        assert!(!uses.note("a", at(10_001), None));
        assert!(uses.note("a", at(13_600), None));
        uses.forget("a");
        uses.written("a", at(13_600));
        assert!(uses.due().is_empty());
    }

    #[test]
    fn a_full_map_drops_what_needs_no_write_and_never_grows() {
        let mut uses = LastUses::default();
        for n in 0..LAST_USES_MAX {
            uses.note(&format!("{n}"), at(10_000), None);
        }
        assert!(
            !uses.note("further", at(10_000), None),
            "all wait for a write"
        );
        for n in 0..10 {
            uses.written(&format!("{n}"), at(10_000));
        }
        assert!(uses.note("further", at(10_000), None));
        assert_eq!(uses.0.len(), LAST_USES_MAX - 9);
        assert_eq!(uses.due().len(), LAST_USES_MAX - 9);
    }

    proptest! {
        /// Whatever is used when, and whichever writes are lost: once all that was due is written, what the store has of
        /// each token is less than an hour before its last use, and a token is written at most once an hour.
        #[test]
        fn what_is_stored_is_right_to_the_hour(
            steps in prop::collection::vec((0..3_usize, 0..2000_i64, any::<bool>()), 1..60),
        ) {
            let mut uses = LastUses::default();
            let mut stored: BTreeMap<String, Timestamp> = BTreeMap::new();
            let mut last: BTreeMap<String, Timestamp> = BTreeMap::new();
            let mut now = 1_000_000;
            for (token, later, succeeds) in steps {
                now += later;
                let id = format!("t{token}");
                uses.note(&id, at(now), stored.get(&id).copied());
                last.insert(id, at(now));
                if succeeds {
                    for (id, time) in uses.due() {
                        if let Some(before) = stored.insert(id.clone(), time) {
                            prop_assert!(time.duration_since(before).as_secs() >= 3600);
                        }
                        uses.written(&id, time);
                    }
                }
            }
            for (id, time) in uses.due() {
                stored.insert(id, time);
            }
            for (id, time) in last {
                let behind = time.duration_since(stored[&id]).as_secs();
                prop_assert!((0..3600).contains(&behind), "{} is {} s behind", id, behind);
            }
        }
    }
}
