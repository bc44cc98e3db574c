//! Places one gang: at least its minimum, or no pod at all.
//!
//! Method: the gang passes the gates in this module (hold after a failed binding, queue, minimum
//! resources, existing members), then a placement tree is built (`branch`), checked against total
//! capacity (`demand_forecast`), and searched domain by domain (`search`). Capacity taken by a failed
//! attempt is returned before the attempt ends, and the obstacle reported is the one seen at the
//! moment of failure.
//!
//! Tests: `tests/gangs.rs`, `tests/properties.rs`, `tests/topology_oracle.rs`.

mod balance;
mod branch;
mod demand_forecast;
mod gpu_models;
mod inter_pod_affinity;
mod pick;
mod requeue;
mod run;
mod scope;
mod search;
mod single_node;
mod slices;
mod spread;

use std::sync::Arc;

use jiff::Timestamp;

use crate::class::ClassIx;
use crate::evict::ReservedPlace;
use crate::gang::{Gang, GangKey};
use crate::node::NodeIx;
use crate::pod::PodKey;
use crate::queue::Admission;
use crate::report::Obstacle;
use crate::state::Scheduler;

use run::PlacementRun;

pub(crate) use requeue::BlockedAnswer;

/// A member and the node and devices found for it.
#[derive(Clone, Debug)]
pub(crate) struct Placement {
    pub(crate) pod: PodKey,
    pub(crate) node: NodeIx,
    pub(crate) devices: Vec<Arc<str>>,
    pub(crate) class: ClassIx,
}

/// The result of one attempt to place a gang.
#[derive(Debug)]
pub(crate) enum Attempt {
    /// No member was waiting.
    Nothing,
    /// No member was placed.
    Blocked(Obstacle),
    /// The minimum is placed, and assumed until the caller accepts or withdraws it.
    Placed(PlacedMembers),
}

/// A placement that its caller ends with [`Scheduler::accept`] or [`Scheduler::withdraw`].
#[derive(Debug)]
pub(crate) struct PlacedMembers {
    pub(crate) members: Vec<Placement>,
    /// Why members beyond the minimum still wait.
    pub(crate) rest: Option<Obstacle>,
    /// The places that were reserved for the gang's moved members, and that the placement used up.
    pub(crate) used: Vec<ReservedPlace>,
}

impl Scheduler {
    /// Tries to place a gang with all its members. Placed pods are assumed.
    pub(crate) fn attempt(&mut self, key: &GangKey, now: Timestamp) -> Attempt {
        self.attempt_once(key, now, usize::MAX)
    }

    /// Tries the gang whose turn it is: its minimum, and at most `beyond` members beyond it. A
    /// blocked gang gets its cached answer if nothing changed that could help it.
    pub(crate) fn attempt_turn(&mut self, key: &GangKey, now: Timestamp, beyond: usize) -> Attempt {
        let attempt = self.attempt_once(key, now, beyond);
        if matches!(attempt, Attempt::Blocked(_)) {
            self.make_head(key, now);
        }
        attempt
    }

    fn attempt_once(&mut self, key: &GangKey, now: Timestamp, beyond: usize) -> Attempt {
        if let Some(obstacle) = self.cached_answer(key) {
            return Attempt::Blocked(obstacle);
        }
        let attempt = match self.held_back(key, now) {
            Some(obstacle) => Attempt::Blocked(obstacle),
            None => {
                let attempt = self.attempt_with_kept(key, now, beyond);
                let attempt = self.admit_behind_claims(key, attempt, now);
                let attempt = self.admit_behind_head(key, attempt, now, beyond);
                self.charge_claims(key, &attempt, now);
                attempt
            }
        };
        self.park(key, &attempt);
        attempt
    }

    /// Tries a gang without regard to a cached answer, with the reservations for its moved members
    /// released to it.
    pub(crate) fn attempt_with_kept(
        &mut self,
        key: &GangKey,
        now: Timestamp,
        beyond: usize,
    ) -> Attempt {
        let kept = self.release_places_for_turn(key);
        match self.attempt_freely(key, now, beyond) {
            Attempt::Placed(placed) => Attempt::Placed(PlacedMembers {
                used: kept,
                ..placed
            }),
            attempt => {
                self.reserve_again(key, kept);
                attempt
            }
        }
    }

    /// Accepts a placement: the reservations that it used up end. Returns the placed members, and
    /// why members beyond the minimum still wait.
    pub(crate) fn accept(&mut self, placed: PlacedMembers) -> (Vec<Placement>, Option<Obstacle>) {
        self.forget_places(placed.used);
        (placed.members, placed.rest)
    }

    /// Undoes a placement as if it had not been tried: the reservations that it used up hold again.
    pub(crate) fn withdraw(&mut self, key: &GangKey, placed: PlacedMembers) {
        self.withdraw_placements(key, &placed.members);
        self.reserve_again(key, placed.used);
    }

