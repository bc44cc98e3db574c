//! One plan: whose turn it is, what is bound, what waits and why. Queues take turns by share, so
//! that none gets ahead of its weight; within a queue the line decides. A gang that does not fit
//! holds up nobody; how many started past it is in its report.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use resources::devices::ChosenDevices;
use resources::kinds::PodGroupPhase;

use crate::cutting::Recut;
use crate::devices;
use crate::evict::txn::Standing;
use crate::gang::GangKey;
use crate::place::{Attempt, Placement};
use crate::queue::{Next, Picker, QueueIx, Turns};
use crate::report::Obstacle;
use crate::said::Reports;
use crate::state::Scheduler;

/// How often the lines are gone through in one plan. The first pass places what fits, the second
/// finds what its refusals look like afterwards; a third is rare.
const PASSES_MAX: usize = 4;
/// In one turn a gang gets this part of the members that wait beyond its minimum, or one.
const BEYOND_PARTS: usize = 16;

/// A pod, and which one of that name.
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
    /// A pod without a PodGroup.
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
    /// The devices chosen for its containers; empty where nodes choose themselves.
    pub devices: ChosenDevices,
    /// What must become of its claims first; empty where they are bound, or it has none.
    pub volumes: Vec<ClaimStep>,
}

/// What must become of a PersistentVolumeClaim before a pod that names it is bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimStep {
    /// The claim's name, in the pod's namespace.
    pub claim: String,
    /// Which one of that name.
    pub uid: String,
    /// Where its volume comes from.
    pub from: VolumeSource,
    /// Which version of the claim, or of the volume, says so, once that is written.
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

/// Whether a pod's claims are bound as was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumesReady {
    /// All of them, to volumes that its node reaches.
    Yes,
    /// Some are not bound yet.
    NotYet,
    /// They will not be, for this reason.
    No(String),
}

/// What a PodGroup's status should say.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupUpdate {
    /// Which PodGroup.
    pub group: GroupRef,
    /// Which one of that name.
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
    /// Why, in a word.
    pub reason: String,
    /// Why, in a sentence.
    pub message: String,
}

/// Waiting members of a gang and what they should be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unscheduled {
    /// The gang.
    pub group: GroupRef,
    /// Its members that wait. Kept by the scheduler, too, until they are others.
    pub pods: Arc<[PodRef]>,
    /// Why they wait.
    pub message: String,
}

/// A pod to be evicted. It counts as gone until `forget_eviction` says otherwise; its room is
/// held for whom it is evicted for.
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
    /// The gang that it is evicted for, if for one.
    pub by: Option<GroupRef>,
    /// Why, in a sentence.
    pub message: String,
    /// How long it needs to save itself, in seconds, where it says so
    /// (`muster.io/checkpoint-grace`).
    pub grace: Option<i64>,
}

/// Why a pod is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EvictionReason {
    /// By a gang of its own queue that goes before it.
    Preempted,
    /// By a gang of another queue, which takes back what it is entitled to.
    Reclaimed,
    /// By a gang of another queue that borrows, of higher priority.
    ReclaimedWhileBorrowing,
    /// By a gang of another queue whose share is smaller.
    FairShare,
    /// It has a place elsewhere.
    Consolidated,
    /// Its gang goes on without it.
    Shrunk,
    /// Its gang runs with fewer members than it needs.
    StaleGang,
    /// A GPU that it has failed.
    FailedDevice,
    /// Moved so that nodes become whole.
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
                format!("makes room for {by}, which goes before it in queue {queue}")
            }
            EvictionReason::Reclaimed => {
                format!("makes room for {by}: queue {queue} holds more than its share")
            }
            EvictionReason::ReclaimedWhileBorrowing => {
                format!("makes room for {by}, of higher priority: queue {queue} borrows")
            }
            EvictionReason::FairShare => {
                format!("makes room for {by}, whose queue has a smaller share than queue {queue}")
            }
            EvictionReason::Consolidated => {
                format!("is moved to another place, so that {by} fits")
            }
            EvictionReason::Shrunk => format!("makes room for {by}; its gang goes on without it"),
            EvictionReason::StaleGang => {
                "its gang has been running with fewer members than it needs".to_owned()
            }
            EvictionReason::FailedDevice => {
                "has a GPU that failed, and can't go on there".to_owned()
            }
            EvictionReason::Defragmented => {
                "is moved to another place, so that a node becomes whole".to_owned()
            }
        }
    }
}

