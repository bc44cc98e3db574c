//! The incremental plan: if every waiting gang had an answer in the last plan, and nothing happened
//! since that could change one, only new or changed gangs are tried.
//!
//! Method: the change counters of the last complete plan are compared; if they are equal, the new
//! gangs are tried in queue order. If one of them is placed, or an answer could depend on others'
//! turns, the scheduler tries all gangs instead. The answers are those that trying all gangs would
//! give.
//!
//! Cost: the new gangs, not the waiting ones. Example: 100,000 gangs wait and one is created: one
//! attempt.
//!
//! Tests: `tests/incremental_plans.rs` compares with a scheduler that tries all gangs.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::gang::GangKey;
use crate::place::Attempt;
use crate::plan::{Plan, PlanRound};
use crate::queue::{GangOrder, QueueIx};
use crate::queue_order::LineKey;
use crate::state::Scheduler;

/// The most new gangs that are tried without the others.
const NEW_GANGS_MAX: usize = 64;
/// The number of waiting gangs remembered in turn order: as many as are examined one by one, and
/// some that may leave in the meantime.
const FOREMOST_MAX: usize = 128;

/// The state after a plan in which every waiting gang had an answer.
#[derive(Clone, Debug)]
pub(crate) struct SettledState {
    counters: ChangeCounters,
    /// The time at which a gang's waiting entitles it to a reservation, if none has one.
    ripe: Option<Timestamp>,
    /// The time at which an answer may change without an event.
    requeue_at: Option<Timestamp>,
    /// The first waiting gangs, in turn order.
    foremost: Vec<GangKey>,
}

/// The counters that answers depend on: while they are equal, the answers are.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ChangeCounters {
    clock: u64,
    releases: u64,
    version: u64,
    head: Option<GangKey>,
}

impl Scheduler {
    fn counters(&self) -> ChangeCounters {
        ChangeCounters {
            clock: self.clock,
            releases: self.releases,
            version: self.version,
            head: self.head().cloned(),
        }
    }

    /// Records that every waiting gang has an answer, and no gang was placed after any of them was
    /// given.
    pub(crate) fn record_settled(&mut self, now: Timestamp, round: &PlanRound) {
        let foremost = round.waiting.iter().take(FOREMOST_MAX).cloned();
        self.rest = Some(SettledState {
            counters: self.counters(),
            ripe: self.next_head_candidate_at(now),
            requeue_at: self.requeue_at,
            foremost: foremost.collect(),
        });
    }

    /// Tries the gangs that arrived or changed since the last plan, if no other gang's answer can
    /// have changed. Returns false if all gangs must be tried.
    pub(crate) fn try_new_gangs(
        &mut self,
        now: Timestamp,
        plan: &mut Plan,
        round: &mut PlanRound,
    ) -> bool {
        let Some(mut rest) = self.rest.take() else {
            return false;
        };
        let mut times = [rest.ripe, rest.requeue_at].into_iter().flatten();
        if times.any(|time| time <= now)
            || !plan.binds.is_empty()
            || self.counters() != rest.counters
        {
            return false;
        }
        if self.start_head(now, plan) || self.counters() != rest.counters {
            return false;
        }
        let Some(new_gangs) = self.new_gangs() else {
            return false;
        };
        self.unanswered.clear();
        for (queue, places) in &new_gangs {
            for place in places {
                // With new gangs in several queues the order of turns would matter.
                let alone = new_gangs.len() == 1;
                if !self.try_new_gang(*queue, place, alone, now, plan, round) {
                    return false;
                }
            }
        }
        if self.find_victims(round, now, plan) {
            self.last_eviction_age = Some(self.age);
            return false;
        }
        self.requeue_at = [self.requeue_at, rest.requeue_at]
            .into_iter()
            .flatten()
            .min();
        rest.foremost
            .retain(|key| self.gangs.get(key).is_some_and(|gang| gang.line.is_some()));
        for key in &round.waiting {
            if rest.foremost.len() < FOREMOST_MAX && !rest.foremost.contains(key) {
                rest.foremost.push(key.clone());
            }
        }
        rest.requeue_at = self.requeue_at;
        rest.ripe = self.head().map_or(rest.ripe, |_| None);
        rest.counters = self.counters();
        round.waiting.clone_from(&rest.foremost);
        self.rest = Some(rest);
        true
    }

    /// The gangs without an answer, by queue and in queue order. `None` if there are too many, or
    /// if a queue's policy orders by user.
    fn new_gangs(&self) -> Option<BTreeMap<QueueIx, BTreeSet<LineKey>>> {
        let mut found: BTreeMap<QueueIx, BTreeSet<LineKey>> = BTreeMap::new();
        let mut count = 0;
        for key in self.changed_gangs.in_any_order().chain(&self.unanswered) {
            let Some(gang) = self.gangs.get(key) else {
                continue;
            };
            let (Some(place), Some(payer)) = (&gang.line, gang.payer) else {
                continue;
            };
            count += usize::from(found.entry(payer.queue).or_default().insert(place.clone()));
            if count > NEW_GANGS_MAX {
                return None;
            }
        }
        let by_user = |at: &QueueIx| {
            let policy = self.queues.rules(*at).map(|rules| rules.policy);
            matches!(policy, Some(GangOrder::Fair | GangOrder::RoundRobin))
        };
        let mut queues = found.keys().chain(&self.report_cache.outdated);
        (!queues.any(by_user)).then_some(found)
    }

    /// Tries one of them. Returns false if it was placed, or could have been in its turn.
    fn try_new_gang(
        &mut self,
        queue: QueueIx,
        place: &LineKey,
        alone: bool,
        now: Timestamp,
        plan: &mut Plan,
        round: &mut PlanRound,
    ) -> bool {
        let key = &place.gang;
        let gang = self.gangs.get(key);
        let was_whole = gang.is_some_and(|gang| gang.whole(key));
        match self.attempt_turn(key, now, usize::from(was_whole)) {
            Attempt::Nothing => {}
            Attempt::Blocked(obstacle) => {
                round.waiting.push(key.clone());
                round.obstacles.insert(key.clone(), obstacle);
            }
            Attempt::Placed(placed) if !alone || !self.config.actions.allocate => {
                self.withdraw(key, placed);
                self.outdate_shadow();
                return false;
            }
            Attempt::Placed(placed) => {
                let (mut placed, _) = self.accept(placed);
                placed.retain(|placement| self.is_bound(&placement.pod));
                self.write_binds(key, placed, &mut plan.binds);
                self.serve(key);
                let whole = self.gangs.get(key).is_some_and(|gang| gang.whole(key));
                if whole && !was_whole {
                    self.overtake(queue, place);
                }
                return false;
            }
        }
        true
    }

    /// Counts a gang as having started before the gangs ahead of it in the queue.
    fn overtake(&mut self, queue: QueueIx, place: &LineKey) {
        let before = self.queues.at(queue).line.range(..place);
        let passed: Vec<GangKey> = before.map(|place| place.gang.clone()).collect();
        for key in passed {
            if let Some(gang) = self.gangs.get_mut(&key).filter(|gang| !gang.whole(&key)) {
                gang.overtaken += 1;
            }
        }
    }
}
