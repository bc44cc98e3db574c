//! Transactions on the scheduler's state: pods change their placement, gangs are placed on trial,
//! and the transaction is either kept or undone exactly. The cost is the number of changes, not the
//! size of the cluster, which a copy would cost.
//!
//! Example: a search evicts pod `a` and places gang `g` on its node. `undo` restores `a`'s stage,
//! node and devices, and `g`'s admission; the plan made afterwards equals the plan made without the
//! search (`an_undone_transaction_leaves_no_trace`).

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;

use super::reserved_places::ReservedPlace;
use crate::dirty_set::DirtySet;
use crate::gang::GangKey;
use crate::node::NodeIx;
use crate::place::{Attempt, Placement};
use crate::pod::{Pod, PodKey, PodStage};
use crate::state::Scheduler;

/// A pod's placement: its stage, its node and the devices that it holds there.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PodPlacement {
    pub(crate) stage: PodStage,
    pub(crate) node: Option<NodeIx>,
    pub(crate) devices: Vec<Arc<str>>,
    pub(crate) assumed: bool,
    pub(crate) evicting: Option<PodStage>,
}

impl PodPlacement {
    pub(crate) fn of(pod: &Pod) -> PodPlacement {
        PodPlacement {
            stage: pod.stage,
            node: pod.node,
            devices: pod.devices.clone(),
            assumed: pod.assumed,
            evicting: pod.evicting,
        }
    }

    /// Whether the pod has this placement.
    fn is_of(&self, pod: &Pod) -> bool {
        (self.stage, self.node) == (pod.stage, pod.node)
            && (self.assumed, self.evicting) == (pod.assumed, pod.evicting)
            && self.devices == pod.devices
    }

    pub(crate) fn pending() -> PodPlacement {
        PodPlacement {
            stage: PodStage::Pending,
            node: None,
            devices: Vec::new(),
            assumed: false,
            evicting: None,
        }
    }
}

/// What a trial changes in a gang besides its members' placements.
#[derive(Clone, Debug)]
struct GangSnapshot {
    admitted: bool,
    held_until: Option<Timestamp>,
    overtaken: usize,
    last_message: String,
}

#[derive(Clone, Debug)]
enum Undo {
    Pod(PodKey, PodPlacement),
    Gang(GangKey, GangSnapshot),
    /// Places that were reserved for a gang's members until the trial placed the gang.
    Places(GangKey, Vec<ReservedPlace>),
}

impl Undo {
    fn tried(&self) -> Option<GangKey> {
        match self {
            Undo::Gang(key, _) => Some(key.clone()),
            Undo::Pod(..) | Undo::Places(..) => None,
        }
    }
}

/// Changes that are not decided yet. A transaction must end in `keep` or `undo`.
#[derive(Debug)]
pub(crate) struct EvictionTransaction {
    log: Vec<Undo>,
    changed: bool,
    requeue_at: Option<Timestamp>,
    changed_gangs: DirtySet<GangKey>,
}

impl Scheduler {
    pub(crate) fn begin(&mut self) -> EvictionTransaction {
        EvictionTransaction {
            log: Vec::new(),
            changed: self.changed,
            requeue_at: self.requeue_at,
            changed_gangs: std::mem::take(&mut self.changed_gangs),
        }
    }

    /// Makes the changes since `begin` permanent.
    pub(crate) fn keep(&mut self, transaction: EvictionTransaction) {
        let mut touched: BTreeSet<GangKey> = BTreeSet::new();
        for undo in transaction.log {
            match undo {
                Undo::Pod(pod, _) => {
                    touched.extend(self.pods.get(&pod).map(|pod| pod.gang.clone()))
                }
                Undo::Places(_, places) => self.forget_places(places),
                Undo::Gang(..) => {}
            }
        }
        // The set from before `begin` is large, the set since then is small.
        let since = std::mem::replace(&mut self.changed_gangs, transaction.changed_gangs);
        for key in since.into_sorted() {
            self.changed_gangs.insert(&key);
        }
        for gang in touched {
            self.settle(&gang);
        }
    }

