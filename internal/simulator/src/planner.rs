//! The interface between simulated time and a scheduler: the production scheduler, or one of the
//! reference schedulers that it is compared with.

use jiff::Timestamp;
use resources::devices::ChosenDevices;
use resources::report::PlacementReport;

use crate::gang::{GangIx, NodeIndex, SimulatedGang};
use crate::scenario::Seconds;

/// All gangs by index.
pub(crate) type Gangs = [SimulatedGang];

/// A member that a plan places.
pub(crate) struct PlannedStart {
    pub(crate) gang: GangIx,
    pub(crate) member: usize,
    pub(crate) node: NodeIndex,
    pub(crate) devices: ChosenDevices,
}

/// A member that a plan evicts.
pub(crate) struct Evict {
    pub(crate) gang: GangIx,
    pub(crate) member: usize,
    pub(crate) reason: String,
    pub(crate) by: Option<String>,
    pub(crate) message: String,
    /// The time that it needs for a checkpoint on eviction, if it makes one.
    pub(crate) grace: Option<Seconds>,
}

/// A nomination or a future reservation of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemberHold {
    pub(crate) gang: GangIx,
    pub(crate) member: usize,
    pub(crate) node: NodeIndex,
    pub(crate) devices: ChosenDevices,
    /// When the resources will be free; none: as soon as the terminating pods are gone.
    pub(crate) from: Option<Timestamp>,
}

/// A plan's decisions.
#[derive(Default)]
pub(crate) struct PlanDecisions {
    pub(crate) starts: Vec<PlannedStart>,
    pub(crate) evictions: Vec<Evict>,
    /// Waiting gangs whose report changed.
    pub(crate) reports: Vec<(GangIx, PlacementReport)>,
    /// The first estimates of gangs' starts: the earliest, likely and latest second.
    pub(crate) estimates: Vec<(GangIx, [Seconds; 3])>,
    /// The current nominations and reservations; none if unchanged since the last plan.
    pub(crate) holds: Option<Vec<MemberHold>>,
    /// The parts of the plan that were dropped because they would have broken an invariant.
    pub(crate) violations: Vec<String>,
    /// When to plan again even if nothing changes.
    pub(crate) requeue_at: Option<Seconds>,
}

/// A scheduler. It receives the events in order, and is asked for plans.
pub(crate) trait Planner {
    /// A gang's objects exist; members that are placed already hold their resources.
    fn arrived(&mut self, at: GangIx, gang: &SimulatedGang, now: Seconds);
    /// These members are placed and run.
    fn running(&mut self, at: GangIx, gang: &SimulatedGang, members: &[usize], now: Seconds);
    /// A member was evicted and is terminating.
    fn leaving(&mut self, at: GangIx, gang: &SimulatedGang, member: usize, now: Seconds);
    /// A terminating member is gone; its successor waits (`gang` shows it).
    fn returned(&mut self, at: GangIx, gang: &SimulatedGang, member: usize, now: Seconds);
    /// A gang's work is done: its resources are free.
    fn ended(&mut self, at: GangIx, gang: &SimulatedGang, now: Seconds);
    /// Makes a plan.
    fn plan(&mut self, gangs: &Gangs, now: Seconds) -> PlanDecisions;
}
