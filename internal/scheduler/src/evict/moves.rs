//! Consolidation: running gangs are moved so that another fits, and only if each of them has a new
//! place in the same plan. A pod cannot be carried over: it is evicted, and its new place is kept
//! for whoever comes in its stead. Pods without a PodGroup are not moved: nobody may bring them back.

use std::cmp::Reverse;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::Refusal;
use super::candidates::{Bite, VictimKey};
use super::search::{Ask, Found};
use super::txn::{Standing, Txn};
use crate::class::ClassIx;
use crate::devices;
use crate::gang::GangKey;
use crate::node::NodeIx;
use crate::place::Placement;
use crate::plan::{EvictionReason, GroupRef, Plan, PodRef, Reservation, ReservationKind};
use crate::pod::PodKey;
use crate::resource::PODS;
use crate::share::Take;
use crate::state::Scheduler;

/// How many gangs are looked at for one that wants room, the smallest first.
const MOVERS_MAX: usize = 64;
/// How long a place is kept for a moved member that does not come back.
const KEPT_FOR: SignedDuration = SignedDuration::from_mins(5);

/// A place kept for whoever comes in a moved member's stead.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Kept {
    pod: PodKey,
    uid: String,
    class: ClassIx,
    take: Take,
    node: NodeIx,
    devices: Vec<Arc<str>>,
    until: Timestamp,
}

impl Scheduler {
    /// Seeks gangs to move so that one fits.
    pub(super) fn consolidate(
        &mut self,
        key: &GangKey,
        ask: &Ask,
        now: Timestamp,
    ) -> Result<(Found, Vec<(GangKey, Kept)>), Refusal> {
        if !self.within_quota(ask) {
            return Err(Refusal::at_once(
                "moving others does not change what its queue may use",
            ));
        }
        let asked = ask.demand.0.iter().filter(|(ix, _)| *ix != PODS);
        if asked
            .into_iter()
            .any(|(ix, amount)| self.idle(*ix) < *amount)
        {
            return Err(Refusal::at_once(
                "too little is free in all for moving others to help",
            ));
        }
        let mut movers: Vec<(usize, VictimKey)> = Vec::new();
        for victim in self.victims.values().flatten() {
            let name = &victim.gang.0;
            if let Some(gang) = self.gangs.get(name)
                && !name.lone
                && name != key
                && self.spared(gang, now).is_none()
            {
                movers.push((gang.total.occupying(), victim.clone()));
            }
        }
        movers.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        let mut txn = self.begin();
        let mut bites: Vec<Bite> = Vec::new();
        for (_, victim) in movers.into_iter().take(MOVERS_MAX) {
            let name = &victim.gang.0;
            let Some(mut bite) = self
                .gangs
                .get(name)
                .and_then(|gang| self.whole_bite(name, gang))
            else {
                continue;
            };
            bite.why = EvictionReason::Consolidated;
            self.take(&mut txn, &mut bite);
            bites.push(bite);
            if !self.might_fit(ask) {
                continue;
            }
            let mark = txn.len();
            if let Some((kept, placed, places)) = self.rearrange(key, &mut txn, &bites, now) {
                let bites = bites.into_iter().zip(kept);
                let bites = bites
                    .filter(|(_, kept)| *kept)
                    .map(|(bite, _)| bite)
                    .collect();
                return Ok((Found { bites, placed, txn }, places));
            }
            self.undo_to(&mut txn, mark);
        }
        self.undo(txn);
        Err(Refusal {
            why: "moving others would not make room".into(),
            searched: true,
            again: None,
        })
    }