    /// Restores the state as it was at `begin`.
    pub(crate) fn undo(&mut self, mut transaction: EvictionTransaction) {
        let tried: BTreeSet<GangKey> = transaction.log.iter().filter_map(Undo::tried).collect();
        transaction.forget_detours();
        self.undo_to(&mut transaction, 0);
        for key in tried {
            // The gang is settled by the state that was restored last.
            self.settle(&key);
        }
        self.changed = transaction.changed;
        self.requeue_at = transaction.requeue_at;
        let since = std::mem::replace(&mut self.changed_gangs, transaction.changed_gangs);
        self.unanswered.extend(since.into_sorted());
    }

    /// Undoes the changes since the log had this length.
    pub(crate) fn undo_to(&mut self, transaction: &mut EvictionTransaction, length: usize) {
        while transaction.log.len() > length {
            match transaction.log.pop() {
                Some(Undo::Pod(pod, placement)) => {
                    self.set_placement(&pod, placement);
                }
                Some(Undo::Gang(key, past)) => {
                    self.settle(&key);
                    if let Some(gang) = self.gangs.get_mut(&key) {
                        gang.admitted = past.admitted;
                        gang.held_until = past.held_until;
                        gang.overtaken = past.overtaken;
                        gang.last_message = past.last_message;
                    }
                    // The gang's admission may count again, or no longer.
                    self.settle(&key);
                }
                Some(Undo::Places(key, places)) => self.reserve_again(&key, places),
                None => {}
            }
        }
    }

    /// Gives a pod another placement and returns its old one. The caller settles the gang.
    pub(crate) fn set_placement(
        &mut self,
        key: &PodKey,
        new: PodPlacement,
    ) -> Option<PodPlacement> {
        let (place, mut pod) = self.pods.lend(key)?;
        if new.is_of(&pod) {
            self.pods.give_back(place, pod);
            return Some(new);
        }
        self.count_at_stage(key, &pod, false);
        let old = PodPlacement {
            stage: std::mem::replace(&mut pod.stage, new.stage),
            node: std::mem::replace(&mut pod.node, new.node),
            devices: std::mem::replace(&mut pod.devices, new.devices),
            assumed: std::mem::replace(&mut pod.assumed, new.assumed),
            evicting: std::mem::replace(&mut pod.evicting, new.evicting),
        };
        self.count_at_stage(key, &pod, true);
        if pod.stage.occupies() || !pod.stage.on_node() {
            self.decide_volumes(key, pod.class, pod.node);
        }
        self.pods.give_back(place, pod);
        Some(old)
    }
}

impl EvictionTransaction {
    pub(crate) fn len(&self) -> usize {
        self.log.len()
    }

    /// Keeps in the log only each pod's and each gang's first entry: a pod that changed several
    /// times is restored at once.
    fn forget_detours(&mut self) {
        let (mut pods, mut gangs) = (BTreeSet::new(), BTreeSet::new());
        self.log.retain(|undo| match undo {
            Undo::Pod(pod, _) => pods.insert(pod.clone()),
            Undo::Gang(key, _) => gangs.insert(key.clone()),
            // Each place was released once.
            Undo::Places(..) => true,
        });
    }

    /// Gives a pod another placement.
    pub(crate) fn set_placement(&mut self, state: &mut Scheduler, pod: &PodKey, new: PodPlacement) {
        if let Some(old) = state.set_placement(pod, new) {
            self.log.push(Undo::Pod(pod.clone(), old));
        }
    }

    /// Evicts a pod: a pod on its node starts to leave, a pod that is only nominated for the node
    /// becomes pending.
    pub(crate) fn evict(&mut self, state: &mut Scheduler, pod: &PodKey) {
        let Some(known) = state.pods.get(pod) else {
            return;
        };
        let new = match known.stage {
            PodStage::Pipelined => PodPlacement::pending(),
            stage => PodPlacement {
                stage: PodStage::Leaving,
                node: known.node,
                devices: known.devices.clone(),
                assumed: false,
                evicting: Some(stage),
            },
        };
        self.set_placement(state, pod, new);
    }

