//! Who could be evicted, in the order in which they would be: lower priority first, members
//! beyond a gang's minimum before any gang is lost, the last to start before those who ran long.
//! The order is kept per queue as gangs come and go, so that nobody has to be looked for.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::txn::Standing;
use crate::gang::{Gang, GangKey};
use crate::plan::EvictionReason;
use crate::pod::PodKey;
use crate::state::Scheduler;

/// A running gang's place among those that could be evicted from its queue. Lesser goes first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct VictimKey {
    pub(crate) priority: i32,
    started: Reverse<Timestamp>,
    pub(crate) created: Reverse<Timestamp>,
    pub(crate) gang: Reverse<GangKey>,
}

/// A queue's gangs that are on nodes, in the order in which they would be evicted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Victims {
    pub(crate) all: BTreeSet<VictimKey>,
    /// Those of them that have more members than they need, wherever these stand: nobody else could
    /// do without one. Most gangs could not.
    beyond: BTreeSet<VictimKey>,
}

/// Where a gang is among its queue's.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct VictimPlace {
    queue: String,
    key: VictimKey,
    beyond: bool,
}

/// Which of a queue's gangs are candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// All.
    None,
    /// Those of a lower priority.
    Below(i32),
    /// Those, and of the same priority those made later.
    Younger(i32, Timestamp),
    /// Nobody.
    Nobody,
}

impl Limit {
    /// Is everybody from here on too high?
    fn ends(self, next: &VictimKey) -> bool {
        match self {
            Limit::None => false,
            Limit::Below(priority) => next.priority >= priority,
            Limit::Younger(priority, _) => next.priority > priority,
            Limit::Nobody => true,
        }
    }

    fn leaves_out(self, next: &VictimKey) -> bool {
        match self {
            Limit::Younger(priority, created) => {
                next.priority == priority && next.created.0 <= created
            }
            _ => false,
        }
    }
}

/// When a candidate's turn comes, beside those of other queues.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn {
    priority: i32,
    losing: bool,
    key: VictimKey,
}

impl Turn {
    pub(crate) fn priority(&self) -> i32 {
        self.priority
    }
}

/// What is taken from one gang at once: a member beyond its minimum, or all that is left.
#[derive(Clone, Debug)]
pub(crate) struct Bite {
    pub(crate) gang: GangKey,
    pub(crate) pods: Vec<PodKey>,
    /// Does the gang stay whole?
    pub(crate) shrinks: bool,
    /// Where the pods stood, once they are taken.
    pub(crate) before: Vec<Standing>,
    /// On what grounds.
    pub(crate) why: EvictionReason,
}

/// Why a gang may not be touched now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spared {
    /// Its minimum runtime is not over until then.
    Until(Timestamp),
    /// It got in by an eviction itself, or was bound a moment ago.
    New,
}

/// Goes through one queue's candidates. Valid while nobody else changes which gangs there are.
#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    queue: String,
    limit: Limit,
    /// Do they go for another queue's?
    for_others: bool,
    at: Option<VictimKey>,
    /// The last gang of a lower priority than those gone through now.
    from: Option<VictimKey>,
    priority: Option<i32>,
    losing: bool,
    ready: Vec<Bite>,
    /// The earliest time at which somebody spared may be touched.
    pub(crate) spared_until: Option<Timestamp>,
}

