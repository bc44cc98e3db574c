//! One plan: whose turn it is, what is bound, what waits and why. Queues take turns by share, so
//! that none gets ahead of its weight; within a queue the line decides. A gang that does not fit
//! holds up nobody; how many started past it is in its report.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use resources::devices::ChosenDevices;
use resources::kinds::PodGroupPhase;
use resources::report::PlacementReport;

use crate::devices;
use crate::gang::GangKey;
use crate::place::{Attempt, Placement};
use crate::report::Obstacle;
use crate::state::Scheduler;

/// How often the lines are gone through in one plan. The first pass places what fits, the second
/// finds what its refusals look like afterwards; a third is rare.
const PASSES_MAX: usize = 4;

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
            namespace: key.namespace.to_string(),
            name: key.name.to_string(),
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
    /// Its members that wait.
    pub pods: Vec<PodRef>,
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
            EvictionReason::Defragmented => "Defragmented",
        }
    }

    pub(crate) fn sentence(self, by: Option<&GroupRef>, queue: &str) -> String {
        let by = by.map_or_else(String::new, |by| format!("{}/{}", by.namespace, by.name));
        match self {
            EvictionReason::Preempted => format!("makes room for {by}, which goes before it in queue {queue}"),
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
    /// What kind of room it is.
    pub kind: ReservationKind,
}

/// What kind of room is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationKind {
    /// Others are leaving it.
    Nominated,
    /// It will be free at that time, as far as can be told.
    Planned {
        /// When.
        at: Timestamp,
    },
}

/// What to do now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Nothing was told since the last plan: what that one said of waiting gangs still holds, and
    /// everything here is empty.
    pub unchanged: bool,
    /// Pods to bind. They count as bound until `forget` says otherwise.
    pub binds: Vec<Bind>,
    /// PodGroups whose status should say something new.
    pub groups: Vec<GroupUpdate>,
    /// A report for each gang that waits, by queue and in the order of its line.
    pub reports: Vec<PlacementReport>,
    /// Waiting pods whose reason is new.
    pub unscheduled: Vec<Unscheduled>,
    /// Pods to evict.
    pub evictions: Vec<Eviction>,
    /// Room kept.
    pub reservations: Vec<Reservation>,
    /// When to plan again even if nothing changes.
    pub wake: Option<Timestamp>,
}

