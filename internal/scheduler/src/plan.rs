//! One plan: whose turn it is, what is bound, what waits and why.
//!
//! Method: queues take turns by share (`queue::turns`), so that none exceeds its weight; within a
//! queue its policy decides. A gang that does not fit does not block others; its report says how
//! many gangs started before it. The passes are repeated until no gang is placed, then evictions
//! are tried.
//!
//! Cost: the gangs without a valid cached answer; see `incremental` for the incremental case.
//!
//! Tests: `tests/queues.rs`, `tests/gangs.rs`, `tests/properties.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use resources::devices::ChosenDevices;
use resources::kinds::PodGroupPhase;

use crate::devices;
use crate::evict::transaction::PodPlacement;
use crate::gang::GangKey;
use crate::place::{Attempt, Placement};
use crate::queue::{NextGang, Picker, QueueIx, QueueTurns};
use crate::repartition::Repartition;
use crate::report::Obstacle;
use crate::report_cache::QueueOrderReports;
use crate::state::Scheduler;

/// The most passes over all queues in one plan. The first places what fits, the second updates the
/// refusals; a third is rare.
const PASSES_MAX: usize = 4;
/// In one turn a gang gets this fraction of the members that wait beyond its minimum, or one.
const BEYOND_PARTS: usize = 16;

/// A pod and its uid.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

/// A gang: a PodGroup, or a pod without one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupRef {
    /// Its namespace.
    pub namespace: String,
    /// The PodGroup's name, or the pod's.
    pub name: String,
    /// True for a pod without a PodGroup.
    pub lone: bool,
}

impl GroupRef {
    pub(crate) fn of(key: &GangKey) -> GroupRef {
        GroupRef {
            namespace: String::from(&*key.namespace),
            name: String::from(&*key.name),
            lone: key.lone,
        }
    }
}

/// A pod to be bound to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The pod.
    pub pod: PodRef,
    /// Its gang.
    pub group: GroupRef,
    /// The node's name.
    pub node: String,
    /// The devices chosen for its containers; empty if the node chooses them.
    pub devices: ChosenDevices,
    /// The steps that its claims need first; empty if they are bound, or it has none.
    pub volumes: Vec<ClaimStep>,
}

/// A step that a PersistentVolumeClaim needs before a pod that names it is bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimStep {
    /// The claim's name, in the pod's namespace.
    pub claim: String,
    /// The claim's uid.
    pub uid: String,
    /// Where its volume comes from.
    pub from: VolumeSource,
    /// The resource version of the claim or volume that was written, once it is.
    pub written: Option<u64>,
}

/// Where a claim's volume comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VolumeSource {
    /// It is this PersistentVolume.
    Volume(String),
    /// Its StorageClass makes one for the pod's node.
    Made,
}

/// Whether a pod's claims are bound as decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumesReady {
    /// All are, to volumes that its node reaches.
    Yes,
    /// Some are not bound yet.
    NotYet,
    /// They will not be, for this reason.
    No(String),
}

/// A PodGroup's new status.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupUpdate {
    /// Which PodGroup.
    pub group: GroupRef,
    /// The PodGroup's uid.
    pub uid: String,
    /// Its phase.
    pub phase: PodGroupPhase,
    /// All its conditions.
    pub conditions: Vec<GroupCondition>,
    /// Members running.
    pub running: usize,
    /// Members that succeeded.
    pub succeeded: usize,
    /// Members that failed.
    pub failed: usize,
}

/// One condition of a PodGroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupCondition {
    /// `Scheduled` or `Unschedulable`; others are kept as found.
    pub kind: String,
    /// Does it hold?
    pub status: bool,
    /// The reason, in one word.
    pub reason: String,
    /// The reason, in a sentence.
    pub message: String,
}

/// Waiting members of a gang and the message for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unscheduled {
    /// Its waiting members. Shared with the scheduler while they are the same.
    pub group: GroupRef,
    /// Its members that wait. Kept by the scheduler, too, until they are others.
    pub pods: Arc<[PodRef]>,
    /// Why they wait.
    pub message: String,
}

/// A pod to be evicted. It counts as gone until `forget_eviction` is called; its capacity is held
/// for the gang that it is evicted for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// The pod.
    pub pod: PodRef,
    /// Its gang.
    pub group: GroupRef,
    /// The node that it leaves.
    pub node: String,
    /// Why.
    pub why: EvictionReason,
    /// The gang that it is evicted for, if any.
    pub by: Option<GroupRef>,
    /// The reason, in a sentence.
    pub message: String,
    /// The seconds that it needs for a checkpoint, if it says so (`muster.io/checkpoint-grace`).
    pub grace: Option<i64>,
}

