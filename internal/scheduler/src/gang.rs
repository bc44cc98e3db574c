//! One gang: its minimum, its members and their stages. A pod without a PodGroup is a gang of one.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;

use jiff::Timestamp;
use resources::amounts::Amounts;
use resources::kinds::{PodGroup, PodGroupPhase};
use resources::names::DEFAULT_QUEUE;
use resources::report::PlacementReport;

use crate::class::ClassIx;
use crate::evict::{EvictionGrace, ReservedPlace, VictimPlace};
use crate::job_annotations::JobAnnotations;
use crate::namespaced_name::NamespacedName;
use crate::node::NodeIx;
use crate::phase::{EmittedStatus, LastConditions};
use crate::place::BlockedAnswer;
use crate::plan::PodRef;
use crate::pod::{PodKey, PodStage};
use crate::queue::Payer;
use crate::queue_order::LineKey;
use crate::resource::{Demand, ResourceNames, Room};
use crate::small_map::{SmallMap, SmallSet};
use crate::topology::GangShape;

/// A gang's identity.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct GangKey {
    named: Arc<NamespacedName>,
    /// True for a pod without a PodGroup.
    pub(crate) lone: bool,
}

impl Deref for GangKey {
    type Target = NamespacedName;

    fn deref(&self) -> &NamespacedName {
        &self.named
    }
}

impl GangKey {
    pub(crate) fn group(namespace: Arc<str>, name: &str) -> GangKey {
        GangKey {
            named: NamespacedName::new(namespace, name),
            lone: false,
        }
    }

    pub(crate) fn lone(pod: &PodKey) -> GangKey {
        GangKey {
            named: pod.0.clone(),
            lone: true,
        }
    }
}

/// What a PodGroup specifies.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GangSpec {
    pub(crate) uid: String,
    pub(crate) min_member: usize,
    pub(crate) min_task_member: BTreeMap<Arc<str>, usize>,
    pub(crate) min_resources: Demand,
    pub(crate) queue: String,
    pub(crate) priority_class: Option<String>,
    pub(crate) created: Option<Timestamp>,
    /// Its annotations on eviction, user and run time.
    pub(crate) terms: JobAnnotations,
    /// Its sub-groups and topology request.
    pub(crate) shape: GangShape,
}

impl GangSpec {
    pub(crate) fn read(group: &PodGroup, names: &mut ResourceNames) -> GangSpec {
        let spec = &group.spec;
        let count = |n: i32| usize::try_from(n).unwrap_or(0);
        let tasks = spec.min_task_member.iter().flatten();
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        GangSpec {
            uid: group.metadata.uid.clone().unwrap_or_default(),
            min_member: count(spec.min_member.unwrap_or(1)),
            min_task_member: tasks
                .map(|(task, n)| (Arc::from(task.as_str()), count(*n)))
                .collect(),
            min_resources: spec
                .min_resources
                .as_ref()
                .map(|list| names.demand(&Amounts::from_k8s(list)))
                .unwrap_or_default(),
            queue: given(&spec.queue).unwrap_or_else(|| DEFAULT_QUEUE.to_owned()),
            priority_class: given(&spec.priority_class_name),
            created: group
                .metadata
                .creation_timestamp
                .as_ref()
                .map(|time| time.0),
            terms: JobAnnotations::read(&group.metadata),
            shape: GangShape::read(group),
        }
    }
}

/// Number of members by stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StageCounts {
    pub(crate) pending: usize,
    pub(crate) pipelined: usize,
    pub(crate) bound: usize,
    pub(crate) running: usize,
    pub(crate) leaving: usize,
    pub(crate) succeeded: usize,
    pub(crate) failed: usize,
}

