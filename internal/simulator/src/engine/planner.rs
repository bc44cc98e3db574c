//! The seam between simulated time and whoever decides: the production scheduler, or one of the
//! reference schedulers it is compared with.

use jiff::Timestamp;
use resources::devices::ChosenDevices;
use resources::report::PlacementReport;

use crate::engine::gang::{Gang, GangIx, NodeIx};
use crate::scenario::Seconds;

/// All gangs by place.
pub(crate) type Gangs = [Gang];

/// A member that a plan places.
pub(crate) struct Start {
    pub(crate) gang: GangIx,
    pub(crate) member: usize,
    pub(crate) node: NodeIx,
    pub(crate) devices: ChosenDevices,
}

/// A member that a plan evicts.
pub(crate) struct Evict {
    pub(crate) gang: GangIx,
    pub(crate) member: usize,
    pub(crate) reason: String,
    pub(crate) by: Option<String>,
    pub(crate) message: String,
    /// How long it needs to save itself, where it does so on being told to go.
    pub(crate) grace: Option<Seconds>,
}

/// Room that is held for a member, or planned for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) gang: GangIx,
    pub(crate) member: usize,
    pub(crate) node: NodeIx,
    pub(crate) devices: ChosenDevices,
    /// When it will be free; none: as soon as those who are there have left.
    pub(crate) from: Option<Timestamp>,
}

/// What a plan decided.
#[derive(Default)]
pub(crate) struct Decided {
    pub(crate) starts: Vec<Start>,
    pub(crate) evictions: Vec<Evict>,
    /// Gangs that wait and have something new to say.
    pub(crate) reports: Vec<(GangIx, PlacementReport)>,
    /// What was first said of when gangs would start: the earliest, likely and latest second.
    pub(crate) estimates: Vec<(GangIx, [Seconds; 3])>,
    /// Room that is held or planned now; none if nothing changed since the last plan.
    pub(crate) holds: Option<Vec<Hold>>,
    /// What was left out because it would have broken an invariant.
    pub(crate) violations: Vec<String>,
    /// When to plan again even if nothing changes.
    pub(crate) wake: Option<Seconds>,
}

/// Somebody who decides. It is told what happened, in order, and asked to plan.
pub(crate) trait Planner {
    /// A gang's objects are there; members that are placed already hold their room.
    fn arrived(&mut self, at: GangIx, gang: &Gang, now: Seconds);
    /// These members are in place and run.
    fn running(&mut self, at: GangIx, gang: &Gang, members: &[usize], now: Seconds);
    /// A member was evicted and is stopping.
    fn leaving(&mut self, at: GangIx, gang: &Gang, member: usize, now: Seconds);
    /// A member that was stopping is gone; another takes its place and waits (`gang` shows it).
    fn returned(&mut self, at: GangIx, gang: &Gang, member: usize, now: Seconds);
    /// A gang's work is done: whatever it held is free.
    fn ended(&mut self, at: GangIx, gang: &Gang, now: Seconds);
    /// Decides.
    fn plan(&mut self, gangs: &Gangs, now: Seconds) -> Decided;
}
