//! The record of decisions and their effects: one value for each line of output.

use jiff::Timestamp;
use resources::devices::ChosenDevices;
use resources::report::PlacementReport;
use serde::Serialize;

use crate::scenario::Seconds;

/// One decision, or one effect of a decision, with its time.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Decision<'a> {
    /// The policy that decided.
    pub policy: &'a str,
    /// The wall time.
    pub at: Timestamp,
    /// The simulated time, in seconds from the start.
    pub second: Seconds,
    /// The gang's namespace.
    pub namespace: &'a str,
    /// The gang: a PodGroup, or a pod without one.
    pub group: &'a str,
    /// The decision or effect.
    #[serde(flatten)]
    pub what: DecisionDetail<'a>,
}

/// A decision or its effect.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(
    tag = "decision",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum DecisionDetail<'a> {
    /// A pod is bound to a node.
    Bound {
        /// The pod.
        pod: &'a str,
        /// The node.
        node: &'a str,
        /// Container to resource to device ids; empty where devices are only counted.
        devices: &'a ChosenDevices,
    },
    /// A pod is evicted.
    Evicted {
        /// The pod.
        pod: &'a str,
        /// The pod's node.
        node: &'a str,
        /// The reason, in a word.
        reason: &'a str,
        /// The preemptor, as namespace/name.
        by: Option<&'a str>,
        /// The reason, in a sentence.
        message: &'a str,
    },
    /// An evicted pod is gone; its controller creates another, which waits.
    Gone {
        /// The pod.
        pod: &'a str,
        /// The node where it ran.
        node: &'a str,
    },
    /// A pod is nominated to a node: its victims there are still terminating.
    Nominated {
        /// The pod.
        pod: &'a str,
        /// The node.
        node: &'a str,
        /// As for a bound pod.
        devices: &'a ChosenDevices,
    },
    /// A future reservation for a pod: its resources are expected to become free.
    Reserved {
        /// The pod.
        pod: &'a str,
        /// The node.
        node: &'a str,
        /// When they are expected to be free.
        from: Timestamp,
    },
    /// A nomination or reservation ended, and the pod was not bound.
    Released {
        /// The pod.
        pod: &'a str,
        /// The node.
        node: &'a str,
    },
    /// A gang waits, or members beyond its minimum do; recorded when the reason changes.
    Pending {
        /// Its queue.
        queue: &'a str,
        /// Why it waits, and what would make it fit.
        report: &'a PlacementReport,
    },
    /// A gang is complete and runs.
    Started {
        /// Its queue.
        queue: &'a str,
        /// GPUs of its members, in thousandths.
        gpu_milli: i64,
        /// Seconds since it arrived.
        waited: Seconds,
    },
    /// A gang lost members that it needs.
    Interrupted {
        /// GPU-seconds of work that must be repeated.
        lost_gpu_seconds: i64,
    },
    /// A gang finished its work.
    Ended {
        /// Seconds since its arrival.
        completion: Seconds,
    },
    /// A part of a plan would have broken an invariant and was dropped.
    Violation {
        /// The invariant, and how it would have been broken.
        what: &'a str,
    },
}