    fn attempt_freely(&mut self, key: &GangKey, now: Timestamp, beyond: usize) -> Attempt {
        if let Err(obstacle) = self.check_admission(key, now) {
            return Attempt::Blocked(obstacle);
        }
        let Some(gang) = self.gangs.get(key) else {
            return Attempt::Nothing;
        };
        if let Some(obstacle) = self.missing_members(key, gang) {
            return Attempt::Blocked(obstacle);
        }
        if gang.total.pending == 0 {
            return Attempt::Nothing;
        }
        if let Some(obstacle) = self.held_by_claims(key) {
            return Attempt::Blocked(obstacle);
        }
        let Some(gang) = self.gangs.get(key) else {
            return Attempt::Nothing;
        };
        let Some(payer) = gang.payer else {
            return Attempt::Nothing;
        };
        if let Some(obstacle) = self.check_total_room_uniform(key) {
            return Attempt::Blocked(obstacle);
        }
        let Some(gang) = self.gangs.get(key) else {
            return Attempt::Nothing;
        };
        let root = match self.tree_of(key, gang) {
            Ok(root) => root,
            Err(obstacle) => return Attempt::Blocked(obstacle),
        };
        let mut run = PlacementRun::new(gang, payer, key.lone, beyond);
        let placed = match self.by_gpu_model(&root, payer) {
            Some(roots) => self.place_by_gpu_model(&root, &roots, &mut run),
            None => self.place(&root, &mut run),
        };
        match placed {
            Ok(rest) if run.placed.is_empty() => match rest {
                Some(obstacle) => Attempt::Blocked(obstacle),
                None => Attempt::Nothing,
            },
            Ok(rest) => {
                self.assume(key, &run.placed);
                Attempt::Placed(PlacedMembers {
                    members: run.placed,
                    rest,
                    used: Vec::new(),
                })
            }
            Err(obstacle) => {
                self.undo_placements(&mut run, 0);
                Attempt::Blocked(obstacle)
            }
        }
    }

    /// The gates before placement: the hold after a failed binding, the queue, and `minResources`.
    fn check_admission(&mut self, key: &GangKey, now: Timestamp) -> Result<(), Obstacle> {
        let Some(gang) = self.gangs.get(key) else {
            return Ok(());
        };
        if let Some(until) = gang.held_until {
            if now < until {
                let held = Obstacle::held(gang.held_why.as_deref());
                self.requeue_by(until);
                return Err(held);
            }
            if let Some(gang) = self.gangs.get_mut(key) {
                gang.held_until = None;
                gang.held_why = None;
            }
        }
        let Some(gang) = self.gangs.get(key) else {
            return Ok(());
        };
        if gang.spec.is_none() && !key.lone {
            return Err(Obstacle::no_group(key));
        }
        let rules = gang.payer.and_then(|payer| self.queues.rules(payer.queue));
        let Some(rules) = rules else {
            return Err(Obstacle::no_queue(&gang.queue));
        };
        if self.excluded_from_queue(key, gang) {
            let excluded = Obstacle::excluded(&gang.queue, &key.namespace);
            self.remove_expected(key);
            if let Some(gang) = self.gangs.get_mut(key) {
                gang.admitted = false;
            }
            return Err(excluded);
        }
        if gang.admitted {
            return Ok(());
        }
        if rules.admission != Admission::Open {
            return Err(Obstacle::closed(&gang.queue));
        }
        if let Some(obstacle) = self.check_min_resources(gang) {
            return Err(obstacle);
        }
        if let Some(gang) = self.gangs.get_mut(key) {
            gang.admitted = true;
        }
        self.settle(key);
        Ok(())
    }

    /// True if the gang's queue does not admit the gang's namespace. A gang with members on nodes goes on: a change of
    /// labels or of a selector ends no running work.
    fn excluded_from_queue(&self, key: &GangKey, gang: &Gang) -> bool {
        let rules = gang.payer.and_then(|payer| self.queues.rules(payer.queue));
        let selector = rules.and_then(|rules| rules.namespaces.as_ref());
        selector.is_some_and(|selector| {
            gang.total.have() == 0 && !self.namespaces.admits(selector, &key.namespace)
        })
    }

    /// Volcano's enqueue check on `minResources`: a gang is admitted if its queue's capability
    /// could hold it together with what the queue holds and what gangs admitted earlier still
    /// expect. A cluster without free capacity does not stop admission; a cluster that is too small
    /// does.
    fn check_min_resources(&self, gang: &Gang) -> Option<Obstacle> {
        let spec = gang.spec.as_ref()?;
        let mut needs = spec.min_resources.0.iter();
        if let Some((ix, asked)) = needs.find(|(ix, asked)| *asked > self.total.get(*ix)) {
            return Some(self.beyond_cluster(*ix, *asked));
        }
        let bound = self.queues.admits(gang.payer?, &spec.min_resources)?;
        let asked = spec.min_resources.get(bound.resource());
        Some(self.over_quota(&gang.queue, bound, asked, 0))
    }

    fn missing_members(&self, key: &GangKey, gang: &Gang) -> Option<Obstacle> {
        let minimum = gang.minimum(key);
        let mut missing = Vec::new();
        for (task, min) in gang.spec.iter().flat_map(|spec| &spec.min_task_member) {
            let present = gang.task(task).present();
            if present < *min {
                missing.push(format!("{present} of {min} of task {task}"));
            }
        }
        for part in gang.spec.iter().flat_map(|spec| &spec.shape.sub_groups) {
            let present = gang.part(&part.name).present();
            if present < part.minimum {
                missing.push(format!(
                    "{present} of {} of sub-group {}",
                    part.minimum, part.name
                ));
            }
        }
        let present = gang.total.present();
        if missing.is_empty() && present >= minimum {
            return None;
        }
        if missing.is_empty() {
            missing.push(format!("{present} of {minimum}"));
        }
        Some(Obstacle::missing_members(
            &missing.join(", "),
            gang.total.have(),
        ))
    }
}
