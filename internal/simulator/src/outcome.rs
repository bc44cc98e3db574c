//! The results of a simulation: the outcome of each gang, and the account of the whole.

use jiff::Timestamp;
use resources::report::WaitReason;

use crate::scenario::Seconds;

/// One interval; the values are sums over its seconds, GPUs in thousandths.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Point {
    /// Seconds that the interval covers so far.
    pub seconds: f64,
    /// Allocated GPUs.
    pub held: f64,
    /// GPUs of complete gangs.
    pub working: f64,
    /// Free GPUs on nodes that are partly used.
    pub stranded: f64,
    /// GPUs requested by waiting gangs.
    pub asked: f64,
    /// Waiting gangs.
    pub waiting: f64,
    /// Allocated GPUs, by queue.
    pub queues: Vec<f64>,
}

impl Point {
    pub(crate) fn merge(&mut self, other: &Point) {
        self.seconds += other.seconds;
        self.held += other.held;
        self.working += other.working;
        self.stranded += other.stranded;
        self.asked += other.asked;
        self.waiting += other.waiting;
        if self.queues.len() < other.queues.len() {
            self.queues.resize(other.queues.len(), 0.0);
        }
        for (own, more) in self.queues.iter_mut().zip(&other.queues) {
            *own += more;
        }
    }
}

/// The outcome of one gang.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GangOutcome {
    /// Its namespace.
    pub namespace: String,
    /// Its PodGroup's name, or its pod's.
    pub name: String,
    /// Its queue's index in [`SimulationOutcome::queues`].
    pub queue: usize,
    /// GPUs that it requests, in thousandths.
    pub gpu_milli: i64,
    /// Its members.
    pub members: usize,
    /// When it arrived.
    pub arrived: Seconds,
    /// When it first became complete.
    pub started: Option<Seconds>,
    /// When its work was done.
    pub ended: Option<Seconds>,
    /// How long its work takes; none for ever.
    pub duration: Option<Seconds>,
    /// It ran when the simulation began: its wait does not count.
    pub ran_before: bool,
    /// Members evicted.
    pub evictions: u32,
    /// How many times it had to stop.
    pub interruptions: u32,
    /// GPU-seconds of work that had to be repeated.
    pub lost_gpu_seconds: i64,
    /// The last reported reason for waiting.
    pub verdict: Option<WaitReason>,
    /// The first estimate of its start, in seconds: earliest, likely and latest.
    pub foretold: Option<[Seconds; 3]>,
}

/// The results of a simulation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SimulationOutcome {
    /// The policy.
    pub policy: String,
    /// The wall time of second 0.
    pub start: Timestamp,
    /// Every gang, in the order in which they arrived.
    pub gangs: Vec<GangOutcome>,
    /// Queue names.
    pub queues: Vec<String>,
    /// Queue weights, in the same order.
    pub weights: Vec<i64>,
    /// GPUs of all nodes, in thousandths.
    pub gpu_milli: i64,
    /// Nodes.
    pub nodes: usize,
    /// Second of the first arrival.
    pub first: Seconds,
    /// Second of the last event.
    pub last: Seconds,
    /// The account over the whole time.
    pub whole: Point,
    /// The account until the last arrival.
    pub arriving: Option<Point>,
    /// The same by intervals of `width` seconds.
    pub series: Vec<Point>,
    /// Seconds that one point of the series covers.
    pub width: Seconds,
    /// Jain's index of the waiting queues' allocations per weight, over the time in which several
    /// waited.
    pub fairness: Option<f64>,
    /// Plans made.
    pub plans: u64,
    /// Members placed.
    pub binds: u64,
    /// Parts of plans that would have broken an invariant.
    pub violations: u64,
}