/// Room that is held for a gang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The gang.
    pub group: GroupRef,
    /// Its members, and the node that each is meant for.
    pub pods: Vec<(PodRef, String)>,
    /// The devices that each of them will have, in the same order; empty where none are chosen.
    pub devices: Vec<ChosenDevices>,
    /// What kind of room it is.
    pub kind: ReservationKind,
}

/// What kind of room is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationKind {
    /// Others are leaving it.
    Nominated,
    /// It will be free by that time, if nobody outlives what it said or nine of ten like it took.
    Planned {
        /// When.
        at: Timestamp,
    },
}

/// What to do now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Nothing was told since the last plan: what that one said of waiting gangs and of room that
    /// is kept still holds, and everything here is empty.
    pub unchanged: bool,
    /// Pods to bind. They count as bound until `forget` says otherwise.
    pub binds: Vec<Bind>,
    /// PodGroups whose status should say something new.
    pub groups: Vec<GroupUpdate>,
    /// A report for each gang that waits, by queue and in the order of its line.
    pub reports: Reports,
    /// Waiting pods whose reason is new.
    pub unscheduled: Vec<Unscheduled>,
    /// Pods to evict.
    pub evictions: Vec<Eviction>,
    /// Room kept.
    pub reservations: Vec<Reservation>,
    /// Nodes whose GPUs are to be cut anew.
    pub recuts: Vec<Recut>,
    /// When to plan again even if nothing changes.
    pub wake: Option<Timestamp>,
}

/// What a plan asked those who wait, and what they were told.
#[derive(Debug, Default)]
pub(crate) struct Round {
    /// Everybody was asked, not only who came since the last plan.
    pub(crate) all: bool,
    /// Why gangs wait.
    pub(crate) obstacles: BTreeMap<GangKey, Obstacle>,
    /// The same gangs in the order of their turns.
    pub(crate) waiting: Vec<GangKey>,
    /// For queues whose order is not that of their line, in which order gangs were tried.
    pub(crate) order: BTreeMap<QueueIx, Vec<GangKey>>,
    /// For whom somebody was evicted.
    pub(crate) served: BTreeSet<GangKey>,
}

/// One queue's turns within a pass.
struct Turn {
    picker: Picker,
    /// The gang that is next.
    next: Option<GangKey>,
    /// Gangs that were tried and are not whole yet, in that order.
    passed: Vec<GangKey>,
    /// Gangs that were tried and wait, where the line does not say the order.
    order: Vec<GangKey>,
    /// For each gang that became whole, how many had been passed by then.
    started: Vec<usize>,
}

impl Scheduler {
    /// Decides what to bind, and why the rest waits. `now` matters only for gangs that are held
    /// after a failed binding.
    pub fn plan(&mut self, now: Timestamp) -> Plan {
        let woken = self.wake.is_some_and(|wake| wake <= now);
        if !self.changed && !woken {
            return Plan {
                unchanged: true,
                wake: self.wake,
                ..Plan::default()
            };
        }
        self.plans += 1;
        self.wake = None;
        self.reworded = 0;
        self.forget_loads(now);
        self.rank_nodes();
        self.reckon_queues();
        self.queues.remember(now, self.config.usage);
        self.reckon_queues();
        self.version += u64::from(self.queues.shifted());
        let mut plan = Plan::default();
        self.tend_timeline(now);
        let courtesies = self.revisit(now, &mut plan);
        let mut round = Round::default();
        if !self.ask_newcomers(now, &mut plan, &mut round) {
            self.ask_everybody(now, &mut plan, &mut round);
        }
        self.evict_stranded(&mut plan);
        self.evict_stale(now, &mut plan);
        self.keep_courtesies(courtesies);
        self.house_losers(&plan, now);
        self.defragment(now, &mut plan);
        plan.reservations = self.nominations();
        plan.reservations.extend(self.planned(now));
        self.kept_places(&mut plan);
        self.queues.note_held();
        self.foretell(&round.waiting, now);
        self.say(&round, &mut plan);
        self.changed = false;
        self.cut(now, &mut plan);
        self.trim_views();
        plan.wake = self.wake;
        plan
    }

