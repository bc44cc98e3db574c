//! Past use of queues: an exponentially decaying average of what they held, by half-life. A queue
//! that used more than its part gets less of the surplus until that has decayed.
//!
//! Integer arithmetic only, so that the result is the same on every machine.
//!
//! Example: an average of 8 GPUs and a half-life of one day: after a day without pods the average
//! is 4.
//!
//! Test: `past_use_halves_after_each_half_life`.

use jiff::Timestamp;

use crate::queue::Queues;
use crate::queue::portion::UsageWeight;
use crate::resource::Ix;

/// How past use decays and counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decay {
    /// The half-life, in seconds.
    pub half_life_seconds: i64,
    /// The strength, in thousandths: a queue's weight w counts as w + strength * (w - usage), both
    /// as parts of the whole.
    pub strength: i64,
}

/// One in fixed point.
const ONE: i128 = 1 << 32;
/// The natural logarithm of two in fixed point.
const LN2: i128 = 2_977_044_472;
/// Terms of the series: the next term would be less than 2^-32.
const TERMS: i128 = 10;

/// The time of the last update.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock {
    decay: Option<Decay>,
    last: Option<Timestamp>,
}

impl Queues {
    /// Updates usage to `now`: what was held at the end of the last plan counts as held since then.
    pub(crate) fn remember(&mut self, now: Timestamp, decay: Option<Decay>) {
        self.clock.decay = decay;
        let Some(decay) = decay.filter(|decay| decay.half_life_seconds > 0) else {
            return;
        };
        let last = self.clock.last.replace(now).unwrap_or(now);
        let passed = now.as_millisecond() - last.as_millisecond();
        if passed <= 0 {
            return;
        }
        let kept = half_to_the(passed, decay.half_life_seconds.saturating_mul(1000));
        for queue in &mut self.table {
            let resources = queue.usage.len().max(queue.held_then.len());
            for ix in (0..resources).map(|ix| ix as Ix) {
                let old = i128::from(queue.usage.get(ix));
                let then = i128::from(queue.held_then.get(ix));
                let new = (old * kept + then * (ONE - kept)) / ONE;
                queue.usage.set(ix, new as i64);
            }
        }
        self.requests_changed = true;
    }

    /// Records what is held at the end of a plan.
    pub(crate) fn note_held(&mut self) {
        if self.clock.decay.is_none() {
            return;
        }
        for queue in &mut self.table {
            queue.held_then.clone_from(&queue.sum.allocated);
        }
    }

    pub(super) fn memory(&self, ix: Ix) -> UsageWeight {
        UsageWeight {
            strength: self.clock.decay.map_or(0, |decay| decay.strength),
            total: self.pool.get(ix),
        }
    }
}

/// 2 to the power of -(passed / half), in fixed point.
fn half_to_the(passed: i64, half: i64) -> i128 {
    let (passed, half) = (i128::from(passed), i128::from(half.max(1)));
    let halvings = passed / half;
    if halvings >= 32 {
        return 0;
    }
    let x = (passed % half) * LN2 / half;
    let (mut sum, mut term) = (ONE, ONE);
    for n in 1..=TERMS {
        term = -term * x / (ONE * n);
        sum += term;
    }
    sum >> halvings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn past_use_halves_after_each_half_life() {
        let part = |passed| half_to_the(passed, 1000) as f64 / ONE as f64;
        for (passed, want) in [
            (0, 1.0),
            (1000, 0.5),
            (2000, 0.25),
            (500, 0.5f64.sqrt()),
            (100_000, 0.0),
        ] {
            assert!((part(passed) - want).abs() < 1e-8, "{passed}");
        }
    }
}
