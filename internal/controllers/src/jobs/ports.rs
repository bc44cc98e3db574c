//! Which job of one kind holds which rendezvous ports. The jobs' annotations are the record. This book caches
//! them, with the ports handed out since that no annotation shows yet.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use resources::names;

use super::ObjectKey;

/// The book of ports.
#[derive(Default)]
pub(crate) struct PortAllocations {
    held: BTreeMap<ObjectKey, RangeInclusive<u16>>,
    taken: BTreeSet<u16>,
}

impl PortAllocations {
    /// Records that a job's annotation claims `count` ports from this one on. The first job to claim ports holds
    /// them. Ports handed out since take precedence over the annotation, which may be older.
    pub(crate) fn seen(&mut self, key: &ObjectKey, first: u16, count: u16) {
        let claimed = block(first, count);
        if !self.held.contains_key(key) && self.taken.range(claimed).next().is_none() {
            self.hold(key, first, count);
        }
    }

    /// Records that the job holds `count` ports from this one on now, and no others.
    pub(crate) fn hold(&mut self, key: &ObjectKey, first: u16, count: u16) {
        self.release(key);
        let ports = block(first, count);
        self.taken.extend(ports.clone());
        self.held.insert(key.clone(), ports);
    }

    /// Records the `count` ports that the job's reconciliation writes into its annotations, if it writes any.
    pub(crate) fn hold_written(
        &mut self,
        key: &ObjectKey,
        annotations: &BTreeMap<String, Option<String>>,
        count: u16,
    ) {
        let written = annotations.get(names::RENDEZVOUS_PORT);
        if let Some(first) = written.and_then(|port| port.as_ref()?.parse().ok()) {
            self.hold(key, first, count);
        }
    }

    /// The job no longer needs its ports.
    pub(crate) fn release(&mut self, key: &ObjectKey) {
        for port in self.held.remove(key).into_iter().flatten() {
            self.taken.remove(&port);
        }
    }

    /// Calls `ask` with the ports that other jobs hold.
    pub(crate) fn with_others<T>(
        &mut self,
        key: &ObjectKey,
        ask: impl FnOnce(&BTreeSet<u16>) -> T,
    ) -> T {
        let own = self.held.get(key).cloned();
        for port in own.clone().into_iter().flatten() {
            self.taken.remove(&port);
        }
        let answer = catch_unwind(AssertUnwindSafe(|| ask(&self.taken)));
        // The job keeps its ports even if `ask` panicked.
        self.taken.extend(own.into_iter().flatten());
        answer.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

/// `count` ports (at least one) from the first on, as far as there are ports.
fn block(first: u16, count: u16) -> RangeInclusive<u16> {
    first..=first.saturating_add(count.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ObjectKey {
        ("team".to_owned(), name.to_owned())
    }

    #[test]
    fn a_port_is_held_by_one_job_at_a_time() {
        let mut book = PortAllocations::default();
        book.seen(&key("a"), 20_000, 1);
        book.seen(&key("copy-of-a"), 20_000, 1);
        let others = |book: &mut PortAllocations, name| book.with_others(&key(name), Clone::clone);
        assert!(others(&mut book, "a").is_empty());
        assert!(others(&mut book, "copy-of-a").contains(&20_000));
        book.hold(&key("a"), 20_003, 1);
        book.seen(&key("a"), 20_000, 1);
        assert_eq!(others(&mut book, "b"), [20_003].into());
        book.release(&key("a"));
        assert!(others(&mut book, "b").is_empty());
    }

    #[test]
    fn a_job_holds_as_many_ports_in_a_row_as_it_needs() {
        let mut book = PortAllocations::default();
        book.hold(&key("a"), 100, 4);
        let others = |book: &mut PortAllocations, name| book.with_others(&key(name), Clone::clone);
        assert_eq!(others(&mut book, "b"), [100, 101, 102, 103].into());
        assert!(others(&mut book, "a").is_empty());
        book.seen(&key("b"), 103, 2);
        assert!(others(&mut book, "a").is_empty(), "103 is held");
        book.release(&key("a"));
        book.seen(&key("b"), u16::MAX, 3);
        assert_eq!(others(&mut book, "a"), [u16::MAX].into());
    }

    #[test]
    fn a_job_keeps_its_port_when_asking_panics() {
        let mut book = PortAllocations::default();
        let key = ("team".to_owned(), "a".to_owned());
        book.hold(&key, 5, 1);
        let asked = supervisor::caught(|| book.with_others(&key, |_| -> u8 { panic!("asked") }));
        assert_eq!(asked.unwrap_err().message(), "asked");
        let other = ("team".to_owned(), "b".to_owned());
        assert!(book.with_others(&other, |taken| taken.contains(&5)));
    }
}
