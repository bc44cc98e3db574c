//! Whether evictions are worth their cost, where the time of the next room is known anyway.
//!
//! Method: an eviction saves the wait of the preemptor, weighed by what it requests. It costs the
//! victim's work since its start, which counts twice, and half of the saved wait, because the
//! victim waits instead; and all other waiting gangs wait longer while the work is repeated. A gang
//! that stays within its queue's deserved amount evicts regardless of the cost. Where no walltime
//! is declared and nothing is learnt, the cost is not weighed.
//!
//! Example: gangs with a walltime of 10 hours have run for 2, so a gang of another queue that needs
//! their room would wait 8 hours; no other gang waits. For each GPU the wait weighs 8 and the loss
//! 2 * 2 + 8 / 2 = 8, so the gang evicts them. An hour later the wait weighs 7 and the loss 2 * 3 +
//! 7 / 2 = 9.5, so it waits.
//!
//! Tests: the tests of lost work in `tests/evictions.rs`; `make bench-frontier` measures the effect
//! on utilisation.

use jiff::Timestamp;

use crate::evict::EvictionUnit;
use crate::gang::GangKey;
use crate::plan::EvictionReason;
use crate::resource::{CPU, GPU, Ix};
use crate::state::Scheduler;

use super::{ClassPods, RoomGrowth};

/// No gang is evicted for a gang that is expected to have room within this time; seconds.
const SOON: i64 = 300;
/// A second's wait of a gang of higher priority weighs as much as this many seconds of lost work.
const URGENT: i128 = 4;
/// A second of lost work weighs as much as this many seconds of waiting: a waiting gang loses time,
/// an evicted gang loses time and its work.
const LOST: i64 = 2;
/// An evicted gang is assumed to wait for the saved wait divided by this.
const WAITS_AGAIN: i64 = 2;
/// After evictions were not worth their cost, victims are searched again after the wait divided by
/// this, and not before `AGAIN_SECONDS`.
const AGAIN_PART: i64 = 8;
const AGAIN_SECONDS: i64 = 60;

/// Why evictions are not worth their cost, and when to search again.
pub(crate) type NotWorth = (String, Timestamp);

/// By what a waiting gang's wait and its victims' losses are weighed. To be determined before a
/// search: while the gang is placed it requests nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EvictionWeights {
    /// GPUs, or cores if the gang requests no GPU.
    pub(crate) main: Ix,
    need: i64,
    /// The cluster's total.
    total: i64,
    /// What the other waiting gangs request.
    others: i64,
}

impl EvictionWeights {
    /// The weight of a wait of so many seconds, summed over all that the gang waits for. To be
    /// compared with [`EvictionWeights::price`].
    pub(crate) fn saved(self, wait: i64, urgent: bool) -> i128 {
        let factor = if urgent { URGENT } else { 1 };
        (i128::from(self.need) * i128::from(wait))
            .saturating_mul(factor)
            .saturating_mul(i128::from(self.total.max(1)))
    }

    /// The weight of evicting a gang that has run for `ran` seconds, for each unit of what it
    /// holds, where that saves `wait` seconds.
    ///
    /// Its work counts twice. The gang waits again, instead of the gang that it makes room for, and
    /// by assumption half as long: most waiting gangs came after it. Repeating the work occupies
    /// the whole cluster for a while, and all other waiting gangs wait longer for that, the victim
    /// among them: a second counts as `1 + others / total` seconds. Without any of these terms, a
    /// cluster near its capacity loses to evictions what it needs to catch up (`make
    /// bench-frontier`).
    pub(crate) fn price(self, ran: i64, wait: i64) -> i128 {
        let all = i128::from(self.total.max(1)) + i128::from(self.others);
        (i128::from(ran) * i128::from(LOST) + i128::from(wait / WAITS_AGAIN)).saturating_mul(all)
    }
}

impl Scheduler {
    /// How long a gang has to wait for room without evictions, in seconds. None where that is not
    /// known, the gang does not lack room, or `by_right` lets it evict regardless of the cost. An
    /// error if it has room soon, or if evictions were not worth their cost recently.
    pub(crate) fn wait_for_room(
        &mut self,
        key: &GangKey,
        by_right: bool,
        now: Timestamp,
        growth: &mut RoomGrowth,
    ) -> Result<Option<i64>, NotWorth> {
        if by_right || !self.config.weigh_losses {
            return Ok(None);
        }
        let spared = self.timeline.spared.get(key).copied();
        if let Some(then) = spared.filter(|then| *then > now.as_second()) {
            return Err(not_worth(then));
        }
        let gang = self.gangs.get(key);
        let Some(ask) = gang.and_then(|gang| self.ask_of(key, gang)) else {
            return Ok(None);
        };
        let Some(at) = self.first_room(&ask, now, growth) else {
            return Ok(None);
        };
        let wait = at.saturating_sub(now.as_second());
        if wait > 0 && wait < SOON {
            self.timeline.spared.insert(key.clone(), at);
            return Err(not_worth(at));
        }
        Ok((wait > 0).then_some(wait))
    }

    /// Whether evicting these victims costs more than the wait that it saves: if so, why, and when
    /// to search again.
    pub(crate) fn evictions_cost_more(
        &mut self,
        key: &GangKey,
        weight: EvictionWeights,
        units: &[EvictionUnit],
        wait: Option<i64>,
        now: Timestamp,
    ) -> Option<NotWorth> {
        let wait = wait?;
        let (mut lost, mut urgent) = (0_i128, true);
        for unit in units {
            urgent &= unit.why == EvictionReason::Preempted;
            let Some((ran, _)) = self.held_since(&unit.gang, now) else {
                continue;
            };
            let held = unit.pods.iter().filter_map(|pod| {
                let pod = self.pods.get(pod)?;
                Some(self.classes.get(pod.class).demand().get(weight.main))
            });
            let held = held.map(i128::from).sum::<i128>();
            lost = lost.saturating_add(weight.price(ran, wait).saturating_mul(held));
        }
        (lost > weight.saved(wait, urgent)).then(|| self.postpone_evictions(key, Some(wait), now))
    }

    /// The weight of a waiting gang's wait.
    pub(crate) fn weight(&self, key: &GangKey) -> Option<EvictionWeights> {
        let need = self.gangs.get(key)?.need(key);
        let main = if need.get(GPU) > 0 { GPU } else { CPU };
        let need = need.get(main);
        let waiting = self.queues.requested(main) - self.used.get(main);
        Some(EvictionWeights {
            main,
            need,
            total: self.total.get(main),
            others: (waiting - need).max(0),
        })
    }

    /// How long a gang has run, in seconds, and what its members hold. None if it does not run.
    pub(crate) fn held_since(&self, key: &GangKey, now: Timestamp) -> Option<(i64, &[ClassPods])> {
        let run = self.timeline.runs.get(key)?;
        let ran = now.as_second() - run.start;
        Some((ran.max(0), &run.held))
    }

    /// Delays the next victim search for a gang, because evictions are not worth their cost.
    pub(crate) fn postpone_evictions(
        &mut self,
        key: &GangKey,
        wait: Option<i64>,
        now: Timestamp,
    ) -> NotWorth {
        let pause = (wait.unwrap_or(0) / AGAIN_PART).max(AGAIN_SECONDS);
        let then = now.as_second().saturating_add(pause);
        self.timeline.spared.insert(key.clone(), then);
        not_worth(then)
    }
}

fn not_worth(then: i64) -> NotWorth {
    let why = "the gang is expected to get room before evictions would save more than they cost";
    (
        why.to_owned(),
        Timestamp::from_second(then).unwrap_or(Timestamp::MAX),
    )
}
