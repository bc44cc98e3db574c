//! Finds the latest time of a schedule that has passed and has had no Job.
//!
//! Between the earliest time that counts and now, a schedule may have millions of times. The search measures the
//! distance of the first two, steps over all but the last few by it, and walks from there. Cost: a few calls of
//! [`Schedule::next`] for a regular schedule. An irregular one is walked for at most [`STEPS_MAX`] times; then the time
//! before the next one from now backwards is found by halving. Source: Kubernetes 1.34, `mostRecentScheduleTime`.

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use resources::numbers::later;
use resources::schedule::Schedule;

/// More missed times than this are reported.
pub(crate) const MISSED_MAX: i64 = 100;
/// The most times that one search walks over.
const STEPS_MAX: usize = 1_000;

/// The time that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    /// The latest time of the schedule up to now.
    pub(crate) time: Timestamp,
    /// About how many times passed without a Job, this one included.
    pub(crate) missed: i64,
}

/// The time after which times count: that of the last Job or of the CronJob's creation; no time before the starting
/// deadline counts.
pub(crate) fn earliest(
    last: Option<Timestamp>,
    created: Option<Timestamp>,
    deadline: Option<i64>,
    now: Timestamp,
) -> Timestamp {
    let from = last.or(created).unwrap_or(now);
    match deadline {
        Some(seconds) => from.max(later(now, seconds.saturating_neg())),
        None => from,
    }
}

/// The latest time of the schedule after `from` and up to `now`.
pub(crate) fn due(
    schedule: &Schedule,
    zone: &TimeZone,
    from: Timestamp,
    now: Timestamp,
) -> Option<Due> {
    let passed = |after: Timestamp| schedule.next(after, zone).filter(|time| *time <= now);
    let first = passed(from)?;
    let Some(second) = passed(first) else {
        return Some(Due {
            time: first,
            missed: 1,
        });
    };
    let distance = (second.as_second() - first.as_second()).max(1);
    let missed = (now.as_second() - first.as_second()) / distance + 1;
    // The last distance is walked; a second less, because a time itself does not come after itself.
    let ahead = (missed - 1).saturating_mul(distance) - 1;
    let mut time = first;
    let mut at = first
        .checked_add(SignedDuration::from_secs(ahead))
        .unwrap_or(first);
    let mut complete = false;
    for _ in 0..STEPS_MAX {
        match passed(at) {
            Some(next) => (time, at) = (next, next),
            None => {
                complete = time != first;
                break;
            }
        }
    }
    if !complete {
        // The first two times lay unusually close together or far apart.
        time = latest(schedule, zone, first, now);
    }
    Some(Due { time, missed })
}

/// The latest time up to `now` by halving: whether a time follows an instant up to now turns from yes to no once.
fn latest(schedule: &Schedule, zone: &TimeZone, first: Timestamp, now: Timestamp) -> Timestamp {
    let (mut time, mut low, mut high) = (first, first.as_second(), now.as_second());
    while low < high {
        let middle = low + (high - low) / 2;
        let next = Timestamp::from_second(middle)
            .ok()
            .and_then(|at| schedule.next(at, zone))
            .filter(|next| *next <= now);
        match next {
            Some(next) => (time, low) = (next, next.as_second()),
            None => high = middle,
        }
    }
    time
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn second(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    proptest! {
        /// The answer is a time of the schedule that has passed, and no other one lies between it and now.
        #[test]
        fn the_latest_passed_time_is_due(
            which in 0_usize..7,
            from in 1_700_000_000_i64..1_900_000_000,
            ahead in 0_i64..40_000_000,
        ) {
            let texts = ["*/5 * * * *", "0 2 * * *", "0 0 1 * 5", "0,1 3 * 2 *", "59 23 31 12 *", "@every 7m", "* * 1 1 *"];
            let schedule = Schedule::parse(texts[which]).unwrap();
            let zone = TimeZone::UTC;
            let (from, now) = (second(from), second(from + ahead));
            match due(&schedule, &zone, from, now) {
                None => prop_assert!(schedule.next(from, &zone).is_none_or(|time| time > now)),
                Some(found) => {
                    prop_assert!(from < found.time && found.time <= now);
                    prop_assert!(found.missed >= 1);
                    let next = schedule.next(found.time, &zone);
                    prop_assert!(next.is_none_or(|time| time > now), "{found:?} {next:?}");
                }
            }
        }
    }

    #[test]
    fn a_search_over_years_of_seconds_ends() {
        let schedule = Schedule::parse("@every 1s").unwrap();
        let found = due(&schedule, &TimeZone::UTC, second(0), second(1_700_000_000)).unwrap();
        assert_eq!(found.time, second(1_700_000_000));
        assert!(found.missed > MISSED_MAX);
    }

    #[test]
    fn times_count_from_the_last_job_and_within_the_deadline() {
        let (last, created, now) = (Some(second(500)), Some(second(100)), second(1_000));
        assert_eq!(earliest(last, created, None, now), second(500));
        assert_eq!(earliest(None, created, None, now), second(100));
        assert_eq!(earliest(None, created, Some(200), now), second(800));
        assert_eq!(earliest(last, created, Some(i64::MAX), now), second(500));
    }
}