impl StageCounts {
    fn of(&mut self, stage: PodStage) -> Option<&mut usize> {
        match stage {
            PodStage::Apart => None,
            PodStage::Pending => Some(&mut self.pending),
            PodStage::Pipelined => Some(&mut self.pipelined),
            PodStage::Bound => Some(&mut self.bound),
            PodStage::Running => Some(&mut self.running),
            PodStage::Leaving => Some(&mut self.leaving),
            PodStage::Succeeded => Some(&mut self.succeeded),
            PodStage::Failed => Some(&mut self.failed),
        }
    }

    pub(crate) fn change(&mut self, stage: PodStage, up: bool) {
        if let Some(n) = self.of(stage) {
            *n = if up { *n + 1 } else { n.saturating_sub(1) };
        }
    }

    /// Members on a node and not terminating.
    pub(crate) fn occupying(&self) -> usize {
        self.bound + self.running
    }

    /// Members on a node, and members that succeeded; the gang's phase is derived from these.
    pub(crate) fn there(&self) -> usize {
        self.occupying() + self.succeeded
    }

    /// Members that count towards the minimum: those on a node, those that succeeded, and those
    /// with a nominated node.
    pub(crate) fn have(&self) -> usize {
        self.there() + self.pipelined
    }

    /// Members that exist and have not failed.
    pub(crate) fn present(&self) -> usize {
        self.have() + self.pending
    }
}

/// One gang.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gang {
    /// `None` for a gang of one, and while the PodGroup is unknown.
    pub(crate) spec: Option<GangSpec>,
    pub(crate) members: SmallSet<PodKey>,
    /// Waiting members, in rank order.
    pub(crate) pending: SmallSet<(usize, PodKey)>,
    /// Waiting members by class.
    pub(crate) kinds: SmallMap<ClassIx, usize>,
    pub(crate) total: StageCounts,
    /// Members bound by plans whose binding no event has confirmed.
    pub(crate) assumed: usize,
    /// Members with an explicit rank.
    pub(crate) ranked: usize,
    pub(crate) tasks: SmallMap<Arc<str>, StageCounts>,
    /// Nodes on which members hold capacity, with the number of members.
    pub(crate) nodes: SmallMap<NodeIx, usize>,
    /// What members hold on the queue's account.
    pub(crate) allocated: Room,
    /// What members hold or wait for.
    pub(crate) requested: Room,
    /// What waiting members request.
    pub(crate) waiting: Room,
    /// The gang's queue.
    pub(crate) queue: String,
    /// The account that it is charged to; `None` before it is assigned.
    pub(crate) payer: Option<Payer>,
    /// True if the account may have changed.
    pub(crate) moved: bool,
    /// Members' priorities, with the number of members of each.
    pub(crate) priorities: SmallMap<i32, usize>,
    /// Start times of members on nodes, with the number of members of each.
    pub(crate) starts: SmallMap<Timestamp, usize>,
    /// Its position among the possible victims of its queue.
    pub(crate) victim: Option<VictimPlace>,
    /// When it was placed by an eviction, or moved: see `evict`.
    pub(crate) eviction_grace: Option<EvictionGrace>,
    /// Victims evicted for it that may not have terminated yet.
    pub(crate) awaits: BTreeSet<PodKey>,
    /// Reservations for members that were moved.
    pub(crate) reserved_places: Vec<ReservedPlace>,
    /// The time since which it runs below its minimum.
    pub(crate) incomplete_since: Option<Timestamp>,
    /// True once its queue admitted it. Stays true: a restarted gang is not new work.
    pub(crate) admitted: bool,
    /// True while its `minResources` count as expected in its queue.
    pub(crate) expected: bool,
    /// Not tried before this time, after a failed binding.
    pub(crate) held_until: Option<Timestamp>,
    /// The reason, if it was not a binding refused by the API.
    pub(crate) held_why: Option<Box<str>>,
    /// Gangs behind it in the queue that started while it waited.
    pub(crate) overtaken: usize,
    pub(crate) line: Option<LineKey>,
    /// The last emitted status of its PodGroup.
    pub(crate) shown: Option<EmittedStatus>,
    /// The last message to its waiting members.
    pub(crate) last_message: String,
    /// Those members, while they are the same.
    pub(crate) addressed: Option<Arc<[PodRef]>>,
    /// The last report on it, while it waits.
    pub(crate) report: Option<Arc<PlacementReport>>,
    /// Members by sub-group.
    pub(crate) parts: BTreeMap<Arc<str>, StageCounts>,
    /// Members whose task has a topology request.
    pub(crate) hinted: usize,
    /// The cached obstacle of the last attempt.
    pub(crate) blocked_answer: Option<Box<BlockedAnswer>>,
}

