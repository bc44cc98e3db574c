//! The account of allocations: one record for each pod (its user, team, queue, node and amounts), and sums of these by
//! hour. It has no clock and does no I/O: a shell feeds it with pods and times, and stores the changed records.
//!
//! An allocation begins when a pod is bound to a node and ends with the pod's containers, or with the pod's deletion.
//! Its amounts are the pod's requests, as Slurm's `sacct` counts AllocTRES. Of held GPUs it is also counted how long they
//! were active and idle, where a node can measure it ([`ActivityWatch`]); the rest is unmeasured. [`IdleGpus`] knows since
//! when the GPUs of a pod do nothing.
//!
//! Each second of an allocation is in exactly one sum: [`UsageBook::count_until`] moves the time up to which all open
//! allocations are counted, and an end that becomes known late is corrected. The changed records of one
//! [`UsageBook::changes`] belong in one atomic write; after a crash [`UsageBook::restore`] goes on from the last one.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod activity;
mod allocation;
mod book;
mod idle;
mod query;
mod sums;

pub use activity::{ActivityWatch, GpuActivity, IDLE_BELOW_PERCENT, OBSERVED_AT_LEAST_EVERY};
pub use allocation::{Allocation, AllocationEnd, Owner, PodUid, accounted};
pub use book::{ALLOCATIONS_MAX, StoredRecords, UsageBook};
pub use idle::IdleGpus;
pub use query::{Dimension, Period, UsageQuery, UsageQueryError, UsageRow};
pub use sums::{DAYS_MAX, GpuHours, GpuTime, HOURLY_FOR, Sums};
