//! When whoever waits may start. The head by its shadow; those behind it by playing the expected
//! ends through, one after the other in the order of their turns, in GPUs (or cores) of the whole
//! cluster; whoever stands further behind by what a gang of its size would get then. How far off
//! such answers were so far says how wide the range is that is given with them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use resources::report::Estimate;

use super::history::Spread;
use crate::gang::{Gang, GangKey};
use crate::queue::Bound;
use crate::resource::{CPU, Demand, GPU, Ix};
use crate::state::Scheduler;

/// How many gangs are played through one by one.
const PLAYED_MAX: usize = 16;
/// Answers are found anew after this long, or after a part of the wait that they speak of.
const FRESH_SECONDS: i64 = 60;
/// That part.
const FRESH_PART: i64 = 16;
/// What is known of answers that were given for so little time is not worth learning.
const LEARN_SECONDS: i64 = 60;
/// The range of an answer while too little is known of earlier ones, in thousandths of the wait.
const FIRST_GUESS: (i64, i64) = (250, 3000);
/// The range leaves out one of ten at either end.
const RANGE: (u64, u64) = (100, 900);
/// Two steps of a profile are at least this part of the time to them apart.
const STEP_PART: i64 = 12;

/// What was found when it was last asked.
#[derive(Clone, Debug, Default)]
pub(super) struct Estimates {
    made: i64,
    fresh_until: i64,
    head: Option<GangKey>,
    first: BTreeMap<GangKey, i64>,
    /// By the binary digits of the amount: GPUs, and cores for those who ask for none.
    gpus: Vec<i64>,
    cpus: Vec<i64>,
    /// What gangs that wait were told first, when, and whether the head was.
    told: BTreeMap<GangKey, (i64, i64, bool)>,
    /// How long they then waited, in thousandths of what they were told: heads, and others.
    spread: [Spread; 2],
}

/// What is free of one resource from now on: from each time until the next.
struct Profile {
    times: Vec<i64>,
    free: Vec<i64>,
}

impl Profile {
    fn new(now: i64, idle: i64, ends: impl Iterator<Item = (i64, i64)>) -> Profile {
        let mut profile = Profile {
            times: vec![now],
            free: vec![idle],
        };
        for (end, amount) in ends.filter(|(_, amount)| *amount > 0) {
            let (last, free) = (profile.times.len() - 1, profile.free.last().copied());
            let gap = (profile.times[last] - now) / STEP_PART;
            if last > 0 && end - profile.times[last] <= gap {
                // Close to the step before: it is moved here, so that nothing is free too early.
                profile.times[last] = end.max(profile.times[last]);
                profile.free[last] += amount;
            } else {
                profile.times.push(end);
                profile.free.push(free.unwrap_or(0) + amount);
            }
        }
        profile
    }

    /// The first step from which so much is free for so long, not before a time.
    fn first(&self, need: i64, seconds: i64, from: i64) -> Option<usize> {
        let mut start = None;
        for (at, free) in self.free.iter().enumerate() {
            if *free < need {
                start = None;
                continue;
            }
            let later = self.times.get(at + 1).is_some_and(|next| *next <= from);
            if start.is_none() && !later {
                start = Some(at);
            }
            let begins = start.map(|start| self.times[start].max(from));
            let ends = begins.map(|begins| begins.saturating_add(seconds));
            if let (Some(start), Some(ends)) = (start, ends)
                && self.times.get(at + 1).is_none_or(|next| *next >= ends)
            {
                return Some(start);
            }
        }
        None
    }

    fn take(&mut self, step: usize, need: i64, seconds: i64) {
        let ends = self.times[step].saturating_add(seconds);
        for at in step..self.times.len() {
            if self.times[at] >= ends {
                break;
            }
            self.free[at] -= need;
        }
    }
}

