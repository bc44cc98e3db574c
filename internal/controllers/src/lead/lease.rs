//! Reads from a Lease which server leads, and computes its next state: pure.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};

/// The holder's identity; none if the lease was released or never held.
pub(super) fn holder(lease: &Lease) -> Option<&str> {
    let spec = lease.spec.as_ref()?;
    spec.holder_identity
        .as_deref()
        .filter(|holder| !holder.is_empty())
}

/// How long the lease holds after each renewal, as its holder wrote.
pub(super) fn duration(lease: &Lease) -> Option<Duration> {
    let seconds = lease.spec.as_ref()?.lease_duration_seconds?;
    u64::try_from(seconds).ok().map(Duration::from_secs)
}

/// A new lease, held by `identity`.
pub(super) fn fresh(name: &str, identity: &str, length: Duration, now: Timestamp) -> Lease {
    let empty = Lease {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        spec: None,
    };
    taken(&empty, identity, length, now)
}

/// The lease as a new holder takes it, or as its holder renews it.
pub(super) fn taken(lease: &Lease, identity: &str, length: Duration, now: Timestamp) -> Lease {
    let mut lease = lease.clone();
    let changes_hands = holder(&lease) != Some(identity);
    let spec = lease.spec.get_or_insert_default();
    if changes_hands {
        spec.holder_identity = Some(identity.to_owned());
        spec.acquire_time = Some(MicroTime(now));
        spec.lease_transitions = Some(spec.lease_transitions.map_or(0, |times| times + 1));
    }
    spec.lease_duration_seconds = Some(i32::try_from(length.as_secs()).unwrap_or(i32::MAX).max(1));
    spec.renew_time = Some(MicroTime(now));
    lease
}

/// The lease as its holder releases it: the next holder need not wait.
pub(super) fn released(lease: &Lease, now: Timestamp) -> Lease {
    let mut lease = lease.clone();
    lease.spec = Some(LeaseSpec {
        holder_identity: Some(String::new()),
        lease_duration_seconds: Some(1),
        renew_time: Some(MicroTime(now)),
        ..lease.spec.unwrap_or_default()
    });
    lease
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Duration = Duration::from_secs(10);

    #[test]
    fn a_lease_that_changes_hands_counts_it_and_one_renewed_does_not() {
        let now = Timestamp::UNIX_EPOCH;
        let first = fresh("l", "a", LENGTH, now);
        assert_eq!(
            (holder(&first), duration(&first)),
            (Some("a"), Some(LENGTH))
        );
        let transitions = |lease: &Lease| lease.spec.as_ref().unwrap().lease_transitions;
        let later = now + LENGTH;
        let renewed = taken(&first, "a", LENGTH, later);
        assert_eq!(transitions(&renewed), Some(0));
        let spec = renewed.spec.as_ref().unwrap();
        assert_eq!(spec.acquire_time, Some(MicroTime(now)));
        assert_eq!(spec.renew_time, Some(MicroTime(later)));
        let second = taken(&renewed, "b", LENGTH, later);
        assert_eq!(
            (holder(&second), transitions(&second)),
            (Some("b"), Some(1))
        );
    }

    #[test]
    fn a_released_lease_has_no_holder_and_keeps_its_count() {
        let now = Timestamp::UNIX_EPOCH;
        let let_go = released(&fresh("l", "a", LENGTH, now), now);
        assert_eq!(holder(&let_go), None);
        let next = taken(&let_go, "b", LENGTH, now);
        assert_eq!(next.spec.unwrap().lease_transitions, Some(1));
    }
}
