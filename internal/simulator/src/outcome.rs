//! Owns what a simulation leaves behind: what became of each gang, and the account of the whole.

use jiff::Timestamp;
use resources::report::Verdict;

pub use crate::engine::account::Point;
use crate::scenario::Seconds;

/// What became of one gang.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GangOutcome {
    /// Its namespace.
    pub namespace: String,
    /// Its PodGroup's name, or its pod's.
    pub name: String,
    /// Its queue's place in [`Outcome::queues`].
    pub queue: usize,
    /// GPUs that it asks for, in thousandths.
    pub gpu_milli: i64,
    /// Its members.
    pub members: usize,
    /// When it arrived.
    pub arrived: Seconds,
    /// When it first became whole.
    pub started: Option<Seconds>,
    /// When its work was done.
    pub ended: Option<Seconds>,
    /// How long its work takes; none for ever.
    pub duration: Option<Seconds>,
    /// It ran when the simulation began: its wait is not this one's.
    pub ran_before: bool,
    /// Members evicted.
    pub evictions: u32,
    /// Times that it had to stop.
    pub interruptions: u32,
    /// GPU-seconds of work that had to be done again.
    pub lost_gpu_seconds: i64,
    /// What kept it when it last said so.
    pub verdict: Option<Verdict>,
}

/// What a simulation leaves behind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The policy.
    pub policy: String,
    /// The wall time of second 0.
    pub start: Timestamp,
    /// Every gang, in the order in which they arrived.
    pub gangs: Vec<GangOutcome>,
    /// Queue names.
    pub queues: Vec<String>,
    /// Queue weights, beside them.
    pub weights: Vec<i64>,
    /// GPUs of all nodes, in thousandths.
    pub gpu_milli: i64,
    /// Nodes.
    pub nodes: usize,
    /// Second of the first arrival.
    pub first: Seconds,
    /// Second of the last thing that happened.
    pub last: Seconds,
    /// The account over the whole time.
    pub whole: Point,
    /// The account until the last arrival.
    pub arriving: Option<Point>,
    /// The same in stretches of `width` seconds.
    pub series: Vec<Point>,
    /// Seconds that one point of the series covers.
    pub width: Seconds,
    /// Jain's index of what waiting queues held by weight, over the time in which several waited.
    pub fairness: Option<f64>,
    /// Plans made.
    pub plans: u64,
    /// Members placed.
    pub binds: u64,
    /// Parts of plans that would have broken an invariant.
    pub violations: u64,
}