/// Why a pod is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EvictionReason {
    /// Preempted by a gang of its own queue that is ordered before it.
    Preempted,
    /// Reclaimed by a gang of another queue, up to that queue's entitlement.
    Reclaimed,
    /// Reclaimed by a gang of higher priority of another queue that borrows.
    ReclaimedWhileBorrowing,
    /// Reclaimed by a gang of another queue with a smaller share.
    FairShare,
    /// Moved: it has another place.
    Consolidated,
    /// Its gang continues without it.
    Shrunk,
    /// Its gang runs with fewer members than its minimum.
    StaleGang,
    /// A GPU that it has failed.
    FailedDevice,
    /// Moved so that whole nodes become free.
    Defragmented,
}

impl EvictionReason {
    /// The reason in a word, for events and conditions.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            EvictionReason::Preempted => "Preempted",
            EvictionReason::Reclaimed => "Reclaimed",
            EvictionReason::ReclaimedWhileBorrowing => "ReclaimedWhileBorrowing",
            EvictionReason::FairShare => "FairShare",
            EvictionReason::Consolidated => "Consolidated",
            EvictionReason::Shrunk => "Shrunk",
            EvictionReason::StaleGang => "StaleGang",
            EvictionReason::FailedDevice => "FailedDevice",
            EvictionReason::Defragmented => "Defragmented",
        }
    }

    pub(crate) fn sentence(self, by: Option<&GroupRef>, queue: &str) -> String {
        let by = by.map_or_else(String::new, |by| format!("{}/{}", by.namespace, by.name));
        match self {
            EvictionReason::Preempted => {
                format!("preempted by {by}, which is ordered before it in queue {queue}")
            }
            EvictionReason::Reclaimed => {
                format!("reclaimed for {by}: queue {queue} holds more than its share")
            }
            EvictionReason::ReclaimedWhileBorrowing => {
                format!("reclaimed for {by}, which has higher priority: queue {queue} borrows")
            }
            EvictionReason::FairShare => {
                format!("reclaimed for {by}, whose queue has a smaller share than queue {queue}")
            }
            EvictionReason::Consolidated => {
                format!("moved to another node, so that {by} fits")
            }
            EvictionReason::Shrunk => format!("evicted for {by}; its gang continues without it"),
            EvictionReason::StaleGang => {
                "its gang has been running below its minimum of members".to_owned()
            }
            EvictionReason::FailedDevice => {
                "uses a GPU that failed, and cannot continue on it".to_owned()
            }
            EvictionReason::Defragmented => {
                "moved to another node, so that a whole node becomes free".to_owned()
            }
        }
    }
}

/// Capacity held for a gang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GangReservation {
    /// The gang.
    pub group: GroupRef,
    /// Its members, and the node that each is meant for.
    pub pods: Vec<(PodRef, String)>,
    /// The devices of each of them, in the same order; empty if none are chosen.
    pub devices: Vec<ChosenDevices>,
    /// The kind of reservation.
    pub kind: ReservationKind,
}

/// The kind of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationKind {
    /// Terminating pods still use it.
    Nominated,
    /// It will be free by that time, if pods end by their stated walltime or by the time in which
    /// nine of ten like them ended.
    Planned {
        /// When.
        at: Timestamp,
    },
}

/// What to do now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Nothing changed since the last plan: its reports and reservations still hold, and all fields
    /// here are empty.
    pub unchanged: bool,
    /// Pods to bind. They count as bound until `forget` is called.
    pub binds: Vec<Bind>,
    /// PodGroups with a new status.
    pub groups: Vec<GroupUpdate>,
    /// A report for each waiting gang, by queue and in queue order.
    pub reports: QueueOrderReports,
    /// Waiting pods whose message is new.
    pub unscheduled: Vec<Unscheduled>,
    /// Pods to evict.
    pub evictions: Vec<Eviction>,
    /// Capacity held for gangs.
    pub reservations: Vec<GangReservation>,
    /// Nodes whose GPUs are to be repartitioned.
    pub repartitions: Vec<Repartition>,
    /// When to plan again even if nothing changes.
    pub requeue_at: Option<Timestamp>,
}

/// The gangs tried in one plan, and the answers.
#[derive(Debug, Default)]
pub(crate) struct PlanRound {
    /// True if all waiting gangs were tried, false if only new ones were.
    pub(crate) all: bool,
    /// The reason why each gang waits.
    pub(crate) obstacles: BTreeMap<GangKey, Obstacle>,
    /// The same gangs in turn order.
    pub(crate) waiting: Vec<GangKey>,
    /// For queues whose policy orders by user: the order in which gangs were tried.
    pub(crate) order: BTreeMap<QueueIx, Vec<GangKey>>,
    /// Gangs that pods were evicted for.
    pub(crate) served: BTreeSet<GangKey>,
}

