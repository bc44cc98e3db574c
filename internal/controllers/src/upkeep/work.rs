//! Owns the list of what a loop has to look at: each thing once, a moment after it
//! changed so that changes that come together are looked at together, and again later,
//! each time after a longer while, when it could not be settled.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

/// How long a change waits for others.
const BATCH: Duration = Duration::from_millis(20);
/// How long the first retry waits; each further one twice as long.
const RETRY_FIRST: Duration = Duration::from_millis(100);
/// The longest that a retry waits.
const RETRY_LONGEST: Duration = Duration::from_secs(30);

/// What is to be looked at, and when.
pub(super) struct Work<K> {
    due: BTreeMap<K, Instant>,
    order: BTreeSet<(Instant, K)>,
    failures: BTreeMap<K, u32>,
}

impl<K: Ord + Clone> Work<K> {
    pub(super) fn new() -> Work<K> {
        Work {
            due: BTreeMap::new(),
            order: BTreeSet::new(),
            failures: BTreeMap::new(),
        }
    }

    /// Looks at it soon.
    pub(super) fn add(&mut self, key: K) {
        self.add_after(key, BATCH);
    }

    /// Looks at it after a while, or sooner where that was asked for.
    pub(super) fn add_after(&mut self, key: K, wait: Duration) {
        let at = Instant::now() + wait;
        match self.due.get(&key) {
            Some(due) if *due <= at => return,
            Some(due) => {
                self.order.remove(&(*due, key.clone()));
            }
            None => {}
        }
        self.due.insert(key.clone(), at);
        self.order.insert((at, key));
    }

    /// It is settled: the next failure counts as a first one.
    pub(super) fn done(&mut self, key: &K) {
        self.failures.remove(key);
    }

    /// It could not be settled: looks at it again later.
    pub(super) fn failed(&mut self, key: K) {
        let failures = self.failures.entry(key.clone()).or_insert(0);
        let wait = retry_after(*failures);
        *failures = failures.saturating_add(1);
        self.add_after(key, wait);
    }

    /// Takes what is due, at most so many.
    pub(super) fn take(&mut self, most: usize) -> Vec<K> {
        let now = Instant::now();
        let mut taken = Vec::new();
        while taken.len() < most
            && let Some((at, _)) = self.order.first()
            && *at <= now
            && let Some((_, key)) = self.order.pop_first()
        {
            self.due.remove(&key);
            taken.push(key);
        }
        taken
    }

    /// Whether nothing is due, now or later.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Resolves once something is due.
    pub(super) async fn ready(&self) {
        match self.order.first() {
            Some((at, _)) => tokio::time::sleep_until(*at).await,
            None => std::future::pending().await,
        }
    }
}

fn retry_after(failures: u32) -> Duration {
    let factor = 1_u32.checked_shl(failures).unwrap_or(u32::MAX);
    RETRY_FIRST.saturating_mul(factor).min(RETRY_LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_wait_twice_as_long_each_time_up_to_a_bound() {
        let waits: Vec<_> = (0..12).map(|n| retry_after(n).as_millis()).collect();
        assert_eq!(waits[..4], [100, 200, 400, 800]);
        assert_eq!(waits[11], 30_000);
        assert_eq!(retry_after(u32::MAX), RETRY_LONGEST);
    }

    #[test]
    fn a_thing_is_taken_once_however_often_it_was_added() {
        let mut work = Work::new();
        work.add_after("a", Duration::ZERO);
        work.add_after("a", Duration::ZERO);
        work.add_after("b", Duration::from_secs(60));
        assert_eq!(work.take(10), ["a"]);
        assert!(work.take(10).is_empty());
        work.add_after("b", Duration::ZERO);
        assert_eq!(work.take(10), ["b"]);
        assert!(work.order.is_empty() && work.due.is_empty());
    }
}
