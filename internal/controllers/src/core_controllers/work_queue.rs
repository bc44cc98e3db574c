//! The workqueue of a core controller. It holds each key once, gathers changes that come close
//! together into one pass, and retries failures with exponential backoff.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

/// How long a change waits for others.
const BATCH: Duration = Duration::from_millis(20);
/// The wait before the first retry; it doubles with each further one.
const RETRY_FIRST: Duration = Duration::from_millis(100);
/// The longest wait before a retry.
const RETRY_LONGEST: Duration = Duration::from_secs(30);

/// The keys to process, and when.
pub(super) struct PendingKeys<K> {
    due: BTreeMap<K, Instant>,
    order: BTreeSet<(Instant, K)>,
    failures: BTreeMap<K, u32>,
}

impl<K: Ord + Clone> PendingKeys<K> {
    pub(super) fn new() -> PendingKeys<K> {
        PendingKeys {
            due: BTreeMap::new(),
            order: BTreeSet::new(),
            failures: BTreeMap::new(),
        }
    }

    /// Queues a key for the next pass.
    pub(super) fn add(&mut self, key: K) {
        self.add_after(key, BATCH);
    }

    /// Queues a key after a wait, or sooner if it is queued for an earlier time.
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

    /// The key was processed: the next failure counts as its first.
    pub(super) fn done(&mut self, key: &K) {
        self.failures.remove(key);
    }

    /// Processing failed: retries after the backoff.
    pub(super) fn failed(&mut self, key: K) {
        let failures = self.failures.entry(key.clone()).or_insert(0);
        let wait = retry_after(*failures);
        *failures = failures.saturating_add(1);
        self.add_after(key, wait);
    }

    /// Takes the due keys, at most `most`.
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
        let mut work = PendingKeys::new();
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
