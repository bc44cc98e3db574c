//! A coalescing write queue: only the latest value per key is written. A newer value replaces one
//! that still waits, unimportant values wait a while, and each key has at most one write in flight.
//! So a cluster with many changes causes few writes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

/// Values waiting to be written, by key.
pub(super) struct WriteQueue<K, V> {
    /// The least time between two writes of a key if the newer value is not urgent.
    every: Duration,
    waiting: BTreeMap<K, (Instant, V)>,
    by_due: BTreeSet<(Instant, K)>,
    in_flight: BTreeSet<K>,
    /// The value last handed out, and when.
    last: BTreeMap<K, (Instant, V)>,
}

impl<K: Ord + Clone, V: Clone> WriteQueue<K, V> {
    pub(super) fn new(every: Duration) -> WriteQueue<K, V> {
        WriteQueue {
            every,
            waiting: BTreeMap::new(),
            by_due: BTreeSet::new(),
            in_flight: BTreeSet::new(),
            last: BTreeMap::new(),
        }
    }

    /// Queues a value. `news` says, given the value last written, whether this one must go out at
    /// once.
    pub(super) fn put(&mut self, key: K, value: V, now: Instant, news: impl Fn(&V, &V) -> bool) {
        let mut due = match self.last.get(&key) {
            Some((at, last)) if !news(last, &value) => now.max(*at + self.every),
            _ => now,
        };
        if let Some((old, _)) = self.waiting.get(&key) {
            // Frequent updates must not delay the write.
            due = due.min(*old);
            self.by_due.remove(&(*old, key.clone()));
        }
        self.waiting.insert(key.clone(), (due, value));
        self.by_due.insert((due, key));
    }

    /// The next value that has been due for at least `patience`, marked as in flight.
    pub(super) fn take(&mut self, now: Instant, patience: Duration) -> Option<(K, V)> {
        let due = self.by_due.iter();
        let due = due.take_while(|(due, _)| *due + patience <= now);
        let (due, key) = due
            .filter(|(_, key)| !self.in_flight.contains(key))
            .map(Clone::clone)
            .next()?;
        self.by_due.remove(&(due, key.clone()));
        let (_, value) = self.waiting.remove(&key)?;
        self.in_flight.insert(key.clone());
        self.last.insert(key.clone(), (now, value.clone()));
        Some((key, value))
    }

    /// A write has ended.
    pub(super) fn finish(&mut self, key: &K) {
        self.in_flight.remove(key);
    }

    /// The value last handed out was not written, and is due again at this time, unless a newer
    /// value waits or the key was forgotten.
    pub(super) fn again(&mut self, key: &K, due: Instant) {
        let Some((_, value)) = self
            .last
            .get(key)
            .filter(|_| !self.waiting.contains_key(key))
        else {
            return;
        };
        self.waiting.insert(key.clone(), (due, value.clone()));
        self.by_due.insert((due, key.clone()));
    }

    /// Whether a write of this key is in flight.
    pub(super) fn busy(&self, key: &K) -> bool {
        self.in_flight.contains(key)
    }

    /// Drops the waiting value of a key, and the last one written.
    pub(super) fn forget(&mut self, key: &K) {
        self.last.remove(key);
        if let Some((due, _)) = self.waiting.remove(key) {
            self.by_due.remove(&(due, key.clone()));
        }
    }

