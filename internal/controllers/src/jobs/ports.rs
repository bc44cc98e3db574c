//! Which job holds which rendezvous port. The jobs' annotations are the record. This book caches
//! them, with the ports handed out since that no annotation shows yet.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::ObjectKey;

/// The book of ports.
pub(crate) struct PortAllocations {
    pub(crate) range: RangeInclusive<u16>,
    held: BTreeMap<ObjectKey, u16>,
    taken: BTreeSet<u16>,
}

impl PortAllocations {
    pub(crate) fn new(range: RangeInclusive<u16>) -> PortAllocations {
        PortAllocations {
            range,
            held: BTreeMap::new(),
            taken: BTreeSet::new(),
        }
    }

    /// Records that a job's annotation claims a port. The first job to claim a port holds it. A
    /// port handed out since takes precedence over the annotation, which may be older.
    pub(crate) fn seen(&mut self, key: &ObjectKey, port: u16) {
        if !self.held.contains_key(key) && !self.taken.contains(&port) {
            self.hold(key, port);
        }
    }

    /// Records that the job holds this port now, and no other.
    pub(crate) fn hold(&mut self, key: &ObjectKey, port: u16) {
        self.release(key);
        self.held.insert(key.clone(), port);
        self.taken.insert(port);
    }

    /// The job no longer needs its port.
    pub(crate) fn release(&mut self, key: &ObjectKey) {
        if let Some(port) = self.held.remove(key) {
            self.taken.remove(&port);
        }
    }

    /// Calls `ask` with the ports that other jobs hold.
    pub(crate) fn with_others<T>(
        &mut self,
        key: &ObjectKey,
        ask: impl FnOnce(&BTreeSet<u16>) -> T,
    ) -> T {
        let own = self.held.get(key).copied();
        if let Some(own) = own {
            self.taken.remove(&own);
        }
        let answer = catch_unwind(AssertUnwindSafe(|| ask(&self.taken)));
        // The job keeps its port even if `ask` panicked.
        self.taken.extend(own);
        answer.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ObjectKey {
        ("team".to_owned(), name.to_owned())
    }

    #[test]
    fn a_port_is_held_by_one_job_at_a_time() {
        let mut book = PortAllocations::new(20_000..=20_009);
        book.seen(&key("a"), 20_000);
        book.seen(&key("copy-of-a"), 20_000);
        let others = |book: &mut PortAllocations, name| book.with_others(&key(name), Clone::clone);
        assert!(others(&mut book, "a").is_empty());
        assert!(others(&mut book, "copy-of-a").contains(&20_000));
        book.hold(&key("a"), 20_003);
        book.seen(&key("a"), 20_000);
        assert_eq!(others(&mut book, "b"), [20_003].into());
        book.release(&key("a"));
        assert!(others(&mut book, "b").is_empty());
    }

    #[test]
    fn a_job_keeps_its_port_when_asking_panics() {
        let mut book = PortAllocations::new(1..=9);
        let key = ("team".to_owned(), "a".to_owned());
        book.hold(&key, 5);
        let asked = crate::retry::caught(|| book.with_others(&key, |_| -> u8 { panic!("asked") }));
        assert_eq!(asked.unwrap_err().0, "asked");
        let other = ("team".to_owned(), "b".to_owned());
        assert!(book.with_others(&other, |taken| taken.contains(&5)));
    }
}