impl Gang {
    /// The members that must start together.
    pub(crate) fn minimum(&self, key: &GangKey) -> usize {
        if key.lone {
            return 1;
        }
        let Some(spec) = &self.spec else { return 1 };
        let parts = spec.shape.sub_groups.iter().map(|part| part.minimum);
        spec.min_member
            .max(spec.min_task_member.values().sum())
            .max(parts.sum())
    }

    /// True if it waits for a change by a user or administrator, so that no end of other pods lets
    /// it start.
    pub(crate) fn waits_for_a_change(&self) -> bool {
        let blocked_answer = self.blocked_answer.as_ref();
        blocked_answer.is_some_and(|blocked_answer| blocked_answer.is_lasting())
    }

    pub(crate) fn part(&self, part: &str) -> StageCounts {
        self.parts.get(part).copied().unwrap_or_default()
    }

    /// True if every required sub-group has its minimum.
    fn parts_whole(&self) -> bool {
        let Some(spec) = &self.spec else { return true };
        let named = &spec.shape.sub_groups;
        let mut policies = spec.shape.policies.iter();
        named
            .iter()
            .all(|part| self.part(&part.name).have() >= part.minimum)
            && policies.all(|policy| {
                let made = self.parts.iter().filter(|(name, _)| policy.made(name));
                made.filter(|(_, counts)| counts.have() >= policy.size)
                    .count()
                    >= policy.least
            })
    }

    pub(crate) fn count_part(&mut self, part: Option<&Arc<str>>, stage: PodStage, up: bool) {
        let Some(part) = part else { return };
        let counts = self.parts.entry(part.clone()).or_default();
        counts.change(stage, up);
        if *counts == StageCounts::default() {
            self.parts.remove(part);
        }
    }

    pub(crate) fn task(&self, task: &str) -> StageCounts {
        self.tasks.get(task).copied().unwrap_or_default()
    }

    /// True if members that hold or are nominated to capacity (or succeeded) meet the minimum.
    pub(crate) fn whole(&self, key: &GangKey) -> bool {
        self.whole_by(key, StageCounts::have) && self.parts_whole()
    }

    /// True if members on nodes (or succeeded) meet the minimum.
    pub(crate) fn whole_there(&self, key: &GangKey) -> bool {
        self.whole_by(key, StageCounts::there)
    }

    /// True if it would meet the minimum with `more` members on nodes, `of_task` of each task.
    pub(crate) fn whole_with(
        &self,
        key: &GangKey,
        more: usize,
        of_task: impl Fn(&str) -> usize,
    ) -> bool {
        let mut tasks = self.spec.iter().flat_map(|spec| &spec.min_task_member);
        self.total.there() + more >= self.minimum(key)
            && tasks.all(|(task, min)| self.task(task).there() + of_task(task) >= *min)
    }

    fn whole_by(&self, key: &GangKey, count: fn(&StageCounts) -> usize) -> bool {
        let mut tasks = self.spec.iter().flat_map(|spec| &spec.min_task_member);
        count(&self.total) >= self.minimum(key)
            && tasks.all(|(task, min)| count(&self.task(task)) >= *min)
    }