/// One queue's turns within a pass.
struct QueueTurn {
    picker: Picker,
    /// The next gang.
    next: Option<GangKey>,
    /// Gangs that were tried and are still below their minimum, in order.
    passed: Vec<GangKey>,
    /// Gangs that were tried and wait, if the queue's policy orders by user.
    order: Vec<GangKey>,
    /// For each gang that reached its minimum, how many were in `passed` by then.
    started: Vec<usize>,
}

impl Scheduler {
    /// Decides what to bind, and why the rest waits. `now` is used for timers only.
    pub fn plan(&mut self, now: Timestamp) -> Plan {
        let woken = self.requeue_at.is_some_and(|requeue_at| requeue_at <= now);
        if !self.changed && !woken {
            return Plan {
                unchanged: true,
                requeue_at: self.requeue_at,
                ..Plan::default()
            };
        }
        self.plans += 1;
        self.requeue_at = None;
        self.renewed = 0;
        self.forget_loads(now);
        self.rank_nodes();
        self.update_queues();
        self.queues.remember(now, self.config.usage);
        self.update_queues();
        self.version += u64::from(self.queues.shifted());
        let mut plan = Plan::default();
        self.update_timeline(now);
        let yielding_places = self.revisit(now, &mut plan);
        let mut round = PlanRound::default();
        if !self.try_new_gangs(now, &mut plan, &mut round) {
            self.try_all_gangs(now, &mut plan, &mut round);
        }
        self.evict_from_failed_devices(&mut plan);
        self.evict_incomplete_gangs(now, &mut plan);
        self.renominate_victims(yielding_places);
        self.nominate_victims(&plan, now);
        self.defragment(now, &mut plan);
        plan.reservations = self.nominations();
        plan.reservations.extend(self.head_reservation(now));
        self.report_reserved_places(&mut plan);
        self.queues.note_held();
        self.estimate_starts(&round.waiting, now);
        self.write_reports(&round, &mut plan);
        self.changed = false;
        self.cut(now, &mut plan);
        self.trim_views();
        plan.requeue_at = self.requeue_at;
        plan
    }

    /// Tries every waiting gang, until no more are placed.
    fn try_all_gangs(&mut self, now: Timestamp, plan: &mut Plan, round: &mut PlanRound) {
        let mut rests = false;
        round.all = true;
        for _ in 0..PASSES_MAX {
            for _ in 0..PASSES_MAX {
                round.obstacles.clear();
                round.waiting.clear();
                let placed;
                (placed, round.order) =
                    self.take_turns(now, plan, &mut round.obstacles, &mut round.waiting);
                // Gangs placed after a refusal may have changed its reason.
                rests = !placed || round.obstacles.is_empty();
                if rests {
                    break;
                }
            }
            // Evictions may free more than they were for.
            if !self.find_victims(round, now, plan) {
                break;
            }
            rests = false;
            self.last_eviction_age = Some(self.age);
        }
        if rests && !round.waiting.is_empty() {
            self.record_settled(now, round);
        }
    }