    /// Asks every waiting gang, until nobody is placed any more.
    fn ask_everybody(&mut self, now: Timestamp, plan: &mut Plan, round: &mut Round) {
        let mut rests = false;
        round.all = true;
        for _ in 0..PASSES_MAX {
            for _ in 0..PASSES_MAX {
                round.obstacles.clear();
                round.waiting.clear();
                let placed;
                (placed, round.order) =
                    self.take_turns(now, plan, &mut round.obstacles, &mut round.waiting);
                // What was placed after a gang was refused changed what is true of its refusal.
                rests = !placed || round.obstacles.is_empty();
                if rests {
                    break;
                }
            }
            // Evictions may leave more room than they were for.
            if !self.evict_for(round, now, plan) {
                break;
            }
            rests = false;
            self.won = Some(self.age);
        }
        if rests && !round.waiting.is_empty() {
            self.come_to_rest(now, round);
        }
    }

    /// Tries every waiting gang: whose turn it is, the queues say. A gang gets its minimum in one
    /// turn, and members beyond it bit by bit, so that others come between. Those that go on
    /// waiting are listed in the order of their turns. Says whether anybody was placed, and, for
    /// queues whose order is not that of their line, in which order those that wait were tried.
    fn take_turns(
        &mut self,
        now: Timestamp,
        plan: &mut Plan,
        obstacles: &mut BTreeMap<GangKey, Obstacle>,
        blocked: &mut Vec<GangKey>,
    ) -> (bool, BTreeMap<QueueIx, Vec<GangKey>>) {
        let mut any = self.look_ahead(now, plan);
        self.awake.clear();
        let mut turns = Turns::default();
        let mut lines: BTreeMap<QueueIx, Turn> = BTreeMap::new();
        let waiting = self.queues.iter().filter(|(_, _, q)| !q.line.is_empty());
        let waiting: Vec<QueueIx> = waiting.map(|(_, at, _)| at).collect();
        for at in waiting {
            let user = |key: &GangKey| {
                let gang = self.gangs.get(key);
                gang.and_then(|gang| gang.payer).map_or(0, |p| p.user)
            };
            let turn = Turn {
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
                // Nobody could come between.
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
                Attempt::Placed(placed, _) if !self.config.actions.allocate => {
                    self.take_back(&key, &placed);
                }
                Attempt::Placed(mut placed, rest) => {
                    any = true;
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

    /// Undoes what was placed, where plans are not to place.
    pub(crate) fn take_back(&mut self, key: &GangKey, placed: &[Placement]) {
        for placement in placed {
            self.restand(&placement.pod, Standing::pending());
        }
        self.settle(key);
    }

    /// Looks who is next in a queue, and seats the queue by it.
    fn seat(&self, at: QueueIx, lines: &mut BTreeMap<QueueIx, Turn>, turns: &mut Turns) {
        let Some(turn) = lines.get_mut(&at) else {
            return;
        };
        turn.next = turn.picker.next(&self.queues);
        let gang = turn.next.as_ref().and_then(|key| {
            let gang = self.gangs.get(key)?;
            Some(gang.need(key))
        });
        let next = match gang {
            Some(need) => Next::Needs(need),
            None => Next::Nobody,
        };
        turns.seat(&self.queues, at, next);
    }

    pub(crate) fn serve(&mut self, key: &GangKey) {
        let payer = self.gangs.get(key).and_then(|gang| gang.payer);
        if let Some(payer) = payer {
            self.queues.serve(payer.queue, payer.user);
        }
    }

    /// Counts, for each gang that was passed, those that started after it was tried.
    fn count_overtaken(&mut self, turn: &Turn) {
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