impl Cursor {
    pub(crate) fn new(queue: &str, limit: Limit) -> Cursor {
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

    /// Through the candidates of a queue to lose what another takes.
    pub(crate) fn for_others(queue: &str, limit: Limit) -> Cursor {
        Cursor {
            for_others: true,
            ..Cursor::new(queue, limit)
        }
    }

    pub(super) fn queue(&self) -> &str {
        &self.queue
    }

    /// Begins again.
    pub(crate) fn rewind(&mut self) {
        *self = Cursor {
            for_others: self.for_others,
            ..Cursor::new(&self.queue, self.limit)
        };
    }

    /// All gangs that it could come to.
    pub(super) fn gangs<'a>(&'a self, state: &'a Scheduler) -> impl Iterator<Item = &'a GangKey> {
        let queue = state.victims.get(&self.queue);
        let gangs = queue.into_iter().flat_map(|queue| &queue.all);
        let gangs = gangs.take_while(|next| !self.limit.ends(next));
        gangs
            .filter(|next| !self.limit.leaves_out(next))
            .map(|next| &next.gang.0)
    }

    /// When the next one's turn is.
    pub(crate) fn peek(&mut self, state: &Scheduler, now: Timestamp) -> Option<Turn> {
        let bite = self.next(state, now)?;
        self.ready.push(bite);
        let key = self.at.clone()?;
        Some(Turn {
            priority: key.priority,
            losing: self.losing,
            key,
        })
    }

    /// Leaves out all before the next that is wanted; is there any?
    pub(crate) fn skip_to(
        &mut self,
        state: &Scheduler,
        now: Timestamp,
        wanted: impl Fn(&Bite) -> bool,
    ) -> bool {
        while let Some(bite) = self.next(state, now) {
            if wanted(&bite) {
                self.ready.push(bite);
                return true;
            }
        }
        false
    }

    /// The next to go, if the one before is gone.
    pub(crate) fn next(&mut self, state: &Scheduler, now: Timestamp) -> Option<Bite> {
        loop {
            if let Some(bite) = self.ready.pop() {
                return Some(bite);
            }
            let gangs = state.victims.get(&self.queue)?;
            // Of a priority first those that may have members beyond their minimum, then all.
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
                    self.chew(state, &next.gang.0.clone(), now);
                }
                // All of this priority were asked to shrink: now they lose their gangs.
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

    fn chew(&mut self, state: &Scheduler, key: &GangKey, now: Timestamp) {
        let Some(gang) = state.gangs.get(key) else {
            return;
        };
        let spared = gang.spared_from_others(now).filter(|_| self.for_others);
        if let Some(then) = spared {
            self.spared_until = Some(self.spared_until.map_or(then, |old| old.min(then)));
        } else if self.losing {
            match state.spared(gang, now) {
                Some(Spared::Until(then)) => {
                    self.spared_until = Some(self.spared_until.map_or(then, |old| old.min(then)));
                }
                Some(Spared::New) => {}
                None => self.ready.extend(state.whole_bite(key, gang)),
            }
        } else if gang.total.have() > gang.minimum(key) && !state.is_new(gang) {
            self.ready = state.surplus(key, gang);
        }
    }
}

impl Scheduler {
    /// Puts a gang where it belongs among those that could be evicted; part of settling it.
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

    /// Where the gang is, or would be, among those that could be evicted.
    pub(crate) fn victim_key(&self, key: &GangKey, gang: &Gang) -> VictimKey {
        let started = gang.starts.keys().next().copied();
        VictimKey {
            priority: self.priority_of(gang),
            started: Reverse(started.unwrap_or(Timestamp::MAX)),
            created: Reverse(self.since(gang).unwrap_or(Timestamp::UNIX_EPOCH)),
            gang: Reverse(key.clone()),
        }
    }

    /// Did the gang get where it is by a plan that nothing from outside has come after?
    fn is_new(&self, gang: &Gang) -> bool {
        gang.won.is_some_and(|won| won.age == self.age) || gang.assumed > 0
    }

    /// Is the gang not to be lost now?
    pub(super) fn spared(&self, gang: &Gang, now: Timestamp) -> Option<Spared> {
        if self.is_new(gang) {
            return Some(Spared::New);
        }
        let least = self.terms_of(gang).min_runtime.unwrap_or(0);
        if least == 0 || gang.total.occupying() == 0 {
            return None;
        }
        // Not seen to run yet: its time has not begun.
        let started = gang.starts.keys().next().copied().unwrap_or(now);
        let over = started
            .checked_add(SignedDuration::from_secs(least))
            .unwrap_or(Timestamp::MAX);
        (now < over).then_some(Spared::Until(over))
    }

    /// Members that the gang does not need, one by one; the last of the list goes first: those
    /// that wait for their place, then those of the highest rank.
    fn surplus(&self, key: &GangKey, gang: &Gang) -> Vec<Bite> {
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
                let meant = pod.stage == crate::pod::Stage::Pipelined;
                let rank = pod.rank().unwrap_or(u64::MAX);
                pod.stage.occupies().then(|| (meant, rank, name.ranked()))
            })
            .collect();
        members.sort_unstable();
        let mut bites = Vec::new();
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
            bites.push(Bite {
                gang: key.clone(),
                pods: vec![name],
                shrinks: true,
                before: Vec::new(),
                why: EvictionReason::Preempted,
            });
        }
        bites.reverse();
        bites
    }

    /// How many members each sub-group could do without: beyond its own minimum, or, of those that
    /// a policy makes of labels, beyond their size.
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

    /// Every member that is on a node, or meant for one.
    pub(crate) fn whole_bite(&self, key: &GangKey, gang: &Gang) -> Option<Bite> {
        let on_node = |name: &&PodKey| {
            let pod = self.pods.get(*name);
            pod.is_some_and(|pod| pod.stage.occupies())
        };
        let pods: Vec<PodKey> = gang.members.iter().filter(on_node).cloned().collect();
        (!pods.is_empty()).then(|| Bite {
            gang: key.clone(),
            pods,
            shrinks: false,
            before: Vec::new(),
            why: EvictionReason::Preempted,
        })
    }
}
