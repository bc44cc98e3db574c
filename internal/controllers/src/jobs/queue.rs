//! The workqueue of a job controller. It runs each job at most once at a time: shortly after a
//! change, at a requested time, and after a failure with exponential backoff.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::ObjectKey;

/// Changes within this time are handled in one reconciliation.
const GATHER: Duration = Duration::from_millis(10);
/// A job waits this many times as long as its last reconciliation took, so that a gang of thousands
/// whose pods all change leaves the loop free for others.
const GATHER_TIMES: u32 = 10;
/// The longest time for which changes are gathered.
const GATHER_MAX: Duration = Duration::from_secs(1);
/// The wait after the first failure; it doubles with each further failure in a row.
const RETRY_FIRST: Duration = Duration::from_millis(200);
/// The longest wait after a failure.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// The workqueue. It holds each key at most once.
#[derive(Default)]
pub(crate) struct WorkQueue {
    due: BTreeSet<(Instant, ObjectKey)>,
    at: BTreeMap<ObjectKey, Instant>,
    /// Keys in reconciliation, and when to run each again if something changed meanwhile.
    busy: BTreeMap<ObjectKey, Option<Instant>>,
    failures: BTreeMap<ObjectKey, u32>,
    /// The gathering time of jobs for which it is longer than usual.
    gather: BTreeMap<ObjectKey, Duration>,
}

impl WorkQueue {
    /// Something about the job changed.
    pub(crate) fn changed(&mut self, key: &ObjectKey, now: Instant) {
        let gather = self.gather.get(key).copied().unwrap_or(GATHER);
        self.wake(key, now + gather);
    }

    /// Records how long the job's reconciliation took; zero for a job that is gone.
    pub(crate) fn cost(&mut self, key: &ObjectKey, took: Duration) {
        let gather = took.saturating_mul(GATHER_TIMES).min(GATHER_MAX);
        if gather > GATHER {
            self.gather.insert(key.clone(), gather);
        } else {
            self.gather.remove(key);
        }
    }

    /// The job is to be reconciled by this time.
    pub(crate) fn wake(&mut self, key: &ObjectKey, at: Instant) {
        if let Some(again) = self.busy.get_mut(key) {
            *again = Some(again.map_or(at, |known| known.min(at)));
            return;
        }
        match self.at.get(key) {
            Some(known) if *known <= at => return,
            Some(known) => {
                self.due.remove(&(*known, key.clone()));
            }
            None => {}
        }
        self.at.insert(key.clone(), at);
        self.due.insert((at, key.clone()));
    }

    /// The next due job; it stays busy until `done` or `failed`.
    pub(crate) fn take(&mut self, now: Instant) -> Option<ObjectKey> {
        let first = self.due.first().filter(|(at, _)| *at <= now)?.clone();
        self.due.remove(&first);
        self.at.remove(&first.1);
        self.busy.insert(first.1.clone(), None);
        Some(first.1)
    }

    /// When the next job is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// The job's reconciliation ended; it may have requested the next one.
    pub(crate) fn done(&mut self, key: &ObjectKey, again: Option<Instant>) {
        self.failures.remove(key);
        self.release(key, again);
    }

    /// The job's reconciliation failed; it runs again after the backoff, and no earlier.
    pub(crate) fn failed(&mut self, key: &ObjectKey, now: Instant) {
        let failures = self.failures.entry(key.clone()).or_default();
        let wait = RETRY_FIRST
            .saturating_mul(1 << (*failures).min(16))
            .min(RETRY_MAX);
        *failures = failures.saturating_add(1);
        self.busy.insert(key.clone(), None);
        self.release(key, Some(now + wait));
    }

    fn release(&mut self, key: &ObjectKey, again: Option<Instant>) {
        let came_up = self.busy.remove(key).flatten();
        if let Some(at) = came_up.into_iter().chain(again).min() {
            self.wake(key, at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ObjectKey {
        ("team".to_owned(), name.to_owned())
    }

    #[test]
    fn changes_close_together_are_taken_once() {
        let (mut queue, start) = (WorkQueue::default(), Instant::now());
        queue.changed(&key("a"), start);
        queue.changed(&key("a"), start + Duration::from_millis(1));
        assert_eq!(queue.take(start), None);
        assert_eq!(queue.take(start + GATHER), Some(key("a")));
        assert_eq!(queue.take(start + GATHER), None);
    }

    #[test]
    fn a_job_that_takes_long_to_look_at_is_looked_at_less_often() {
        let (mut queue, start) = (WorkQueue::default(), Instant::now());
        let after = |queue: &mut WorkQueue, took: u64| {
            queue.cost(&key("a"), Duration::from_millis(took));
            queue.changed(&key("a"), start);
            let at = queue.next().unwrap();
            queue.take(at);
            queue.done(&key("a"), None);
            at - start
        };
        assert_eq!(after(&mut queue, 30), Duration::from_millis(300));
        assert_eq!(after(&mut queue, 5000), GATHER_MAX);
        assert_eq!(after(&mut queue, 0), GATHER);
    }

    #[test]
    fn a_change_during_a_look_asks_for_another() {
        let (mut queue, start) = (WorkQueue::default(), Instant::now());
        queue.wake(&key("a"), start);
        queue.take(start);
        queue.changed(&key("a"), start);
        assert_eq!(queue.take(start + GATHER), None, "never twice at a time");
        queue.done(&key("a"), Some(start + Duration::from_secs(9)));
        assert_eq!(queue.take(start + GATHER), Some(key("a")));
    }

    #[test]
    fn the_earlier_of_two_times_counts() {
        let (mut queue, start) = (WorkQueue::default(), Instant::now());
        queue.wake(&key("a"), start + Duration::from_secs(5));
        queue.wake(&key("a"), start + Duration::from_secs(2));
        queue.wake(&key("a"), start + Duration::from_secs(7));
        assert_eq!(queue.next(), Some(start + Duration::from_secs(2)));
        queue.take(start + Duration::from_secs(2));
        queue.done(&key("a"), None);
        assert_eq!(queue.next(), None);
    }

    #[test]
    fn failures_in_a_row_wait_longer_each_time_up_to_a_bound() {
        let (mut queue, mut now) = (WorkQueue::default(), Instant::now());
        queue.wake(&key("a"), now);
        let mut waits = Vec::new();
        for _ in 0..12 {
            queue.take(now).unwrap();
            queue.changed(&key("a"), now);
            queue.failed(&key("a"), now);
            let next = queue.next().unwrap();
            waits.push(next - now);
            now = next;
        }
        assert_eq!(waits[0], RETRY_FIRST);
        assert_eq!(waits[3], RETRY_FIRST * 8);
        assert_eq!(*waits.last().unwrap(), RETRY_MAX);
    }
}