    /// Places the gang, lets those stay who fit beside it, and finds places for the rest. Leaves
    /// these as leaving, and says where they would go.
    #[allow(clippy::type_complexity, reason = "named by its only caller")]
    fn rearrange(
        &mut self,
        key: &GangKey,
        txn: &mut Txn,
        bites: &[Bite],
        now: Timestamp,
    ) -> Option<(Vec<bool>, Vec<Placement>, Vec<(GangKey, Kept)>)> {
        let placed = txn.attempt(self, key, now)?;
        let mut kept = vec![true; bites.len()];
        for at in (0..bites.len()).rev() {
            self.put_back(txn, &bites[at]);
            if self.all_fit_beside(&bites[at]) {
                kept[at] = false;
            } else {
                let mut bite = bites[at].clone();
                self.take(txn, &mut bite);
            }
        }
        let mark = txn.len();
        let mut movers: Vec<&Bite> = bites
            .iter()
            .zip(&kept)
            .filter(|(_, k)| **k)
            .map(|(b, _)| b)
            .collect();
        movers.sort_by_key(|bite| Reverse(bite.pods.len()));
        let mut places = Vec::new();
        for bite in movers {
            for pod in &bite.pods {
                txn.restand(self, pod, Standing::pending());
            }
            let found = txn.attempt_all(self, &bite.gang, now)?;
            let here = |pod: &PodKey| found.iter().find(|placement| placement.pod == *pod);
            for pod in &bite.pods {
                let placement = here(pod)?;
                let known = self.pods.get(pod)?;
                let place = Kept {
                    pod: pod.clone(),
                    uid: known.uid.clone(),
                    class: placement.class,
                    take: self.take_on(placement.class, placement.node),
                    node: placement.node,
                    devices: placement.devices.clone(),
                    until: now.checked_add(KEPT_FOR).unwrap_or(Timestamp::MAX),
                };
                places.push((bite.gang.clone(), place));
            }
        }
        self.undo_to(txn, mark);
        Some((kept, placed, places))
    }

    /// Keeps places for those who are moved.
    pub(super) fn keep_places(&mut self, places: Vec<(GangKey, Kept)>) {
        let age = self.age;
        for (key, place) in places {
            if let Some(gang) = self.gangs.get_mut(&key) {
                gang.won = Some(age);
            }
            self.classes.rejoin(place.class);
            self.keep_place(&key, place);
        }
    }

    fn keep_place(&mut self, key: &GangKey, place: Kept) {
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
            gang.kept.push(place);
        }
        self.keeping.insert(key.clone());
    }

    /// Gives back the places that are kept for a gang's moved members; what they were.
    pub(crate) fn let_go(&mut self, key: &GangKey) -> Vec<Kept> {
        if !self.keeping.remove(key) {
            return Vec::new();
        }
        let Some(gang) = self.gangs.get_mut(key) else {
            return Vec::new();
        };
        let payer = gang.payer;
        let places = std::mem::take(&mut gang.kept);
        for place in &places {
            if let Some(payer) = payer {
                self.queues.charge(payer, &place.take.demand, -1);
            }
            self.vacate(place.node, &place.take, &place.devices);
            self.touch(place.node);
        }
        places
    }

    /// Keeps again what was given back for a try that came to nothing.
    pub(crate) fn keep_again(&mut self, key: &GangKey, places: Vec<Kept>) {
        for place in places {
            self.keep_place(key, place);
        }
    }

    /// Forgets places for good.
    pub(crate) fn forget_places(&mut self, places: Vec<Kept>) {
        for place in places {
            self.leave_class(place.class);
        }
    }

    /// Gives back places that were kept for too long, or whose node is no longer good.
    pub(crate) fn revisit_kept(&mut self, now: Timestamp) {
        let keys: Vec<GangKey> = self.keeping.iter().cloned().collect();
        for key in keys {
            let Some(gang) = self.gangs.get(&key) else {
                continue;
            };
            let until = gang.kept.iter().map(|place| place.until).min();
            let good = gang.kept.iter().all(|place| {
                self.nodes[place.node].usable()
                    && !self.nodes[place.node].overdrawn()
                    && self.gpus_stand(place.class, place.node, &place.devices)
            });
            match until.filter(|until| good && now < *until) {
                Some(until) => self.wake = Some(self.wake.map_or(until, |wake| wake.min(until))),
                None => {
                    let places = self.let_go(&key);
                    self.forget_places(places);
                }
            }
        }
    }

    /// The places that are kept, for the plan's readers.
    pub(crate) fn kept_places(&self, plan: &mut Plan) {
        for key in &self.keeping {
            let Some(gang) = self.gangs.get(key) else {
                continue;
            };
            let pods = gang.kept.iter().map(|place| {
                let pod = PodRef {
                    namespace: place.pod.namespace.to_string(),
                    name: place.pod.name.to_string(),
                    uid: place.uid.clone(),
                };
                let known = self.pods.get(&place.pod);
                let devices = known.map(|known| devices::deal(&known.asks, &place.devices));
                let node = self.nodes[place.node].name.to_string();
                ((pod, node), devices.unwrap_or_default())
            });
            let (pods, devices) = pods.unzip();
            plan.reservations.push(Reservation {
                group: GroupRef::of(key),
                pods,
                devices,
                kind: ReservationKind::Nominated,
            });
        }
    }
}
