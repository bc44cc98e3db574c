//! Places that are reserved for evicted pods. A moved member finds its new place reserved against
//! every other gang. A gang that was evicted for another one may get a place reserved too, but only
//! while no gang wants it: the scheduler releases such a place before each plan's turns, and
//! reserves it again afterwards if it is still free (`tests/evictions_moves.rs`).

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::nominations::gpus_fit;
use super::transaction::{EvictionTransaction, PodPlacement};
use crate::class::ClassIx;
use crate::devices;
use crate::gang::GangKey;
use crate::node::NodeIx;
use crate::plan::{EvictionReason, GangReservation, GroupRef, Plan, PodRef, ReservationKind};
use crate::pod::{PodKey, PodStage};
use crate::share::Take;
use crate::state::Scheduler;

/// How long a place stays reserved for a moved member that does not come back.
const KEPT_FOR: SignedDuration = SignedDuration::from_mins(5);
/// The most gangs evicted in one plan for which the scheduler seeks another place.
const NOMINATED_LOSERS_MAX: usize = 64;

/// A place reserved for the pod that replaces an evicted member.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ReservedPlace {
    pod: PodKey,
    uid: String,
    class: ClassIx,
    take: Take,
    pub(super) node: NodeIx,
    devices: Vec<Arc<str>>,
    until: Timestamp,
    /// Reserved against every other gang; otherwise only while no gang wants the place.
    firm: bool,
}

impl ReservedPlace {
    pub(super) fn pod_ref(&self) -> PodRef {
        PodRef {
            namespace: String::from(&*self.pod.namespace),
            name: String::from(&*self.pod.name),
            uid: self.uid.clone(),
        }
    }
}

impl Scheduler {
    /// Other places for these members of a gang, as if they waited: for as many of them as find
    /// one. Leaves the members pending; the caller undoes that.
    pub(super) fn other_places(
        &mut self,
        transaction: &mut EvictionTransaction,
        key: &GangKey,
        pods: &[PodKey],
        firm: bool,
        now: Timestamp,
    ) -> Option<Vec<ReservedPlace>> {
        for pod in pods {
            transaction.set_placement(self, pod, PodPlacement::pending());
        }
        let found = transaction.attempt_all(self, key, now)?;
        let mut places = Vec::new();
        for placement in found.iter().filter(|at| pods.contains(&at.pod)) {
            places.push(ReservedPlace {
                pod: placement.pod.clone(),
                uid: self.pods.get(&placement.pod)?.uid.clone(),
                class: placement.class,
                take: self.take_on(placement.class, placement.node),
                node: placement.node,
                devices: placement.devices.clone(),
                until: now.checked_add(KEPT_FOR).unwrap_or(Timestamp::MAX),
                firm,
            });
        }
        Some(places)
    }

    /// Reserves places for evicted members.
    pub(super) fn keep_places(&mut self, places: Vec<(GangKey, ReservedPlace)>, now: Timestamp) {
        let age = self.age;
        for (key, place) in places {
            if let Some(gang) = self.gangs.get_mut(&key).filter(|_| place.firm) {
                gang.note_placed_by_eviction(age, now);
            }
            self.classes.rejoin(place.class);
            self.keep_place(&key, place);
        }
    }

    fn keep_place(&mut self, key: &GangKey, place: ReservedPlace) {
        let Some(gang) = self.gangs.get_mut(key) else {
            return;
        };
        if let Some(payer) = gang.payer {
            self.queues.charge(payer, &place.take.demand, 1);
        }
        let at = place.node;
        self.occupy(at, &place.take, &place.devices);
        self.touch(at);
        if let Some(gang) = self.gangs.get_mut(key) {
            gang.reserved_places.push(place);
        }
        self.gangs_with_reserved_places.insert(key.clone());
    }

    /// Releases the places that are reserved for a gang's members, and returns them.
    pub(crate) fn release_places(&mut self, key: &GangKey) -> Vec<ReservedPlace> {
        self.release_some_places(key, false)
    }

    /// As `release_places`, before the gang's turn, but leaves the places of members that are still
    /// terminating: other members of the gang have no use for these places.
    pub(crate) fn release_places_for_turn(&mut self, key: &GangKey) -> Vec<ReservedPlace> {
        self.release_some_places(key, true)
    }

    fn release_some_places(&mut self, key: &GangKey, only_returned: bool) -> Vec<ReservedPlace> {
        if !self.gangs_with_reserved_places.contains(key) {
            return Vec::new();
        }
        let Some(gang) = self.gangs.get_mut(key) else {
            self.gangs_with_reserved_places.remove(key);
            return Vec::new();
        };
        let payer = gang.payer;
        let pods = &self.pods;
        let stays = |place: &ReservedPlace| {
            let pod = pods.get(&place.pod);
            only_returned
                && pod.is_some_and(|pod| pod.uid == place.uid && pod.stage == PodStage::Leaving)
        };
        let (stay, places): (Vec<ReservedPlace>, Vec<ReservedPlace>) =
            std::mem::take(&mut gang.reserved_places)
                .into_iter()
                .partition(stays);
        gang.reserved_places = stay;
        if gang.reserved_places.is_empty() {
            self.gangs_with_reserved_places.remove(key);
        }
        for place in &places {
            if let Some(payer) = payer {
                self.queues.charge(payer, &place.take.demand, -1);
            }
            self.vacate(place.node, &place.take, &place.devices);
            self.touch(place.node);
        }
        places
    }

    /// Reserves places again that were released for a trial that failed.
    pub(crate) fn reserve_again(&mut self, key: &GangKey, places: Vec<ReservedPlace>) {
        for place in places {
            self.keep_place(key, place);
        }
    }