impl Estimates {
    fn of(&self, key: &GangKey, need: &[(Ix, i64)]) -> Option<i64> {
        if let Some(at) = self.first.get(key) {
            return Some(*at);
        }
        let (ix, amount) = need.first().copied()?;
        let by_size = if ix == GPU { &self.gpus } else { &self.cpus };
        by_size
            .get(digits(amount))
            .copied()
            .filter(|at| *at < i64::MAX)
    }

    /// Notes that a gang starts.
    pub(super) fn started(&mut self, key: &GangKey, now: i64) {
        if let Some((made, at, head)) = self.told.remove(key)
            && at - made >= LEARN_SECONDS
        {
            let part = (now - made).saturating_mul(1000) / (at - made);
            self.spread[usize::from(!head)].learn(part);
        }
    }

    /// Notes that a gang is gone.
    pub(super) fn gone(&mut self, key: &GangKey) {
        self.told.remove(key);
        self.first.remove(key);
    }
}

fn digits(amount: i64) -> usize {
    (i64::BITS - amount.max(0).leading_zeros()) as usize
}

impl Scheduler {
    /// Finds out when those may start that wait, given in the order of their turns, unless what
    /// was found last is good enough still.
    pub(crate) fn foretell(&mut self, waiting: &[GangKey], now: Timestamp) {
        let head = self.timeline.head.as_ref().map(|head| head.key.clone());
        let now_s = now.as_second();
        let known = &self.timeline.estimates;
        if waiting.is_empty() || (now_s < known.fresh_until && head == known.head) {
            return;
        }
        let mut gpus = self.profile(GPU, now_s);
        let mut cpus = self.profile(CPU, now_s);
        let mut first = BTreeMap::new();
        let shadow = self.timeline.shadow.as_ref().map(|shadow| shadow.at);
        let others = waiting.iter().filter(|key| Some(*key) != head.as_ref());
        let order: Vec<&GangKey> = head.iter().chain(others).take(PLAYED_MAX).collect();
        for key in order {
            let Some(gang) = self.gangs.get(key) else {
                continue;
            };
            let Some((ix, need)) = self.main_need(key, gang) else {
                continue;
            };
            let seconds = self.timeline.likely(&self.facts_of(gang));
            let from = match shadow.filter(|_| head.as_ref() == Some(key)) {
                Some(at) => at,
                None => self.quota_from(gang, ix, need, now_s),
            };
            let profile = if ix == GPU { &mut gpus } else { &mut cpus };
            let Some(step) = profile.first(need, seconds, from) else {
                continue;
            };
            profile.take(step, need, seconds);
            let at = profile.times[step].max(from);
            first.insert(
                key.clone(),
                if shadow.is_some() && head.as_ref() == Some(key) {
                    from
                } else {
                    at
                },
            );
        }
        let by_size = |profile: &Profile, all: i64| -> Vec<i64> {
            (0..=digits(all))
                .map(|digits| {
                    let need = if digits == 0 {
                        0
                    } else {
                        1_i64 << (digits - 1)
                    };
                    let step = profile.first(need, super::UNKNOWN_SECONDS, now_s);
                    step.map_or(i64::MAX, |step| profile.times[step])
                })
                .collect()
        };
        let all = |ix| self.total.get(ix).max(0);
        let (gpus, cpus) = (by_size(&gpus, all(GPU)), by_size(&cpus, all(CPU)));
        let soonest = first.values().copied().min().unwrap_or(now_s);
        let fresh = ((soonest - now_s) / FRESH_PART).max(FRESH_SECONDS);
        let estimates = &mut self.timeline.estimates;
        estimates.made = now_s;
        estimates.fresh_until = now_s.saturating_add(fresh);
        estimates.head = head;
        estimates.gpus = gpus;
        estimates.cpus = cpus;
        let old = std::mem::replace(&mut estimates.first, first);
        let new: Vec<GangKey> = estimates.first.keys().cloned().collect();
        for key in old.keys().chain(&new) {
            self.forget_report(key);
        }
    }