    /// Places a gang's minimum on trial, or one more member if it has its minimum. The placements
    /// are undone with the transaction.
    pub(crate) fn attempt(
        &mut self,
        state: &mut Scheduler,
        key: &GangKey,
        now: Timestamp,
    ) -> Option<Vec<Placement>> {
        let gang = state.gangs.get(key)?;
        let beyond = usize::from(gang.whole(key));
        self.attempt_beyond(state, key, beyond, now)
    }

    /// Places a gang with all its members on trial.
    pub(crate) fn attempt_all(
        &mut self,
        state: &mut Scheduler,
        key: &GangKey,
        now: Timestamp,
    ) -> Option<Vec<Placement>> {
        self.attempt_beyond(state, key, usize::MAX, now)
    }

    fn attempt_beyond(
        &mut self,
        state: &mut Scheduler,
        key: &GangKey,
        beyond: usize,
        now: Timestamp,
    ) -> Option<Vec<Placement>> {
        let gang = state.gangs.get(key)?;
        let past = GangSnapshot {
            admitted: gang.admitted,
            held_until: gang.held_until,
            overtaken: gang.overtaken,
            last_message: gang.last_message.clone(),
        };
        self.log.push(Undo::Gang(key.clone(), past));
        let Attempt::Placed(placed) = state.attempt_with_kept(key, now, beyond) else {
            return None;
        };
        if !placed.used.is_empty() {
            self.log.push(Undo::Places(key.clone(), placed.used));
        }
        for placement in &placed.members {
            self.log
                .push(Undo::Pod(placement.pod.clone(), PodPlacement::pending()));
        }
        Some(placed.members)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::config::Config;
    use crate::event::Event;

    fn read<T: serde::de::DeserializeOwned>(value: Value) -> Box<T> {
        Box::new(serde_json::from_value(value).unwrap())
    }

    /// Three nodes, and gangs of two that run or wait.
    fn world(gangs: &[(i64, Option<usize>)]) -> Scheduler {
        let mut s = Scheduler::new(Config::default());
        for i in 0..3 {
            s.apply(Event::NodeChanged(read(json!({
                "metadata": {"name": format!("n{i}")},
                "status": {"allocatable": {"cpu": "64", "pods": "110", "nvidia.com/gpu": "4"}},
            }))));
        }
        for (at, (gpus, node)) in gangs.iter().enumerate() {
            let name = format!("g{at}");
            s.apply(Event::PodGroupChanged(read(json!({
                "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
                "metadata": {"name": name, "namespace": "ns", "uid": name}, "spec": {"minMember": 2},
            }))));
            for i in 0..2 {
                let mut pod = json!({
                    "metadata": {"name": format!("{name}-{i}"), "namespace": "ns", "uid": format!("{name}-{i}"),
                        "annotations": {"scheduling.k8s.io/group-name": name}},
                    "spec": {"schedulerName": "muster", "containers": [{"name": "main", "resources":
                        {"limits": {"nvidia.com/gpu": gpus.to_string()}}}]},
                });
                if let Some(node) = node {
                    pod["spec"]["nodeName"] = json!(format!("n{}", (node + i) % 3));
                    pod["status"] = json!({"phase": "Running"});
                }
                s.apply(Event::PodChanged(read(pod)));
            }
        }
        s
    }

    /// A trial that places a gang uses the places that are reserved for it; undone, it reserves
    /// them again.
    #[test]
    fn reserved_places_survive_a_trial_that_is_undone() {
        let now = Timestamp::UNIX_EPOCH;
        let (mut s, key) = with_reserved_places(now);
        let (kept, view) = (s.gangs[&key].reserved_places.clone(), s.view());
        assert_eq!(kept.len(), 2);

        let mut transaction = s.begin();
        assert!(
            transaction.attempt(&mut s, &key, now).is_some(),
            "there is room for the gang"
        );
        assert_eq!(
            s.gangs[&key].reserved_places,
            [],
            "the gang's reserved places count as room for it"
        );
        s.undo(transaction);
        assert_eq!(s.gangs[&key].reserved_places, kept);
        assert!(s.gangs_with_reserved_places.contains(&key));
        assert_eq!(s.view(), view);

        let mut transaction = s.begin();
        transaction.attempt(&mut s, &key, now);
        s.keep(transaction);
        assert_eq!(
            s.gangs[&key].reserved_places,
            [],
            "a kept trial uses the reserved places"
        );
        assert!(!s.gangs_with_reserved_places.contains(&key));
    }

    /// A gang of two that waits, with both places reserved for it.
    fn with_reserved_places(now: Timestamp) -> (Scheduler, GangKey) {
        let mut s = world(&[(2, None)]);
        s.update_queues();
        let key = GangKey::group("ns".into(), "g0");
        let pods: Vec<PodKey> = s.gangs[&key].members.iter().cloned().collect();
        let mut transaction = s.begin();
        let places = s
            .other_places(&mut transaction, &key, &pods, true, now)
            .unwrap();
        s.undo(transaction);
        let places = places.into_iter().map(|place| (key.clone(), place));
        s.keep_places(places.collect(), now);
        (s, key)
    }

    /// A gang in its turn is placed and then refused for the sake of another gang: it does not lose
    /// the places that are reserved for it.
    #[test]
    fn reserved_places_survive_a_turn_that_is_withdrawn() {
        let now = Timestamp::UNIX_EPOCH;
        let (mut s, key) = with_reserved_places(now);
        let (kept, view) = (s.gangs[&key].reserved_places.clone(), s.view());
        assert_eq!(kept.len(), 2);
        let held = view.queues["default"].allocated.clone();
        let Attempt::Placed(placed) = s.attempt_turn(&key, now, 0) else {
            panic!("there is room for the gang")
        };
        assert_eq!(s.gangs[&key].reserved_places, []);
        s.withdraw(&key, placed);
        assert_eq!(s.gangs[&key].reserved_places, kept);
        assert!(s.gangs_with_reserved_places.contains(&key));
        // The turn admitted the gang to its queue; what is allocated is as before.
        let after = s.view();
        assert_eq!((after.nodes, after.pods), (view.nodes, view.pods));
        assert_eq!(after.queues["default"].allocated, held);

        let Attempt::Placed(placed) = s.attempt_turn(&key, now, 0) else {
            panic!("there is still room for the gang")
        };
        let (members, _) = s.accept(placed);
        assert_eq!(members.len(), 2);
        assert_eq!(s.gangs[&key].reserved_places, []);
        assert!(!s.gangs_with_reserved_places.contains(&key));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn an_undone_transaction_leaves_no_trace(
            gangs in proptest::collection::vec((0..4i64, proptest::option::of(0..3usize)), 1..8),
            steps in proptest::collection::vec((any::<bool>(), 0..16usize), 1..12),
            planned in any::<bool>(),
        ) {
            let mut s = world(&gangs);
            if planned {
                s.plan(Timestamp::UNIX_EPOCH);
            }
            let mut untouched = s.clone();
            s.update_queues();
            let mut transaction = s.begin();
            for (evicts, at) in steps {
                if evicts {
                    let pods: Vec<PodKey> = s.pods.keys().cloned().collect();
                    let pod = &pods[at % pods.len()];
                    if s.pods[pod].stage.occupies() {
                        transaction.evict(&mut s, pod);
                    }
                } else {
                    let keys: Vec<GangKey> = s.gangs.keys().cloned().collect();
                    transaction.attempt(&mut s, &keys[at % keys.len()], Timestamp::UNIX_EPOCH);
                }
            }
            s.undo(transaction);
            prop_assert_eq!(s.view(), untouched.view());
            prop_assert_eq!(s.plan(Timestamp::UNIX_EPOCH), untouched.plan(Timestamp::UNIX_EPOCH));
        }
    }
}
