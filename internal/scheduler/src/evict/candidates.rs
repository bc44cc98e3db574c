//! The running gangs that could be evicted, in the order in which the scheduler would evict them:
//! lower priority first; within a priority, members beyond a gang's minimum before any whole gang;
//! then the gangs that started last before those that started earlier. The order is maintained per
//! queue as gangs come and go, so a search does not scan the cluster: an update costs the logarithm
//! of the queue's gangs.
//!
//! Example: gangs `a` (priority 0, four members, minimum 2), `b` (priority 0, started later than
//! `a`) and `c` (priority 5). The order is two surplus members of `a`, then `b`, then the rest of
//! `a`, then `c`.
//!
//! Tests: `tests/evictions.rs` by table, `tests/evictions_properties.rs` by property.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::transaction::PodPlacement;
use crate::gang::{Gang, GangKey};
use crate::plan::EvictionReason;
use crate::pod::PodKey;
use crate::state::Scheduler;

/// A running gang's position among the evictable gangs of its queue. The lesser is evicted first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct VictimKey {
    pub(crate) priority: i32,
    started: Reverse<Timestamp>,
    pub(crate) created: Reverse<Timestamp>,
    pub(crate) gang: Reverse<GangKey>,
}

/// A queue's gangs that are on nodes, in the order of eviction.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueueVictims {
    pub(crate) all: BTreeSet<VictimKey>,
    /// The gangs among them that have more members than their minimum, on nodes or not: only these
    /// can have surplus members, and most gangs have none.
    beyond: BTreeSet<VictimKey>,
}

/// Where a gang is recorded among its queue's evictable gangs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct VictimPlace {
    queue: String,
    key: VictimKey,
    beyond: bool,
}

/// Which of a queue's gangs are candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CandidateScope {
    /// All.
    None,
    /// Gangs below this priority.
    Below(i32),
    /// Gangs below this priority, and gangs of this priority that were created after this time.
    Younger(i32, Timestamp),
    /// No gang.
    NoGang,
}

impl CandidateScope {
    /// Whether every gang from here on ranks too high.
    fn ends(self, next: &VictimKey) -> bool {
        match self {
            CandidateScope::None => false,
            CandidateScope::Below(priority) => next.priority >= priority,
            CandidateScope::Younger(priority, _) => next.priority > priority,
            CandidateScope::NoGang => true,
        }
    }

    fn leaves_out(self, next: &VictimKey) -> bool {
        match self {
            CandidateScope::Younger(priority, created) => {
                next.priority == priority && next.created.0 <= created
            }
            _ => false,
        }
    }
}

/// The position of a candidate among the candidates of several queues.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CandidatePosition {
    priority: i32,
    losing: bool,
    key: VictimKey,
}

impl CandidatePosition {
    pub(crate) fn priority(&self) -> i32 {
        self.priority
    }
}

/// The unit of eviction: one surplus member of a gang, or all that is left of the gang.
#[derive(Clone, Debug)]
pub(crate) struct EvictionUnit {
    pub(crate) gang: GangKey,
    pub(crate) pods: Vec<PodKey>,
    /// Whether the gang keeps its minimum.
    pub(crate) shrinks: bool,
    /// The pods' placements before they were taken; empty until then.
    pub(crate) before: Vec<PodPlacement>,
    /// The reason of the eviction.
    pub(crate) why: EvictionReason,
}

/// Why a gang may not be evicted now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protection {
    /// Its minimum runtime ends at this time.
    Until(Timestamp),
    /// It was placed by evictions within this age, or was just bound.
    New,
}

/// Iterates over one queue's candidates. Valid while the set of gangs changes only by the caller's
/// evictions.
#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    queue: String,
    limit: CandidateScope,
    /// Whether another queue's gang takes them (reclaim).
    for_others: bool,
    at: Option<VictimKey>,
    /// The last gang of a lower priority than the current one.
    from: Option<VictimKey>,
    priority: Option<i32>,
    losing: bool,
    ready: Vec<EvictionUnit>,
    /// The earliest time at which a protected gang may be evicted.
    pub(crate) spared_until: Option<Timestamp>,
}

impl Cursor {
    pub(crate) fn new(queue: &str, limit: CandidateScope) -> Cursor {
        Cursor {
            queue: queue.to_owned(),
            limit,
            for_others: false,
            at: None,
            from: None,
            priority: None,
            losing: false,
            ready: Vec::new(),
            spared_until: None,
        }
    }

    /// Over the candidates of a queue that another queue's gang may reclaim.
    pub(crate) fn for_others(queue: &str, limit: CandidateScope) -> Cursor {
        Cursor {
            for_others: true,
            ..Cursor::new(queue, limit)
        }
    }

    pub(super) fn queue(&self) -> &str {
        &self.queue
    }

    /// Restarts at the first candidate.
    pub(crate) fn rewind(&mut self) {
        *self = Cursor {
            for_others: self.for_others,
            ..Cursor::new(&self.queue, self.limit)
        };
    }

