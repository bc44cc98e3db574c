//! Is it worth evicting others, where it is known when there will be room anyway? What is saved is
//! the wait, for as much as the gang asks for. Whoever is evicted waits instead; what it worked is
//! lost, which counts twice, and all others wait for longer because it is done again. Whoever takes no more than its
//! queue was said to deserve need not ask, and where nobody said how long work takes and nothing was
//! learnt, there is no opinion.

use jiff::Timestamp;

use crate::evict::Bite;
use crate::gang::GangKey;
use crate::plan::EvictionReason;
use crate::resource::{CPU, GPU, Ix};
use crate::state::Scheduler;

use super::{Growth, Held};

/// Nobody is evicted for a gang that is expected to have room sooner than this, in seconds.
const SOON: i64 = 300;
/// A second's wait of a gang of higher priority counts as so many of work that is lost.
const URGENT: i128 = 4;
/// A second of work that is lost counts as so many of waiting: who waits loses time, who is evicted
/// loses time and what he had.
const LOST: i64 = 2;
/// Whoever is evicted is taken to wait for this part of the wait that is saved.
const WAITS_AGAIN: i64 = 2;
/// After evictions were found not to be worth it, they are sought again after this part of the
/// wait, and not sooner than after so many seconds.
const AGAIN_PART: i64 = 8;
const AGAIN_SECONDS: i64 = 60;

/// Why evictions are not worth it, and when to ask again.
pub(crate) type NotWorth = (String, Timestamp);

/// What a gang asks for that waits, by which its wait and others' losses are weighed. To be asked
/// for before a search: while the gang is placed it asks for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Weight {
    /// GPUs, or cores if it asks for none.
    pub(crate) main: Ix,
    need: i64,
    /// What there is in all.
    total: i64,
    /// What others wait for.
    others: i64,
}

impl Weight {
    /// What a wait of so many seconds weighs, for all that waits. [`Weight::price`] is what to
    /// compare it with.
    pub(crate) fn saved(self, wait: i64, urgent: bool) -> i128 {
        let factor = if urgent { URGENT } else { 1 };
        (i128::from(self.need) * i128::from(wait))
            .saturating_mul(factor)
            .saturating_mul(i128::from(self.total.max(1)))
    }

    /// What it weighs that somebody who has run for so long must go, for each unit of what it holds,
    /// where that saves so long a wait.
    ///
    /// What it worked counts twice. It is in line again, and waits instead of the one that it makes
    /// room for, half as long at the guess: most that wait came after it. And work that is done twice
    /// takes the whole cluster a while, in which all others that wait do so for longer, it among them:
    /// a second counts as `1 + others / total` of them. Without any of these, a cluster that hardly
    /// keeps up loses to evictions what it needs to catch up (`make bench-frontier`).
    pub(crate) fn price(self, ran: i64, wait: i64) -> i128 {
        let all = i128::from(self.total.max(1)) + i128::from(self.others);
        (i128::from(ran) * i128::from(LOST) + i128::from(wait / WAITS_AGAIN)).saturating_mul(all)
    }
}

impl Scheduler {
    /// How long a gang has to wait for room if nobody is evicted, in seconds; none where that is
    /// not known, room is not what it lacks, or it evicts by right. An error if it has room soon,
    /// or evictions were not worth it a while ago.
    pub(crate) fn known_wait(
        &mut self,
        key: &GangKey,
        by_right: bool,
        now: Timestamp,
        growth: &mut Growth,
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

    /// Would evicting these cost more than the waiting that it saves? Then why, and when to ask again.
    pub(crate) fn loses_more(
        &mut self,
        key: &GangKey,
        weight: Weight,
        bites: &[Bite],
        wait: Option<i64>,
        now: Timestamp,
    ) -> Option<NotWorth> {
        let wait = wait?;
        let (mut lost, mut urgent) = (0_i128, true);
        for bite in bites {
            urgent &= bite.why == EvictionReason::Preempted;
            let Some((ran, _)) = self.held_since(&bite.gang, now) else {
                continue;
            };
            let held = bite.pods.iter().filter_map(|pod| {
                let pod = self.pods.get(pod)?;
                Some(self.classes.get(pod.class).demand().get(weight.main))
            });
            let held = held.map(i128::from).sum::<i128>();
            lost = lost.saturating_add(weight.price(ran, wait).saturating_mul(held));
        }
        (lost > weight.saved(wait, urgent)).then(|| self.put_off(key, Some(wait), now))
    }

    /// What a waiting gang's wait weighs.
    pub(crate) fn weight(&self, key: &GangKey) -> Option<Weight> {
        let need = self.gangs.get(key)?.need(key);
        let main = if need.get(GPU) > 0 { GPU } else { CPU };
        let need = need.get(main);
        let waiting = self.queues.requested(main) - self.used.get(main);
        Some(Weight {
            main,
            need,
            total: self.total.get(main),
            others: (waiting - need).max(0),
        })
    }

    /// How long a gang has run, in seconds, and what its members hold. None where it does not run.
    pub(crate) fn held_since(&self, key: &GangKey, now: Timestamp) -> Option<(i64, &[Held])> {
        let run = self.timeline.runs.get(key)?;
        let ran = now.as_second() - run.start;
        Some((ran.max(0), &run.held))
    }

    /// Seeks no evictions for a gang for a while, because they are not worth it.
    pub(crate) fn put_off(&mut self, key: &GangKey, wait: Option<i64>, now: Timestamp) -> NotWorth {
        let pause = (wait.unwrap_or(0) / AGAIN_PART).max(AGAIN_SECONDS);
        let then = now.as_second().saturating_add(pause);
        self.timeline.spared.insert(key.clone(), then);
        not_worth(then)
    }
}

fn not_worth(then: i64) -> NotWorth {
    let why = "it is expected to have room before evictions would save more than they lose";
    (
        why.to_owned(),
        Timestamp::from_second(then).unwrap_or(Timestamp::MAX),
    )
}