    /// Tries every waiting gang, in the order of the queues' turns. In one turn a gang gets its
    /// minimum; members beyond it are placed in portions, so that other queues come in between.
    /// Gangs that still wait are appended to `blocked` in turn order. Returns whether any gang was
    /// placed and, for queues whose policy orders by user, the order in which waiting gangs were
    /// tried.
    fn take_turns(
        &mut self,
        now: Timestamp,
        plan: &mut Plan,
        obstacles: &mut BTreeMap<GangKey, Obstacle>,
        blocked: &mut Vec<GangKey>,
    ) -> (bool, BTreeMap<QueueIx, Vec<GangKey>>) {
        let mut any = self.start_head(now, plan);
        self.unanswered.clear();
        let mut turns = QueueTurns::default();
        let mut lines: BTreeMap<QueueIx, QueueTurn> = BTreeMap::new();
        let waiting = self.queues.iter().filter(|(_, _, q)| !q.line.is_empty());
        let waiting: Vec<QueueIx> = waiting.map(|(_, at, _)| at).collect();
        for at in waiting {
            let user = |key: &GangKey| {
                let gang = self.gangs.get(key);
                gang.and_then(|gang| gang.payer).map_or(0, |p| p.user)
            };
            let turn = QueueTurn {
                picker: Picker::new(&self.queues, at, user),
                next: None,
                passed: Vec::new(),
                order: Vec::new(),
                started: Vec::new(),
            };
            lines.insert(at, turn);
            self.seat(at, &mut lines, &mut turns);
        }
        while let Some(at) = turns.first() {
            let Some(key) = lines.get_mut(&at).and_then(|turn| turn.next.take()) else {
                break;
            };
            let gang = self.gangs.get(&key);
            let was_whole = gang.is_some_and(|gang| gang.whole(&key));
            let place = gang.and_then(|gang| gang.line.clone());
            let only = self.queues.at(at).line.len() == 1;
            let beyond = match gang {
                // No other gang could come in between.
                _ if turns.alone() && (was_whole || only) => usize::MAX,
                Some(gang) if was_whole => (gang.total.pending / BEYOND_PARTS).max(1),
                _ => 0,
            };
            let mut again = false;
            match self.attempt_turn(&key, now, beyond) {
                Attempt::Nothing => {}
                Attempt::Blocked(obstacle) => {
                    blocked.push(key.clone());
                    obstacles.insert(key.clone(), obstacle);
                }
                Attempt::Placed(placed) if !self.config.actions.allocate => {
                    self.take_back(&key, &placed.members);
                    self.reserve_again(&key, placed.used);
                }
                Attempt::Placed(placed) => {
                    any = true;
                    let (mut placed, rest) = self.accept(placed);
                    placed.retain(|placement| self.is_bound(&placement.pod));
                    self.write_binds(&key, placed, &mut plan.binds);
                    again = was_whole && rest.is_none();
                    if let Some(obstacle) = rest {
                        blocked.push(key.clone());
                        obstacles.insert(key.clone(), obstacle);
                    }
                    self.serve(&key);
                }
            }
            let gang = self.gangs.get(&key);
            let waits = gang.is_some_and(|gang| gang.line.is_some());
            let whole = gang.is_some_and(|gang| gang.whole(&key));
            if let Some(turn) = lines.get_mut(&at) {
                if whole && !was_whole {
                    turn.started.push(turn.passed.len());
                } else if waits && !whole {
                    turn.passed.push(key.clone());
                }
                let grows = waits && whole && !was_whole;
                if waits && !again && !grows && turn.picker.by_user() {
                    turn.order.push(key);
                }
                if !(again && waits) {
                    turn.picker.done(place, grows);
                }
            }
            self.seat(at, &mut lines, &mut turns);
        }
        for turn in lines.values().filter(|turn| !turn.started.is_empty()) {
            self.count_overtaken(turn);
        }
        let by_user = lines.into_iter().filter(|(_, turn)| turn.picker.by_user());
        let order = by_user.map(|(at, turn)| (at, turn.order)).collect();
        (any, order)
    }

    /// Undoes a placement if plans must not place.
    pub(crate) fn take_back(&mut self, key: &GangKey, placed: &[Placement]) {
        for placement in placed {
            self.set_placement(&placement.pod, PodPlacement::pending());
        }
        self.settle(key);
    }

    /// Sets a queue's next gang and its position among the queues.
    fn seat(&self, at: QueueIx, lines: &mut BTreeMap<QueueIx, QueueTurn>, turns: &mut QueueTurns) {
        let Some(turn) = lines.get_mut(&at) else {
            return;
        };
        turn.next = turn.picker.next(&self.queues);
        let gang = turn.next.as_ref().and_then(|key| {
            let gang = self.gangs.get(key)?;
            Some(gang.need(key))
        });
        let next = match gang {
            Some(need) => NextGang::Needs(need),
            None => NextGang::NoGang,
        };
        turns.seat(&self.queues, at, next);
    }

    pub(crate) fn serve(&mut self, key: &GangKey) {
        let payer = self.gangs.get(key).and_then(|gang| gang.payer);
        if let Some(payer) = payer {
            self.queues.serve(payer.queue, payer.user);
        }
    }

    /// Counts, for each gang that was passed, the gangs that started after it was tried.
    fn count_overtaken(&mut self, turn: &QueueTurn) {
        let mut started = turn.started.iter().peekable();
        let mut before = 0;
        for (place, key) in turn.passed.iter().enumerate() {
            while started.next_if(|passed| **passed <= place).is_some() {
                before += 1;
            }
            let behind = turn.started.len() - before;
            if behind == 0 {
                break;
            }
            if let Some(gang) = self.gangs.get_mut(key).filter(|gang| gang.line.is_some()) {
                gang.overtaken += behind;
            }
        }
    }

    pub(crate) fn write_binds(
        &mut self,
        key: &GangKey,
        placed: Vec<Placement>,
        binds: &mut Vec<Bind>,
    ) {
        let group = GroupRef::of(key);
        for placement in placed {
            let Some(pod) = self.pods.get(&placement.pod) else {
                continue;
            };
            let (asks, uid) = (pod.asks.clone(), pod.uid.clone());
            let mut devices = devices::deal(&asks, &placement.devices);
            let volumes = self.volumes.steps(&placement.pod);
            self.add_listed(&placement.pod, placement.node, &asks, &mut devices);
            binds.push(Bind {
                pod: PodRef {
                    namespace: String::from(&*placement.pod.namespace),
                    name: String::from(&*placement.pod.name),
                    uid,
                },
                group: group.clone(),
                node: String::from(&*self.nodes[placement.node].name),
                devices,
                volumes,
            });
        }
    }
}