    /// All gangs that the cursor could reach.
    pub(super) fn gangs<'a>(&'a self, state: &'a Scheduler) -> impl Iterator<Item = &'a GangKey> {
        let queue = state.victims.get(&self.queue);
        let gangs = queue.into_iter().flat_map(|queue| &queue.all);
        let gangs = gangs.take_while(|next| !self.limit.ends(next));
        gangs
            .filter(|next| !self.limit.leaves_out(next))
            .map(|next| &next.gang.0)
    }

    /// The position of the next candidate.
    pub(crate) fn peek(&mut self, state: &Scheduler, now: Timestamp) -> Option<CandidatePosition> {
        let unit = self.next(state, now)?;
        self.ready.push(unit);
        let key = self.at.clone()?;
        Some(CandidatePosition {
            priority: key.priority,
            losing: self.losing,
            key,
        })
    }

    /// Skips candidates up to the next wanted one. Returns whether there is one.
    pub(crate) fn skip_to(
        &mut self,
        state: &Scheduler,
        now: Timestamp,
        wanted: impl Fn(&EvictionUnit) -> bool,
    ) -> bool {
        while let Some(unit) = self.next(state, now) {
            if wanted(&unit) {
                self.ready.push(unit);
                return true;
            }
        }
        false
    }

    /// The next candidate, assuming that the one before was taken.
    pub(crate) fn next(&mut self, state: &Scheduler, now: Timestamp) -> Option<EvictionUnit> {
        loop {
            if let Some(unit) = self.ready.pop() {
                return Some(unit);
            }
            let gangs = state.victims.get(&self.queue)?;
            // Within a priority, first the gangs that may have surplus members, then all gangs.
            let shrinking = self.priority.is_some() && !self.losing;
            let some = if shrinking { &gangs.beyond } else { &gangs.all };
            let after = self.at.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
            let next = some
                .range((after, Bound::Unbounded))
                .next()
                .filter(|next| !self.limit.ends(next));
            match next {
                Some(next) if self.priority == Some(next.priority) => {
                    self.at = Some(next.clone());
                    if self.limit.leaves_out(next) {
                        continue;
                    }
                    self.queue_candidates(state, &next.gang.0.clone(), now);
                }
                // All gangs of this priority gave up their surplus members: now they are evicted
                // whole.
                _ if shrinking => {
                    self.losing = true;
                    self.at.clone_from(&self.from);
                }
                Some(next) => {
                    self.priority = Some(next.priority);
                    self.losing = false;
                    self.from.clone_from(&self.at);
                }
                None => return None,
            }
        }
    }

    fn queue_candidates(&mut self, state: &Scheduler, key: &GangKey, now: Timestamp) {
        let Some(gang) = state.gangs.get(key) else {
            return;
        };
        let spared = gang.reclaim_exempt_until(now).filter(|_| self.for_others);
        if let Some(then) = spared {
            self.spared_until = Some(self.spared_until.map_or(then, |old| old.min(then)));
        } else if self.losing {
            match state.protection(gang, now) {
                Some(Protection::Until(then)) => {
                    self.spared_until = Some(self.spared_until.map_or(then, |old| old.min(then)));
                }
                Some(Protection::New) => {}
                None => self.ready.extend(state.whole_gang_unit(key, gang)),
            }
        } else if gang.total.have() > gang.minimum(key) && !state.is_new(gang) {
            self.ready = state.surplus(key, gang);
        }
    }
}

impl Scheduler {
    /// Updates a gang's position among the evictable gangs; part of settling the gang.
    pub(crate) fn note_victim(&mut self, key: &GangKey) {
        let Some(gang) = self.gangs.get(key) else {
            return;
        };
        if gang.total.pipelined > 0 {
            self.nominated.insert(key.clone());
        } else {
            self.nominated.remove(key);
        }
        let there = gang.total.pipelined + gang.total.occupying() > 0;
        let ours = there && gang.allocated.iter().any(|(_, held)| held > 0);
        let fixed = gang.payer.is_none_or(|payer| payer.fixed);
        let place = (ours && !fixed && !gang.forgotten()).then(|| VictimPlace {
            queue: gang.queue.clone(),
            key: self.victim_key(key, gang),
            beyond: gang.members.len() > gang.minimum(key),
        });
        if gang.victim == place {
            return;
        }
        let Some(gang) = self.gangs.get_mut(key) else {
            return;
        };
        if let Some(old) = std::mem::replace(&mut gang.victim, place.clone())
            && let Some(gangs) = self.victims.get_mut(&old.queue)
        {
            gangs.all.remove(&old.key);
            if old.beyond {
                gangs.beyond.remove(&old.key);
            }
            if gangs.all.is_empty() {
                self.victims.remove(&old.queue);
            }
        }
        if let Some(VictimPlace { queue, key, beyond }) = place {
            let gangs = self.victims.entry(queue).or_default();
            if beyond {
                gangs.beyond.insert(key.clone());
            }
            gangs.all.insert(key);
        }
    }

