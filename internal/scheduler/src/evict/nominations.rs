//! Nominations: places that are held for a gang until its victims have left. The nominated members
//! hold room, devices and quota as if they were bound. They are bound once the room is free, and
//! the gang's minimum together. A nomination is given up if the place is no longer valid
//! (`tests/evictions.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::reserved_places::ReservedPlace;
use super::transaction::PodPlacement;
use crate::devices;
use crate::gang::GangKey;
use crate::node::{Node, NodeIx};
use crate::place::Placement;
use crate::plan::{GangReservation, GroupRef, Plan, PodRef, ReservationKind};
use crate::pod::{PodKey, PodStage};
use crate::resource::{GPU, GPU_UNIT, Room};
use crate::share::{FreeGpus, GpuLedger, Take};
use crate::state::Scheduler;

/// The most nominated gangs that one plan tries to place on nodes that no pod need leave first.
const ELSEWHERE_MAX: usize = 16;

/// Whether these GPUs are free, given what is held on the node.
pub(super) fn gpus_fit(node: &Node, held: &GpuLedger, take: &Take, ids: &[Arc<str>]) -> bool {
    if take.gpus == 0 {
        return true;
    }
    let Some(offer) = &node.offer else {
        return false;
    };
    let begins = ids.iter().filter(|id| held.of(id) == 0).count() as i64;
    let unnamed = (take.gpus - ids.len() as i64).max(0);
    ids.iter().all(|id| held.of(id) + take.each <= GPU_UNIT)
        && FreeGpus::of(offer, held).whole >= begins + unnamed
}

impl Scheduler {
    /// The stages of members that were just placed: which can be bound now, and which must wait
    /// until pods have left. If the members that can be bound are not enough for the gang's
    /// minimum, all of them wait.
    pub(crate) fn stages(&self, key: &GangKey, placed: &[Placement]) -> Vec<PodStage> {
        let free = |placement: &Placement| self.nodes[placement.node].terminating_pods == 0;
        if placed.iter().all(free) {
            return self.staged(key, placed, &vec![true; placed.len()]);
        }
        let fits = self.fits_now(placed, true);
        self.staged(key, placed, &fits)
    }

    fn staged(&self, key: &GangKey, placed: &[Placement], fits: &[bool]) -> Vec<PodStage> {
        let Some(gang) = self.gangs.get(key) else {
            return vec![PodStage::Bound; placed.len()];
        };
        let mut coming: BTreeMap<Arc<str>, usize> = BTreeMap::new();
        let mut all = 0;
        let by_task = gang
            .spec
            .iter()
            .any(|spec| !spec.min_task_member.is_empty());
        for (placement, _) in placed.iter().zip(fits).filter(|(_, fits)| **fits) {
            all += 1;
            if !by_task {
                continue;
            }
            if let Some(pod) = self.pods.get(&placement.pod) {
                *coming.entry(pod.task.clone()).or_default() += 1;
            }
        }
        let whole = gang.whole_with(key, all, |task| coming.get(task).copied().unwrap_or(0));
        let stage = |fits: &bool| {
            if *fits && whole {
                PodStage::Bound
            } else {
                PodStage::Pipelined
            }
        };
        fits.iter().map(stage).collect()
    }

