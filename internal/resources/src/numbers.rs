//! The bounds of numbers that an object's author chooses. Validation refuses new objects with numbers beyond them; code
//! that computes with a number of a stored object applies the same bound again, because the object may be older than
//! the bound or may come from an API server that does not know it.

use jiff::{SignedDuration, Timestamp};

/// The most pods of a gang: two on each node of the largest cluster that Muster is built for (10,000 nodes). All
/// members of a gang are created and placed at once, so their number determines a gang's cost.
pub const GANG_MEMBERS_MAX: i64 = 20_000;

/// The longest grace period of a pod's deletion, in seconds: one day. Like Kubernetes, Muster accepts every number that
/// is not negative; a longer grace period counts as this one.
pub const POD_GRACE_MAX: i64 = 86_400;

/// The most owners of an object. Kubernetes has no such bound; no controller writes more than a few.
pub const OWNER_REFERENCES_MAX: usize = 1_000;

/// The grace period in seconds of a pod that requests `asked` seconds.
#[must_use]
pub fn pod_grace(asked: i64) -> i64 {
    asked.clamp(0, POD_GRACE_MAX)
}

/// `seconds` after `from`, saturating at the first and last timestamp.
#[must_use]
pub fn later(from: Timestamp, seconds: i64) -> Timestamp {
    let end = if seconds < 0 {
        Timestamp::MIN
    } else {
        Timestamp::MAX
    };
    from.checked_add(SignedDuration::from_secs(seconds))
        .unwrap_or(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grace_counts_up_to_its_bound() {
        let table = [
            (i64::MIN, 0),
            (-1, 0),
            (0, 0),
            (1, 1),
            (POD_GRACE_MAX, POD_GRACE_MAX),
            (POD_GRACE_MAX + 1, POD_GRACE_MAX),
            (i64::MAX, POD_GRACE_MAX),
        ];
        for (asked, counts) in table {
            assert_eq!(pod_grace(asked), counts, "{asked}");
        }
    }

    #[test]
    fn no_number_of_seconds_leads_out_of_time() {
        let from = Timestamp::from_second(1_700_000_000).unwrap();
        assert_eq!(later(from, 60).as_second(), 1_700_000_060);
        assert_eq!(later(from, -60).as_second(), 1_699_999_940);
        assert_eq!(later(from, i64::MAX), Timestamp::MAX);
        assert_eq!(later(from, i64::MIN), Timestamp::MIN);
        assert_eq!(later(Timestamp::MAX, 1), Timestamp::MAX);
        assert_eq!(later(Timestamp::MIN, -1), Timestamp::MIN);
    }
}
