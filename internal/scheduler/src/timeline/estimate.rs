//! Estimated starts of waiting gangs.
//!
//! Method: the head starts at the shadow time of the expected ends. The gangs behind it, and the
//! first gangs of each queue that a limit blocks, are played through in the order of their turns on
//! a profile of free GPUs (or cores) of the whole cluster, up to `PLAYED_MAX`. A gang further
//! behind gets the time at which the profile has room for a gang of its size. Module `calibration`
//! gives each answer its range.
//!
//! Cost: a pass over the profile's steps for each gang that is played through. An answer is reused
//! for `FRESH_SECONDS`, or longer where the wait is long.
//!
//! Example: 2 GPUs are free, and running gangs are expected to give back 4 GPUs at 10:00 and 4 at
//! 11:00. Three gangs of 6 GPUs wait that run for an hour each: the first is estimated to start at
//! 10:00, the second at 11:00, the third at 12:00.
//!
//! Tests: `tests/timeline.rs`, and
//! `no_estimate_is_earlier_than_running_gangs_can_make_room` in
//! `tests/timeline_properties.rs`.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use resources::report::Estimate;

use super::calibration::{Calibration, Chance, digits};
use super::limits::{LimitScope, first_with};
use super::profile::FreeProfile;
use super::shadow::Ends;
use crate::gang::{Gang, GangKey};
use crate::resource::{CPU, GPU, GPU_UNIT, Ix};
use crate::state::Scheduler;

/// How many gangs are played through one by one.
const PLAYED_MAX: usize = 48;
/// How many gangs of each queue's line are played through because a limit blocks them.
const LIMITED_MAX: usize = 4;
/// Estimates are computed again after this time, or after a part of the shortest estimated wait.
const FRESH_SECONDS: i64 = 60;
/// The wait is divided by this.
const FRESH_PART: i64 = 16;

/// One core, as CPU is counted.
const CORE: i64 = 1000;

/// How an estimate was found, from the most reliable method on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EstimateMethod {
    Head,
    Played,
    Size,
}

/// The estimates that were computed last.
#[derive(Clone, Debug, Default)]
pub(super) struct Estimates {
    /// The time of the present plan.
    now: i64,
    fresh_until: i64,
    head: Option<GangKey>,
    first: BTreeMap<GangKey, i64>,
    /// From when on there is room for how much, after all gangs that were played through: GPUs, and
    /// cores for gangs that request no GPU.
    gpus: Vec<(i64, i64)>,
    cpus: Vec<(i64, i64)>,
    /// For each blocking limit: the latest estimated start of the gangs that were played through.
    limited: BTreeMap<LimitScope, i64>,
    pub(super) calibration: Calibration,
}

impl Estimates {
    fn of(&self, key: &GangKey, (ix, amount): (Ix, i64)) -> Option<(i64, EstimateMethod)> {
        if let Some(at) = self.first.get(key) {
            let head = self.head.as_ref() == Some(key);
            return Some((
                *at,
                if head {
                    EstimateMethod::Head
                } else {
                    EstimateMethod::Played
                },
            ));
        }
        let by_size = if ix == GPU { &self.gpus } else { &self.cpus };
        let at = by_size.partition_point(|(most, _)| *most < amount);
        by_size.get(at).map(|(_, at)| (*at, EstimateMethod::Size))
    }

    /// Records that a gang is gone.
    pub(super) fn gone(&mut self, key: &GangKey) {
        self.calibration.gone(key);
        self.first.remove(key);
    }
}