    /// Which placements find their room and GPUs free of leaving pods. `counted` says whether the
    /// placements themselves are already counted on their nodes.
    fn fits_now(&self, placed: &[Placement], counted: bool) -> Vec<bool> {
        let mut nodes: BTreeMap<NodeIx, (Room, GpuLedger)> = BTreeMap::new();
        if counted {
            let leave = |placement: &&Placement| self.nodes[placement.node].terminating_pods > 0;
            for placement in placed.iter().filter(leave) {
                let (own, held) = nodes.entry(placement.node).or_default();
                let take = self.take_on(placement.class, placement.node);
                own.add(&take.demand, 1);
                held.hold(&take, &placement.devices);
            }
        }
        for (at, (_, held)) in &mut nodes {
            *held = self.nodes[*at].held_now().with(held, -1);
        }
        let mut fits = Vec::with_capacity(placed.len());
        for placement in placed {
            let node = &self.nodes[placement.node];
            if node.terminating_pods == 0 {
                fits.push(true);
                continue;
            }
            let (own, held) = nodes
                .entry(placement.node)
                .or_insert_with(|| (Room::default(), node.held_now()));
            let take = self.take_on(placement.class, placement.node);
            let others = take.demand.0.iter().filter(|(ix, _)| *ix != GPU);
            let room = others
                .into_iter()
                .all(|(ix, n)| node.free_now(*ix) + own.get(*ix) >= *n);
            let fit = room && gpus_fit(node, held, &take, &placement.devices);
            if fit {
                own.add(&take.demand, -1);
                held.hold(&take, &placement.devices);
            }
            fits.push(fit);
        }
        fits
    }

    /// Revisits every nomination: binds members whose room is free, gives up nominations that are
    /// no longer valid, and takes another place where one is free at once. Returns the reserved
    /// places that yield to waiting gangs.
    pub(crate) fn revisit(
        &mut self,
        now: Timestamp,
        plan: &mut Plan,
    ) -> Vec<(GangKey, ReservedPlace)> {
        let yielding_places = self.review_reserved_places(now);
        let mut keys: Vec<GangKey> = self.nominated.iter().cloned().collect();
        keys.sort_by_cached_key(|key| self.precedence(key));
        let mut tries = 0;
        for key in keys {
            let held = self.held_places(&key);
            if held.is_empty() {
                continue;
            }
            if !self.still_good(&key, &held) {
                self.give_up(&key);
                continue;
            }
            let waits = self.still_awaits(&key);
            let fits = if waits {
                vec![false; held.len()]
            } else {
                self.fits_now(&held, false)
            };
            let stages = self.staged(&key, &held, &fits);
            let bound: Vec<Placement> = held
                .iter()
                .zip(&stages)
                .filter(|(_, stage)| **stage == PodStage::Bound)
                .map(|(placement, _)| placement.clone())
                .collect();
            if bound.is_empty() {
                if tries < ELSEWHERE_MAX {
                    tries += 1;
                    self.try_elsewhere(&key, now, plan);
                }
                continue;
            }
            for placement in &bound {
                let assumed_placement = PodPlacement {
                    stage: PodStage::Bound,
                    node: Some(placement.node),
                    devices: placement.devices.clone(),
                    assumed: true,
                    evicting: None,
                };
                self.set_placement(&placement.pod, assumed_placement);
            }
            self.settle(&key);
            self.write_binds(&key, bound, &mut plan.binds);
        }
        yielding_places
    }

    /// Whether a victim of the gang is still leaving. Victims that have left are forgotten.
    fn still_awaits(&mut self, key: &GangKey) -> bool {
        let Some(gang) = self.gangs.get_mut(key) else {
            return false;
        };
        let mut awaits = std::mem::take(&mut gang.awaits);
        awaits.retain(|pod| self.is_leaving(pod));
        let waits = !awaits.is_empty();
        if let Some(gang) = self.gangs.get_mut(key) {
            gang.awaits = awaits;
        }
        waits
    }

    pub(crate) fn is_leaving(&self, pod: &PodKey) -> bool {
        self.pods
            .get(pod)
            .is_some_and(|pod| pod.stage == PodStage::Leaving)
    }

    /// Nominates members that would be bound at once until the gang's victims have left: until then
    /// the victims' queues still hold the resources.
    pub(crate) fn hold_back(&mut self, key: &GangKey, placed: &[Placement]) {
        for placement in placed {
            if self.is_bound(&placement.pod) {
                let assumed_placement = PodPlacement {
                    stage: PodStage::Pipelined,
                    node: Some(placement.node),
                    devices: placement.devices.clone(),
                    assumed: false,
                    evicting: None,
                };
                self.set_placement(&placement.pod, assumed_placement);
            }
        }
        self.settle(key);
    }