/// One queue's line as it stood when the plan began.
struct Turn {
    line: Vec<GangKey>,
    next: usize,
    /// Places in the line whose gang became whole in this plan.
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
        self.rank_nodes();
        let mut plan = Plan::default();
        self.revisit(now, &mut plan);
        let mut obstacles = BTreeMap::new();
        for _ in 0..PASSES_MAX {
            let mut waiting = Vec::new();
            for _ in 0..PASSES_MAX {
                obstacles.clear();
                waiting.clear();
                let placed = self.take_turns(now, &mut plan, &mut obstacles, &mut waiting);
                // What was placed after a gang was refused changed what is true of its refusal.
                if !placed || obstacles.is_empty() {
                    break;
                }
            }
            // Evictions may leave more room than they were for.
            if !self.evict_for(&waiting, now, &mut plan, &mut obstacles) {
                break;
            }
        }
        self.evict_stale(now, &mut plan);
        plan.reservations = self.nominations();
        self.say(&obstacles, &mut plan);
        self.changed = false;
        self.trim_views();
        plan.wake = self.wake;
        plan
    }

    /// Tries every waiting gang, queue by queue, the queue with the smallest share first. Those
    /// that go on waiting are listed in the order of their turns. True if anybody was placed.
    fn take_turns(
        &mut self,
        now: Timestamp,
        plan: &mut Plan,
        obstacles: &mut BTreeMap<GangKey, Obstacle>,
        waiting: &mut Vec<GangKey>,
    ) -> bool {
        let mut any = false;
        let mut turns: BTreeMap<String, Turn> = BTreeMap::new();
        for (name, queue) in self
            .queues
            .iter()
            .filter(|(_, queue)| !queue.line.is_empty())
        {
            let line = queue.line.iter().map(|place| place.gang.clone()).collect();
            turns.insert(
                name.clone(),
                Turn {
                    line,
                    next: 0,
                    started: Vec::new(),
                },
            );
        }
        let mut order: BTreeSet<(Reverse<i32>, i128, String)> =
            turns.keys().map(|name| self.standing(name)).collect();
        while let Some((_, _, name)) = order.pop_first() {
            let Some(turn) = turns.get_mut(&name) else {
                continue;
            };
            let Some(key) = turn.line.get(turn.next).cloned() else {
                continue;
            };
            let was_whole = self.gangs.get(&key).is_some_and(|gang| gang.whole(&key));
            match self.attempt(&key, now) {
                Attempt::Nothing => {}
                Attempt::Blocked(obstacle) => {
                    waiting.push(key.clone());
                    obstacles.insert(key, obstacle);
                }
                Attempt::Placed(mut placed, rest) => {
                    any = true;
                    placed.retain(|placement| self.is_bound(&placement.pod));
                    self.write_binds(&key, placed, &mut plan.binds);
                    if !was_whole {
                        turn.started.push(turn.next);
                    }
                    if let Some(obstacle) = rest {
                        waiting.push(key.clone());
                        obstacles.insert(key, obstacle);
                    }
                }
            }
            turn.next += 1;
            if turn.next < turn.line.len() {
                order.insert(self.standing(&name));
            }
        }
        for turn in turns.values().filter(|turn| !turn.started.is_empty()) {
            self.count_overtaken(turn);
        }
        any
    }

    fn standing(&self, queue: &str) -> (Reverse<i32>, i128, String) {
        let priority = self.queues.rules(queue).map_or(0, |rules| rules.priority);
        (
            Reverse(priority),
            self.queues.share(queue, &self.total),
            queue.to_owned(),
        )
    }

    fn count_overtaken(&mut self, turn: &Turn) {
        let mut behind = turn.started.len();
        let mut started = turn.started.iter().peekable();
        for (place, key) in turn.line.iter().enumerate() {
            if started.next_if_eq(&&place).is_some() {
                behind -= 1;
                continue;
            }
            if behind == 0 {
                break;
            }
            if let Some(gang) = self.gangs.get_mut(key).filter(|gang| gang.line.is_some()) {
                gang.overtaken += behind;
            }
        }
    }

    pub(crate) fn write_binds(&self, key: &GangKey, placed: Vec<Placement>, binds: &mut Vec<Bind>) {
        let group = GroupRef::of(key);
        for placement in placed {
            let Some(pod) = self.pods.get(&placement.pod) else {
                continue;
            };
            let devices = if placement.devices.is_empty() {
                ChosenDevices::new()
            } else {
                devices::deal(&pod.asks, &placement.devices)
            };
            binds.push(Bind {
                pod: PodRef {
                    namespace: placement.pod.namespace.to_string(),
                    name: placement.pod.name.to_string(),
                    uid: pod.uid.clone(),
                },
                group: group.clone(),
                node: self.nodes[placement.node].name.to_string(),
                devices,
            });
        }
    }

    /// Puts into words what waits, and which PodGroups have news.
    fn say(&mut self, obstacles: &BTreeMap<GangKey, Obstacle>, plan: &mut Plan) {
        let lines: Vec<Vec<GangKey>> = self
            .queues
            .iter()
            .map(|(_, queue)| queue.line.iter().map(|place| place.gang.clone()).collect())
            .collect();
        for line in lines {
            for (ahead, key) in line.iter().enumerate() {
                let Some(obstacle) = obstacles.get(key) else {
                    continue;
                };
                let report = self.report(key, obstacle, ahead);
                plan.groups.extend(self.status_update(key, Some(&report)));
                plan.unscheduled.extend(self.tell(key, &report));
                self.stirred.remove(key);
                plan.reports.push(report);
            }
        }
        for key in self.nominated.clone() {
            if obstacles.contains_key(&key) {
                continue;
            }
            let obstacle = self.waits_for_leavers(&key);
            let report = self.report(&key, &obstacle, 0);
            plan.groups.extend(self.status_update(&key, Some(&report)));
            self.stirred.remove(&key);
            plan.reports.push(report);
        }
        for key in std::mem::take(&mut self.stirred) {
            plan.groups.extend(self.status_update(&key, None));
        }
    }

    /// What waiting members should be told, if it is new to any of them.
    fn tell(&mut self, key: &GangKey, report: &PlacementReport) -> Option<Unscheduled> {
        let sentence = report.sentence();
        let stirred = self.stirred.contains(key);
        let gang = self.gangs.get_mut(key)?;
        if (gang.told == sentence && !stirred) || gang.pending.is_empty() {
            return None;
        }
        gang.told.clone_from(&sentence);
        let pods = gang.pending.iter().filter_map(|(_, name)| {
            let pod = self.pods.get(name)?;
            Some(PodRef {
                namespace: name.namespace.to_string(),
                name: name.name.to_string(),
                uid: pod.uid.clone(),
            })
        });
        Some(Unscheduled {
            group: GroupRef::of(key),
            pods: pods.collect(),
            message: sentence,
        })
    }
}