    /// When the next value without a write in flight will have been due for `patience`.
    pub(super) fn next_due(&self, patience: Duration) -> Option<Instant> {
        let free = self
            .by_due
            .iter()
            .find(|(_, key)| !self.in_flight.contains(key));
        free.map(|(due, _)| *due + patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_secs(5);
    type Word = (u8, &'static str);

    /// The number is news, the text is not.
    fn news(old: &Word, new: &Word) -> bool {
        old.0 != new.0
    }

    #[test]
    fn the_latest_value_replaces_one_that_waits() {
        let now = Instant::now();
        let mut lane = WriteQueue::new(EVERY);
        lane.put("a", (1, "x"), now, news);
        lane.put("a", (1, "y"), now, news);
        assert_eq!(lane.take(now, Duration::ZERO), Some(("a", (1, "y"))));
        assert_eq!(lane.take(now, Duration::ZERO), None);
        assert_eq!(lane.next_due(Duration::ZERO), None);
    }

    #[test]
    fn little_news_waits_and_news_does_not() {
        let now = Instant::now();
        let mut lane = WriteQueue::new(EVERY);
        lane.put("a", (1, "x"), now, news);
        lane.take(now, Duration::ZERO);
        lane.finish(&"a");
        lane.put("a", (1, "y"), now, news);
        assert_eq!(lane.take(now, Duration::ZERO), None);
        assert_eq!(lane.next_due(Duration::ZERO), Some(now + EVERY));
        lane.put("a", (2, "z"), now, news);
        assert_eq!(lane.take(now, Duration::ZERO), Some(("a", (2, "z"))));
        lane.finish(&"a");
        lane.put("a", (2, "w"), now, news);
        assert_eq!(
            lane.take(now + EVERY, Duration::ZERO),
            Some(("a", (2, "w")))
        );
    }

    #[test]
    fn each_key_has_at_most_one_write_in_flight() {
        let now = Instant::now();
        let mut lane = WriteQueue::new(EVERY);
        lane.put("a", (1, "x"), now, news);
        lane.take(now, Duration::ZERO);
        lane.put("a", (2, "y"), now, news);
        lane.put("b", (1, "x"), now, news);
        assert!(lane.busy(&"a"));
        assert_eq!(lane.take(now, Duration::ZERO), Some(("b", (1, "x"))));
        assert_eq!(lane.next_due(Duration::ZERO), None);
        lane.finish(&"a");
        assert_eq!(lane.take(now, Duration::ZERO), Some(("a", (2, "y"))));
    }

    #[test]
    fn a_failed_write_is_retried_unless_a_newer_value_waits() {
        let now = Instant::now();
        let mut lane = WriteQueue::new(EVERY);
        lane.put("a", (1, "x"), now, news);
        lane.take(now, Duration::ZERO);
        lane.finish(&"a");
        lane.again(&"a", now + EVERY);
        assert_eq!(lane.take(now, Duration::ZERO), None);
        assert_eq!(
            lane.take(now + EVERY, Duration::ZERO),
            Some(("a", (1, "x")))
        );
        lane.put("a", (2, "y"), now, news);
        lane.finish(&"a");
        lane.again(&"a", now + EVERY);
        assert_eq!(lane.take(now, Duration::ZERO), Some(("a", (2, "y"))));
        lane.finish(&"a");
        lane.forget(&"a");
        lane.again(&"a", now);
        assert_eq!(lane.take(now, Duration::ZERO), None);
    }

    #[test]
    fn with_patience_a_value_is_taken_that_long_after_it_was_due() {
        let now = Instant::now();
        let mut lane = WriteQueue::new(EVERY);
        let patience = Duration::from_secs(3);
        lane.put("a", (1, "x"), now, news);
        assert_eq!(lane.next_due(patience), Some(now + patience));
        assert_eq!(lane.take(now + Duration::from_secs(2), patience), None);
        lane.put("a", (2, "y"), now + Duration::from_secs(2), news);
        assert_eq!(
            lane.take(now + patience, patience),
            Some(("a", (2, "y"))),
            "a newer word waits no longer than the one in whose place it is"
        );
    }

    #[test]
    fn a_forgotten_key_is_not_written() {
        let now = Instant::now();
        let mut lane = WriteQueue::new(EVERY);
        lane.put("a", (1, "x"), now, news);
        lane.forget(&"a");
        assert_eq!(lane.take(now, Duration::ZERO), None);
    }
}
