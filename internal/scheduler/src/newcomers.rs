//! A plan's short way. Where everybody had an answer in the last plan and nothing happened since that
//! could change one, only those are asked who came meanwhile: a plan then costs what is new, and not
//! what waits. The answers are those that asking everybody would give; where that is not certain,
//! or somebody is placed, everybody is asked.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::gang::GangKey;
use crate::line::LineKey;
use crate::place::Attempt;
use crate::plan::{Plan, Round};
use crate::queue::{Policy, QueueIx};
use crate::state::Scheduler;

/// How many may have come for them to be asked by themselves.
const NEWCOMERS_MAX: usize = 64;
/// How many of those who wait are remembered in the order of their turns: as many as are looked at
/// one by one, and some who may go meanwhile.
const FOREMOST_MAX: usize = 128;

/// What stood when everybody had an answer.
#[derive(Clone, Debug)]
pub(crate) struct Rest {
    stands: Stands,
    /// When somebody becomes first in line by waiting, if nobody is.
    ripe: Option<Timestamp>,
    /// When some answer may be another by time alone.
    wake: Option<Timestamp>,
    /// The first of those who wait, in the order of their turns.
    foremost: Vec<GangKey>,
}

/// What answers depend on: while it is the same, they are.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stands {
    clock: u64,
    eased: u64,
    version: u64,
    head: Option<GangKey>,
}

impl Scheduler {
    fn stands(&self) -> Stands {
        Stands {
            clock: self.clock,
            eased: self.eased,
            version: self.version,
            head: self.head().cloned(),
        }
    }

    /// Notes that everybody has an answer: nobody was placed after any of them was given.
    pub(crate) fn come_to_rest(&mut self, now: Timestamp, round: &Round) {
        let foremost = round.waiting.iter().take(FOREMOST_MAX).cloned();
        self.rest = Some(Rest {
            stands: self.stands(),
            ripe: self.next_ripe(now),
            wake: self.wake,
            foremost: foremost.collect(),
        });
    }

    /// Asks those who came since the last plan, where nobody else's answer can be another. False if
    /// everybody is to be asked.
    pub(crate) fn ask_newcomers(
        &mut self,
        now: Timestamp,
        plan: &mut Plan,
        round: &mut Round,
    ) -> bool {
        let Some(mut rest) = self.rest.take() else {
            return false;
        };
        let mut times = [rest.ripe, rest.wake].into_iter().flatten();
        if times.any(|time| time <= now) || !plan.binds.is_empty() || self.stands() != rest.stands {
            return false;
        }
        if self.look_ahead(now, plan) || self.stands() != rest.stands {
            return false;
        }
        let Some(newcomers) = self.newcomers() else {
            return false;
        };
        self.awake.clear();
        for (queue, places) in &newcomers {
            for place in places {
                // Of several queues it would matter whose turn it is.
                let alone = newcomers.len() == 1;
                if !self.ask_newcomer(*queue, place, alone, now, plan, round) {
                    return false;
                }
            }
        }
        if self.evict_for(round, now, plan) {
            self.won = Some(self.age);
            return false;
        }
        self.wake = [self.wake, rest.wake].into_iter().flatten().min();
        rest.foremost
            .retain(|key| self.gangs.get(key).is_some_and(|gang| gang.line.is_some()));
        for key in &round.waiting {
            if rest.foremost.len() < FOREMOST_MAX && !rest.foremost.contains(key) {
                rest.foremost.push(key.clone());
            }
        }
        rest.wake = self.wake;
        rest.ripe = self.head().map_or(rest.ripe, |_| None);
        rest.stands = self.stands();
        round.waiting.clone_from(&rest.foremost);
        self.rest = Some(rest);
        true
    }

    /// Those without an answer, by queue and in the order of its line. None if they are many, or
    /// their queue's order is not that of its line.
    fn newcomers(&self) -> Option<BTreeMap<QueueIx, BTreeSet<LineKey>>> {
        let mut found: BTreeMap<QueueIx, BTreeSet<LineKey>> = BTreeMap::new();
        let mut count = 0;
        for key in self.stirred.in_any_order().chain(&self.awake) {
            let Some(gang) = self.gangs.get(key) else {
                continue;
            };
            let (Some(place), Some(payer)) = (&gang.line, gang.payer) else {
                continue;
            };
            count += usize::from(found.entry(payer.queue).or_default().insert(place.clone()));
            if count > NEWCOMERS_MAX {
                return None;
            }
        }
        let by_user = |at: &QueueIx| {
            let policy = self.queues.rules(*at).map(|rules| rules.policy);
            matches!(policy, Some(Policy::Fair | Policy::RoundRobin))
        };
        let mut queues = found.keys().chain(&self.said.outdated);
        (!queues.any(by_user)).then_some(found)
    }

    /// Asks one of them. False if it was placed, or could have been in its turn.
    fn ask_newcomer(
        &mut self,
        queue: QueueIx,
        place: &LineKey,
        alone: bool,
        now: Timestamp,
        plan: &mut Plan,
        round: &mut Round,
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
            Attempt::Placed(placed, _) if !alone || !self.config.actions.allocate => {
                self.withdraw(key, &placed);
                self.drop_shadow();
                return false;
            }
            Attempt::Placed(mut placed, _) => {
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

    /// Counts one that started past those before it in its line.
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