    /// The position that the gang has, or would have, among the evictable gangs.
    pub(crate) fn victim_key(&self, key: &GangKey, gang: &Gang) -> VictimKey {
        let started = gang.starts.keys().next().copied();
        VictimKey {
            priority: self.priority_of(gang),
            started: Reverse(started.unwrap_or(Timestamp::MAX)),
            created: Reverse(self.since(gang).unwrap_or(Timestamp::UNIX_EPOCH)),
            gang: Reverse(key.clone()),
        }
    }

    /// Whether the gang was placed by a plan and nothing has changed from outside since.
    fn is_new(&self, gang: &Gang) -> bool {
        gang.eviction_grace
            .is_some_and(|grace| grace.age == self.age)
            || gang.assumed > 0
    }

    /// Whether the gang is protected from eviction now, and why.
    pub(super) fn protection(&self, gang: &Gang, now: Timestamp) -> Option<Protection> {
        if self.is_new(gang) {
            return Some(Protection::New);
        }
        let least = self.terms_of(gang).min_runtime.unwrap_or(0);
        if least == 0 || gang.total.occupying() == 0 {
            return None;
        }
        // No member was seen running yet: the minimum runtime has not begun.
        let started = gang.starts.keys().next().copied().unwrap_or(now);
        let over = started
            .checked_add(SignedDuration::from_secs(least))
            .unwrap_or(Timestamp::MAX);
        (now < over).then_some(Protection::Until(over))
    }

    /// The gang's surplus members, one by one; the last of the list is evicted first: nominated
    /// members first, then the members of the highest rank.
    fn surplus(&self, key: &GangKey, gang: &Gang) -> Vec<EvictionUnit> {
        let mut spare = gang.total.have().saturating_sub(gang.minimum(key));
        if spare == 0 || !gang.whole(key) {
            return Vec::new();
        }
        let tasks = gang.spec.iter().flat_map(|spec| &spec.min_task_member);
        let mut bound: BTreeMap<&Arc<str>, usize> = tasks
            .map(|(task, min)| (task, gang.task(task).have().saturating_sub(*min)))
            .collect();
        let mut parts = self.spare_by_part(gang);
        let mut members: Vec<(bool, u64, (usize, PodKey))> = gang
            .members
            .iter()
            .filter_map(|name| {
                let pod = self.pods.get(name)?;
                let meant = pod.stage == crate::pod::PodStage::Pipelined;
                let rank = pod.rank().unwrap_or(u64::MAX);
                pod.stage.occupies().then(|| (meant, rank, name.ranked()))
            })
            .collect();
        members.sort_unstable();
        let mut units = Vec::new();
        for (_, _, (_, name)) in members.into_iter().rev() {
            if spare == 0 {
                break;
            }
            let Some(pod) = self.pods.get(&name) else {
                continue;
            };
            let part = pod.part.as_ref().and_then(|part| parts.get_mut(part));
            let task = bound.get_mut(&pod.task);
            let bounds = [part, task].into_iter().flatten();
            let mut bounds: Vec<&mut usize> = bounds.collect();
            if bounds.iter().any(|left| **left == 0) {
                continue;
            }
            bounds.iter_mut().for_each(|left| **left -= 1);
            spare -= 1;
            units.push(EvictionUnit {
                gang: key.clone(),
                pods: vec![name],
                shrinks: true,
                before: Vec::new(),
                why: EvictionReason::Preempted,
            });
        }
        units.reverse();
        units
    }

    /// How many members each sub-group has beyond its own minimum, or, for sub-groups that a policy
    /// derives from labels, beyond their size.
    fn spare_by_part<'a>(&self, gang: &'a Gang) -> BTreeMap<&'a Arc<str>, usize> {
        let Some(spec) = &gang.spec else {
            return BTreeMap::new();
        };
        let named = spec.shape.sub_groups.iter().map(|part| {
            let have = gang.part(&part.name).have();
            (&part.name, have.saturating_sub(part.minimum))
        });
        let mut spare: BTreeMap<&Arc<str>, usize> = named.collect();
        for policy in &spec.shape.policies {
            let made = gang.parts.iter().filter(|(name, _)| policy.made(name));
            spare.extend(made.map(|(name, have)| (name, have.have().saturating_sub(policy.size))));
        }
        spare
    }

    /// Every member that is on a node or nominated for one.
    pub(crate) fn whole_gang_unit(&self, key: &GangKey, gang: &Gang) -> Option<EvictionUnit> {
        let on_node = |name: &&PodKey| {
            let pod = self.pods.get(*name);
            pod.is_some_and(|pod| pod.stage.occupies())
        };
        let pods: Vec<PodKey> = gang.members.iter().filter(on_node).cloned().collect();
        (!pods.is_empty()).then(|| EvictionUnit {
            gang: key.clone(),
            pods,
            shrinks: false,
            before: Vec::new(),
            why: EvictionReason::Preempted,
        })
    }
}
