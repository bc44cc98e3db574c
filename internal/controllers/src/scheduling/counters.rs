//! Counters of the scheduler's loop, for metrics. They start at zero with each start of the loops.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The counters.
#[derive(Debug, Default)]
pub struct SchedulingCounters {
    listed: AtomicBool,
    plans: AtomicU64,
    planning_nanos: AtomicU64,
    binds: AtomicU64,
    binds_refused: AtomicU64,
    evictions: AtomicU64,
    evictions_refused: AtomicU64,
    violations: AtomicU64,
}

/// The counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CounterSnapshot {
    /// Everything was listed once: plans are made.
    pub listed: bool,
    /// Plans made.
    pub plans: u64,
    /// The total time of planning.
    pub planning: Duration,
    /// Pods bound.
    pub binds: u64,
    /// Bindings that the API refused.
    pub binds_refused: u64,
    /// Pods evicted.
    pub evictions: u64,
    /// Evictions that the API refused.
    pub evictions_refused: u64,
    /// Invariant violations that were found in plans and removed before writing.
    pub violations: u64,
}

impl SchedulingCounters {
    /// The counts now.
    #[must_use]
    pub fn counts(&self) -> CounterSnapshot {
        CounterSnapshot {
            listed: self.listed.load(Relaxed),
            plans: self.plans.load(Relaxed),
            planning: Duration::from_nanos(self.planning_nanos.load(Relaxed)),
            binds: self.binds.load(Relaxed),
            binds_refused: self.binds_refused.load(Relaxed),
            evictions: self.evictions.load(Relaxed),
            evictions_refused: self.evictions_refused.load(Relaxed),
            violations: self.violations.load(Relaxed),
        }
    }

    pub(super) fn set_listed(&self) {
        self.listed.store(true, Relaxed);
    }

    pub(super) fn planned(&self, took: Duration, violations: usize) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.plans.fetch_add(1, Relaxed);
        self.planning_nanos.fetch_add(nanos, Relaxed);
        self.violations.fetch_add(violations as u64, Relaxed);
    }

    pub(super) fn bound(&self, refused: bool) {
        let count = if refused {
            &self.binds_refused
        } else {
            &self.binds
        };
        count.fetch_add(1, Relaxed);
    }

    pub(super) fn evicted(&self, refused: bool) {
        let count = if refused {
            &self.evictions_refused
        } else {
            &self.evictions
        };
        count.fetch_add(1, Relaxed);
    }
}