impl Scheduler {
    /// Estimates when the waiting gangs start, given in the order of their turns, unless the last
    /// estimates are still fresh.
    pub(crate) fn estimate_starts(&mut self, waiting: &[GangKey], time: Timestamp) {
        let head = self.timeline.head.as_ref().map(|head| head.key.clone());
        let now = time.as_second();
        self.timeline.estimates.now = now;
        let known = &self.timeline.estimates;
        if waiting.is_empty() || (now < known.fresh_until && head == known.head) {
            return;
        }
        let (mut gpus, mut cpus) = self.profiles(now);
        let mut first = BTreeMap::new();
        let mut limited: BTreeMap<LimitScope, i64> = BTreeMap::new();
        // What each limit gives back at which time, and what the gangs that were played through
        // take of it.
        let mut limits: BTreeMap<LimitScope, (Vec<(i64, i64)>, i64)> = BTreeMap::new();
        let ask = self.timeline.head.as_ref().map(|head| head.ask.clone());
        let expected = ask.and_then(|ask| Some(self.compute_shadow(&ask, time, Ends::Likely)?.at));
        let others = waiting.iter().filter(|key| Some(*key) != head.as_ref());
        let foremost = head.iter().chain(others).take(PLAYED_MAX).cloned();
        let mut order: Vec<GangKey> = foremost.collect();
        order.extend(self.first_limited(&order));
        for key in &order {
            let Some(gang) = self.gangs.get(key) else {
                continue;
            };
            let Some((ix, need)) = self.main_need(key, gang) else {
                continue;
            };
            if gang.waits_for_a_change() {
                continue;
            }
            let seconds = self.timeline.likely(&self.facts_of(gang));
            let reserved = expected.filter(|_| head.as_ref() == Some(key));
            let (from, scope) = match (reserved, self.limit_of(key, gang)) {
                (Some(at), _) => (at, None),
                (None, None) => (now, None),
                (None, Some((scope, lacks))) => {
                    let new = || (self.giving_back(scope, Ends::Likely), 0);
                    let (given, drawn) = limits.entry(scope).or_insert_with(new);
                    // No estimate where no ends of other gangs give it what it needs.
                    let Some((from, _)) = first_with(given, lacks.saturating_add(*drawn)) else {
                        continue;
                    };
                    *drawn = drawn.saturating_add(gang.need(key).get(scope.ix));
                    (from.max(now), Some(scope))
                }
            };
            let profile = if ix == GPU { &mut gpus } else { &mut cpus };
            let Some(at) = reserved.or_else(|| profile.first(need, seconds, from)) else {
                continue;
            };
            profile.take(at, need, seconds);
            if let Some(scope) = scope {
                if let Some((given, _)) = limits.get_mut(&scope) {
                    let back = (at.saturating_add(seconds), gang.need(key).get(scope.ix));
                    given.insert(given.partition_point(|other| *other < back), back);
                }
                let latest = limited.entry(scope).or_insert(at);
                *latest = at.max(*latest);
            }
            first.insert(key.clone(), at);
        }
        let by_size = |profile: &FreeProfile| profile.most_by_start(super::UNKNOWN_SECONDS);
        let (gpus, cpus) = (by_size(&gpus), by_size(&cpus));
        let soonest = first.values().copied().min().unwrap_or(now);
        let fresh = ((soonest - now) / FRESH_PART).max(FRESH_SECONDS);
        let estimates = &mut self.timeline.estimates;
        estimates.fresh_until = now.saturating_add(fresh);
        estimates.head = head;
        estimates.gpus = gpus;
        estimates.cpus = cpus;
        estimates.limited = limited;
        let old = std::mem::replace(&mut estimates.first, first);
        let new: Vec<GangKey> = estimates.first.keys().cloned().collect();
        for key in old.keys().chain(&new) {
            self.forget_report(key);
        }
    }

    /// The first gangs of each queue's line that a limit blocks, without those in `excluded`.
    fn first_limited(&self, excluded: &[GangKey]) -> Vec<GangKey> {
        let excluded: BTreeSet<&GangKey> = excluded.iter().collect();
        let lines = self.queues.iter().map(|(_, _, queue)| &queue.line);
        let firsts = lines.flat_map(|line| line.iter().take(LIMITED_MAX));
        let limited = firsts.map(|place| &place.gang).filter(|key| {
            let gang = self.gangs.get(*key);
            let blocked_answer = gang.and_then(|gang| gang.blocked_answer.as_ref());
            blocked_answer.is_some_and(|blocked_answer| blocked_answer.over_quota())
        });
        let others = limited.filter(|key| !excluded.contains(*key));
        others.cloned().collect()
    }

    /// The profiles of free GPUs and of free cores.
    fn profiles(&self, now: i64) -> (FreeProfile, FreeProfile) {
        let mut gpus = FreeProfile::new(now, self.idle(GPU).max(0));
        let mut cpus = FreeProfile::new(now, self.idle(CPU).max(0));
        for (end, run) in self.timeline.in_order(Ends::Likely) {
            gpus.give_back(end, run.gpus);
            cpus.give_back(end, run.cpus);
        }
        (gpus, cpus)
    }

    /// The main resource that a gang needs to start: GPUs, or else cores.
    pub(super) fn main_need(&self, key: &GangKey, gang: &Gang) -> Option<(Ix, i64)> {
        let need = gang.need(key);
        [GPU, CPU]
            .into_iter()
            .map(|ix| (ix, need.get(ix)))
            .find(|(_, amount)| *amount > 0)
    }

    /// When a waiting gang is estimated to start, for its report: unknown where no ends of other
    /// gangs let it. `ahead` gangs are before it in its queue.
    pub(crate) fn estimate_of(&mut self, key: &GangKey, ahead: usize) -> Option<Estimate> {
        let gang = self.gangs.get(key)?;
        if gang.waits_for_a_change() {
            return None;
        }
        let need = self.main_need(key, gang)?;
        let estimates = &self.timeline.estimates;
        let (mut likely, way) = estimates.of(key, need)?;
        if way == EstimateMethod::Size
            && gang
                .blocked_answer
                .as_ref()
                .is_some_and(|blocked_answer| blocked_answer.over_quota())
            && let Some((scope, _)) = self.limit_of(key, gang)
        {
            // Not before the gangs that wait for the same limit.
            likely = likely.max(*estimates.limited.get(&scope)?);
        }
        let now = estimates.now;
        let likely = likely.max(now);
        let chance = Chance {
            way: way as u8,
            size: digits(need.1 / if need.0 == GPU { GPU_UNIT } else { CORE }),
            ahead: digits(i64::try_from(ahead).unwrap_or(i64::MAX)),
        };
        let calibration = &mut self.timeline.estimates.calibration;
        calibration.notify(key, now, likely, chance);
        let (low, high) = calibration.range(likely - now, chance);
        let time = |second: i64| Timestamp::from_second(second).ok();
        Some(Estimate {
            earliest: time(now.saturating_add(low))?,
            likely: time(likely)?,
            latest: time(now.saturating_add(high))?,
        })
    }
}