    /// True if all members have ended and no others come. Stays true after ended members are
    /// deleted.
    pub(crate) fn completed(&self, key: &GangKey) -> bool {
        let ended = self.total.succeeded + self.total.failed;
        let shown_completed = self
            .shown
            .as_ref()
            .is_some_and(|shown| shown.phase() == PodGroupPhase::Completed);
        self.total.pending == 0
            && self.total.pipelined + self.total.occupying() == 0
            && (shown_completed || (ended > 0 && ended >= self.minimum(key)))
    }

    /// True if so many members have ended that the running ones cannot meet the minimum: the gang's
    /// controller decides.
    pub(crate) fn total_ended(&self, key: &GangKey) -> bool {
        let ended = self.total.succeeded + self.total.failed;
        self.total.succeeded > 0 && ended + self.total.occupying() >= self.minimum(key)
    }

    /// True if the scheduler may still do something for it.
    pub(crate) fn waits(&self, key: &GangKey) -> bool {
        self.total.pending > 0 || (self.spec.is_some() && !self.completed(key) && !self.whole(key))
    }

    /// True if neither its PodGroup nor a member is known.
    pub(crate) fn forgotten(&self) -> bool {
        self.spec.is_none() && self.members.is_empty()
    }

    /// What the next turn places: the members missing from the minimum, or one beyond it. Exact if
    /// members are identical.
    pub(crate) fn need(&self, key: &GangKey) -> Room {
        let lacking = self.minimum(key).saturating_sub(self.total.have()).max(1);
        let pending = self.total.pending.max(1);
        let mut need = self.waiting.clone();
        if lacking < pending {
            let (lacking, pending) = (lacking as i64, pending as i64);
            for (ix, amount) in self.waiting.iter() {
                let part = i128::from(amount) * i128::from(lacking);
                let part = (part + i128::from(pending) - 1) / i128::from(pending);
                need.set(ix, part as i64);
            }
        }
        need
    }

    pub(crate) fn count(&mut self, key: &PodKey, task: &Arc<str>, stage: PodStage, up: bool) {
        self.total.change(stage, up);
        let counts = self.tasks.or_default(task);
        counts.change(stage, up);
        if *counts == StageCounts::default() {
            self.tasks.remove(task);
        }
        if stage == PodStage::Pending {
            if up {
                self.pending.insert(key.ranked());
            } else {
                self.pending.remove(&key.ranked());
            }
        }
    }

    /// Counts a waiting member of a class up or down.
    pub(crate) fn count_kind(&mut self, class: ClassIx, up: bool) {
        self.kinds.count(&class, up);
    }

    /// The class of all its waiting members, if they are identical in all that placement depends
    /// on.
    pub(crate) fn only_kind(&self) -> Option<ClassIx> {
        let plain = self.spec.as_ref().is_none_or(|spec| {
            let shape = &spec.shape;
            shape.is_plain() && shape.problem.is_none() && spec.min_task_member.is_empty()
        });
        let (class, _) = self.kinds.iter().next()?;
        let alike = plain && self.kinds.len() == 1 && self.hinted == 0 && self.ranked == 0;
        alike.then_some(*class)
    }

    pub(crate) fn count_node(&mut self, at: NodeIx, up: bool) {
        self.nodes.count(&at, up);
    }

    pub(crate) fn count_priority(&mut self, priority: Option<i32>, up: bool) {
        let Some(priority) = priority else { return };
        self.priorities.count(&priority, up);
    }

    pub(crate) fn count_start(&mut self, started: Option<Timestamp>, up: bool) {
        let Some(started) = started else { return };
        self.starts.count(&started, up);
    }

    /// Reads a PodGroup's status when it is first seen. Returns true if the status says that
    /// capacity was reserved for the gang.
    pub(crate) fn recall(&mut self, group: &PodGroup, last: &mut LastConditions) -> bool {
        let Some(status) = group.status.as_ref().filter(|_| self.shown.is_none()) else {
            return false;
        };
        let phase = status.phase.unwrap_or_default();
        self.admitted |= phase != PodGroupPhase::Pending;
        self.shown.insert(EmittedStatus::read(status, last)).led()
    }
}
