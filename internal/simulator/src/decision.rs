//! Owns the record of what was decided and what came of it: one value for each line of output.

use jiff::Timestamp;
use resources::devices::ChosenDevices;
use resources::report::PlacementReport;
use serde::Serialize;

use crate::scenario::Seconds;

/// One decision, or one thing that came of one, with its time.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Decision<'a> {
    /// The policy that decided.
    pub policy: &'a str,
    /// When, as wall time.
    pub at: Timestamp,
    /// When, in seconds from the start.
    pub second: Seconds,
    /// The gang's namespace.
    pub namespace: &'a str,
    /// The gang: a PodGroup, or a pod without one.
    pub group: &'a str,
    /// What.
    #[serde(flatten)]
    pub what: What<'a>,
}

/// What was decided or happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(
    tag = "decision",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum What<'a> {
    /// A pod goes to a node.
    Bound {
        /// The pod.
        pod: &'a str,
        /// The node.
        node: &'a str,
        /// Container to resource to device ids; empty where devices are only counted.
        devices: &'a ChosenDevices,
    },
    /// A pod has to go.
    Evicted {
        /// The pod.
        pod: &'a str,
        /// Where it is.
        node: &'a str,
        /// Why, in a word.
        reason: &'a str,
        /// The gang it makes room for, as namespace/name.
        by: Option<&'a str>,
        /// Why, in a sentence.
        message: &'a str,
    },
    /// An evicted pod is gone; whoever made it makes another, which waits.
    Gone {
        /// The pod.
        pod: &'a str,
        /// Where it was.
        node: &'a str,
    },
    /// Room is held for a pod: others are leaving it.
    Nominated {
        /// The pod.
        pod: &'a str,
        /// The node.
        node: &'a str,
        /// As of a pod that is bound.
        devices: &'a ChosenDevices,
    },
    /// Room is planned for a pod: it will be free later, as far as can be told.
    Reserved {
        /// The pod.
        pod: &'a str,
        /// The node.
        node: &'a str,
        /// When it will be free.
        from: Timestamp,
    },
    /// Room that was held or planned for a pod is so no more, and the pod did not get it.
    Released {
        /// The pod.
        pod: &'a str,
        /// The node.
        node: &'a str,
    },
    /// A gang waits, or members of it beyond its minimum do; said when what it waits for changes.
    Pending {
        /// Its queue.
        queue: &'a str,
        /// Why, and what would make it fit.
        report: &'a PlacementReport,
    },
    /// A gang became whole and runs.
    Started {
        /// Its queue.
        queue: &'a str,
        /// GPUs of its members, in thousandths.
        gpu_milli: i64,
        /// Seconds since it arrived.
        waited: Seconds,
    },
    /// A gang lost members that it can't do without.
    Interrupted {
        /// GPU-seconds of work that have to be done again.
        lost_gpu_seconds: i64,
    },
    /// A gang's work is done.
    Ended {
        /// Seconds from its arrival.
        completion: Seconds,
    },
    /// A part of a plan would have broken an invariant and was left out.
    Violation {
        /// Which, and how.
        what: &'a str,
    },
}