    /// The nominated places of a gang, in rank order.
    fn held_places(&self, key: &GangKey) -> Vec<Placement> {
        let Some(gang) = self.gangs.get(key) else {
            return Vec::new();
        };
        let mut members: Vec<(usize, PodKey)> = gang.members.iter().map(PodKey::ranked).collect();
        members.sort_unstable();
        let held = members.into_iter().filter_map(|(_, name)| {
            let pod = self.pods.get(&name)?;
            (pod.stage == PodStage::Pipelined).then_some(())?;
            Some(Placement {
                node: pod.node?,
                devices: pod.devices.clone(),
                class: pod.class,
                pod: name,
            })
        });
        held.collect()
    }

    /// Whether the gang has its minimum with these members, and the nodes can take them once the
    /// victims have left.
    fn still_good(&self, key: &GangKey, held: &[Placement]) -> bool {
        self.gangs.get(key).is_some_and(|gang| gang.whole(key))
            && held.iter().all(|placement| {
                let node = &self.nodes[placement.node];
                node.usable()
                    && !node.overcommitted()
                    && self.gpus_stand(placement.class, placement.node, &placement.devices)
            })
    }

    /// Gives up all of the gang's nominations.
    pub(crate) fn give_up(&mut self, key: &GangKey) {
        for placement in self.held_places(key) {
            self.set_placement(&placement.pod, PodPlacement::pending());
            // The node may be gone, and still known only because of the nomination.
            self.free_node_index(placement.node);
        }
        if let Some(gang) = self.gangs.get_mut(key) {
            gang.awaits.clear();
        }
        self.settle(key);
    }

    /// Places the whole gang elsewhere if the room is free now.
    fn try_elsewhere(&mut self, key: &GangKey, now: Timestamp, plan: &mut Plan) {
        let mut transaction = self.begin();
        for placement in self.held_places(key) {
            transaction.set_placement(self, &placement.pod, PodPlacement::pending());
        }
        let placed = transaction.attempt(self, key, now);
        let bound = placed.filter(|placed| placed.iter().all(|p| self.is_bound(&p.pod)));
        match bound {
            Some(placed) => {
                self.keep(transaction);
                if let Some(gang) = self.gangs.get_mut(key) {
                    gang.awaits.clear();
                }
                self.write_binds(key, placed, &mut plan.binds);
            }
            None => self.undo(transaction),
        }
    }

    pub(crate) fn is_bound(&self, pod: &PodKey) -> bool {
        self.pods
            .get(pod)
            .is_some_and(|pod| pod.stage == PodStage::Bound)
    }

    /// The order in which gangs of all queues are served: priority, then age, then name.
    pub(crate) fn precedence(&self, key: &GangKey) -> (i64, Timestamp, GangKey) {
        let gang = self.gangs.get(key);
        let priority = gang.map_or(0, |gang| i64::from(self.priority_of(gang)));
        let since = gang.and_then(|gang| self.since(gang));
        (
            -priority,
            since.unwrap_or(Timestamp::UNIX_EPOCH),
            key.clone(),
        )
    }

    /// All nominations, as reservations of the plan.
    pub(crate) fn nominations(&self) -> Vec<GangReservation> {
        let of = |key: &GangKey| {
            let places = self.held_places(key).into_iter().filter_map(|placement| {
                let known = self.pods.get(&placement.pod)?;
                let devices = devices::deal(&known.asks, &placement.devices);
                let uid = known.uid.clone();
                let pod = PodRef {
                    namespace: String::from(&*placement.pod.namespace),
                    name: String::from(&*placement.pod.name),
                    uid,
                };
                let node = String::from(&*self.nodes[placement.node].name);
                Some(((pod, node), devices))
            });
            let (pods, devices) = places.unzip();
            GangReservation {
                group: GroupRef::of(key),
                pods,
                devices,
                kind: ReservationKind::Nominated,
            }
        };
        self.nominated.iter().map(of).collect()
    }
}