    fn profile(&self, ix: Ix, now: i64) -> Profile {
        let runs = self.timeline.by_end();
        let runs = runs.map(|(end, _, run)| (end, if ix == GPU { run.gpus } else { run.cpus }));
        Profile::new(now, self.idle(ix).max(0), runs)
    }

    /// What a gang needs most to start: GPUs, or else cores.
    pub(super) fn main_need(&self, key: &GangKey, gang: &Gang) -> Option<(Ix, i64)> {
        let need = gang.need(key);
        [GPU, CPU]
            .into_iter()
            .map(|ix| (ix, need.get(ix)))
            .find(|(_, amount)| *amount > 0)
    }

    /// From when on the gang's queue and those above may hold what it needs.
    fn quota_from(&self, gang: &Gang, ix: Ix, need: i64, now: i64) -> i64 {
        let Some(payer) = gang.payer else { return now };
        let demand = Demand(vec![(ix, need)]);
        let (times, bound) = self.queues.allows(payer, &demand, |_| i64::MAX);
        let (0, Some(bound)) = (times, bound) else {
            return now;
        };
        let (Bound::Capability { queue, .. }
        | Bound::Borrowing { queue, .. }
        | Bound::Deserved { queue, .. }
        | Bound::User { queue, .. }) = bound
        else {
            return now;
        };
        let mut lacking = need - bound.leaves();
        for (end, key, run) in self.timeline.by_end() {
            let Some(other) = self.gangs.get(key) else {
                continue;
            };
            if other
                .payer
                .is_some_and(|other| self.queues.holds(queue, other.queue))
            {
                lacking -= if ix == GPU { run.gpus } else { run.cpus };
            }
            if lacking <= 0 {
                return end;
            }
        }
        now
    }

    /// When a gang that waits may start, for its report.
    pub(crate) fn estimate_of(&mut self, key: &GangKey) -> Option<Estimate> {
        let gang = self.gangs.get(key)?;
        let need = self.main_need(key, gang)?;
        let estimates = &mut self.timeline.estimates;
        let likely = estimates.of(key, &[need])?;
        let made = estimates.made;
        let head = estimates.head.as_ref() == Some(key);
        let known = estimates.told.entry(key.clone());
        known.or_insert((made, likely, head));
        let wait = (likely - made).max(0);
        let spread = &estimates.spread[usize::from(!head)];
        let (low, high) = spread.range(RANGE).unwrap_or(FIRST_GUESS);
        let after = |part: i64| made.saturating_add(wait.saturating_mul(part) / 1000);
        let time = |second: i64| Timestamp::from_second(second).ok();
        Some(Estimate {
            earliest: time(after(low.min(1000)))?,
            likely: time(likely)?,
            latest: time(after(high.max(1000)).saturating_add(FRESH_SECONDS))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(ends: &[(i64, i64)]) -> Profile {
        Profile::new(0, 2, ends.iter().copied())
    }

    #[test]
    fn a_gang_starts_where_its_need_is_free_for_as_long_as_it_runs() {
        let mut profile = profile(&[(100, 4), (1000, 4)]);
        assert_eq!(profile.first(2, 50, 0), Some(0));
        assert_eq!(profile.first(6, 50, 0), Some(1));
        assert_eq!(profile.first(11, 50, 0), None);
        profile.take(1, 6, 500);
        assert_eq!(profile.free, [2, 0, 10 - 6 + 6 - 6 + 6]);
        assert_eq!(
            profile.first(2, 50, 0),
            Some(0),
            "it is over before the other begins"
        );
        assert_eq!(profile.first(2, 500, 0), Some(2));
        assert_eq!(profile.first(2, 5, 2000), Some(2), "not before its time");
    }

    #[test]
    fn steps_close_to_each_other_become_one_at_the_later_time() {
        let profile = profile(&[(1200, 1), (1250, 1), (2000, 1)]);
        assert_eq!(profile.times, [0, 1250, 2000]);
        assert_eq!(profile.free, [2, 4, 5]);
    }
}