    /// Forgets places for good; they were released before.
    pub(crate) fn forget_places(&mut self, places: Vec<ReservedPlace>) {
        for place in places {
            self.leave_class(place.class);
            // The node may be gone, and still known only because of the reserved place.
            self.free_node_index(place.node);
        }
    }

    /// Releases places that were reserved for too long, or whose node can no longer take them. Also
    /// releases the places that are reserved only while no gang wants them, and returns these for
    /// `renominate_victims`.
    pub(crate) fn review_reserved_places(
        &mut self,
        now: Timestamp,
    ) -> Vec<(GangKey, ReservedPlace)> {
        let mut yielding_places = Vec::new();
        let keys: Vec<GangKey> = self.gangs_with_reserved_places.iter().cloned().collect();
        for key in keys {
            let Some(gang) = self.gangs.get(&key) else {
                continue;
            };
            let until = gang.reserved_places.iter().map(|place| place.until).min();
            let good = gang.reserved_places.iter().all(|place| {
                self.nodes[place.node].usable()
                    && !self.nodes[place.node].overcommitted()
                    && self.gpus_stand(place.class, place.node, &place.devices)
            });
            let firm = gang.reserved_places.iter().all(|place| place.firm);
            match until.filter(|until| good && now < *until) {
                Some(_) if !firm => {
                    let places = self.release_places(&key);
                    yielding_places.extend(places.into_iter().map(|place| (key.clone(), place)));
                }
                Some(until) => self.requeue_by(until),
                None => {
                    let places = self.release_places(&key);
                    self.forget_places(places);
                }
            }
        }
        yielding_places
    }

    /// After the turns: reserves the places again that no gang took, for members that have not come
    /// back yet.
    pub(crate) fn renominate_victims(&mut self, places: Vec<(GangKey, ReservedPlace)>) {
        for (key, place) in places {
            let payer = self.gangs.get(&key).and_then(|gang| gang.payer);
            let away = self
                .pods
                .get(&place.pod)
                .is_none_or(|pod| pod.uid == place.uid && pod.stage == PodStage::Leaving);
            self.refresh(place.class);
            let view = self.views.get(&place.class);
            let room = view.is_some_and(|view| view.holds(place.node) > 0);
            let free = self.gpus_stand(place.class, place.node, &place.devices)
                && gpus_fit(
                    &self.nodes[place.node],
                    &self.nodes[place.node].held,
                    &place.take,
                    &place.devices,
                );
            let allowed = payer.is_some_and(|payer| {
                let (allowed, _) = self
                    .queues
                    .allows(payer, &place.take.demand, |ix| self.idle(ix));
                allowed > 0
            });
            if away && room && free && allowed {
                let until = place.until;
                self.requeue_by(until);
                self.keep_place(&key, place);
            } else {
                self.forget_places(vec![place]);
            }
        }
    }

    /// After the turns: reserves other places for gangs that this plan evicted, where no waiting
    /// gang can have them.
    pub(crate) fn nominate_victims(&mut self, plan: &Plan, now: Timestamp) {
        let lost = |why| {
            matches!(
                why,
                EvictionReason::Preempted
                    | EvictionReason::Reclaimed
                    | EvictionReason::ReclaimedWhileBorrowing
                    | EvictionReason::FairShare
            )
        };
        let evictions = plan.evictions.iter().filter(|one| lost(one.why));
        let keys: BTreeSet<GangKey> = evictions
            .filter(|one| !one.group.lone)
            .map(|one| GangKey::group(one.group.namespace.as_str().into(), &one.group.name))
            .filter(|key| !self.gangs_with_reserved_places.contains(key))
            .collect();
        let mut keys: Vec<GangKey> = keys.into_iter().collect();
        keys.sort_by_cached_key(|key| self.precedence(key));
        let mut hopeless: BTreeSet<Vec<ClassIx>> = BTreeSet::new();
        for key in keys.into_iter().take(NOMINATED_LOSERS_MAX) {
            let Some(gang) = self.gangs.get(&key) else {
                continue;
            };
            let leaves = |name: &&PodKey| {
                let pod = self.pods.get(*name);
                pod.is_some_and(|pod| pod.stage == PodStage::Leaving && pod.evicting.is_some())
            };
            let pods: Vec<PodKey> = gang.members.iter().filter(leaves).cloned().collect();
            let classes = pods.iter().filter_map(|pod| self.pods.get(pod));
            let classes: Vec<ClassIx> = classes.map(|pod| pod.class).collect();
            if hopeless.contains(&classes) {
                continue;
            }
            let mut transaction = self.begin();
            let places = self.other_places(&mut transaction, &key, &pods, false, now);
            self.undo(transaction);
            match places {
                Some(places) => {
                    let places = places.into_iter().map(|at| (key.clone(), at));
                    self.keep_places(places.collect(), now);
                }
                None => {
                    hopeless.insert(classes);
                }
            }
        }
    }

    /// Adds the reserved places to the plan's reservations.
    pub(crate) fn report_reserved_places(&self, plan: &mut Plan) {
        for key in &self.gangs_with_reserved_places {
            let Some(gang) = self.gangs.get(key) else {
                continue;
            };
            let pods = gang.reserved_places.iter().map(|place| {
                let pod = PodRef {
                    namespace: String::from(&*place.pod.namespace),
                    name: String::from(&*place.pod.name),
                    uid: place.uid.clone(),
                };
                let known = self.pods.get(&place.pod);
                let devices = known.map(|known| devices::deal(&known.asks, &place.devices));
                let node = String::from(&*self.nodes[place.node].name);
                ((pod, node), devices.unwrap_or_default())
            });
            let (pods, devices) = pods.unzip();
            plan.reservations.push(GangReservation {
                group: GroupRef::of(key),
                pods,
                devices,
                kind: ReservationKind::Nominated,
            });
        }
    }
}
