//! Backoff of gangs for which a write failed: each failed attempt doubles the wait. Pure: the
//! caller passes the time.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use scheduler::GroupRef;

/// The backoff after the first failure of a binding; it doubles with each failure in a row.
const FIRST: Duration = Duration::from_secs(1);
/// The longest backoff.
const LONGEST: Duration = Duration::from_secs(60);

/// The failed attempts in a row of each gang, and until when it backs off.
#[derive(Default)]
pub(super) struct GangBackoff(BTreeMap<GroupRef, (u32, Timestamp)>);

impl GangBackoff {
    /// Until when a gang backs off after a failure now. A failure during the backoff belongs to the
    /// same attempt: all members of a large gang fail together.
    pub(super) fn after_failure(&mut self, group: &GroupRef, now: Timestamp) -> Timestamp {
        let known = self.0.entry(group.clone()).or_insert((0, now));
        let (failures, until) = known;
        if now < *until {
            return *until;
        }
        let rest = FIRST.saturating_mul(1 << (*failures).min(16)).min(LONGEST);
        let rest = SignedDuration::try_from(rest).unwrap_or_default();
        *failures = failures.saturating_add(1);
        *until = now.checked_add(rest).unwrap_or(Timestamp::MAX);
        *until
    }

    /// Resets a gang's backoff: its attempt succeeded, or the gang is gone.
    pub(super) fn forget(&mut self, group: &GroupRef) {
        self.0.remove(group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_that_fail_together_are_one_failure_and_the_next_counts_double() {
        let gang = GroupRef {
            namespace: "ns".into(),
            name: "g".into(),
            lone: false,
        };
        let after = |seconds: i64| Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds);
        let mut rests = GangBackoff::default();
        for _ in 0..30 {
            assert_eq!(rests.after_failure(&gang, after(0)), after(1));
        }
        assert_eq!(rests.after_failure(&gang, after(1)), after(3));
        assert_eq!(rests.after_failure(&gang, after(10)), after(14));
        rests.forget(&gang);
        assert_eq!(rests.after_failure(&gang, after(20)), after(21));
        for round in 1..20 {
            let now = after(100 * round);
            assert!(rests.after_failure(&gang, now) <= now + LONGEST);
        }
    }
}
