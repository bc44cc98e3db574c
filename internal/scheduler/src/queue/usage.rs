//! What queues used of late: an average of what they held that forgets with a half-life. A queue
//! that used more than its part gets less of the surplus until that is forgotten.
//!
//! Counted in whole numbers, so that it is the same on every machine.

use jiff::Timestamp;

use crate::queue::Queues;
use crate::queue::portion::Memory;
use crate::resource::Ix;

/// How the past counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decay {
    /// After so many seconds a use counts half.
    pub half_life_seconds: i64,
    /// How strongly, in thousandths: a queue's weight w counts as w + strength * (w - usage),
    /// both as parts of the whole.
    pub strength: i64,
}

/// One in fixed point.
const ONE: i128 = 1 << 32;
/// The natural logarithm of two in fixed point.
const LN2: i128 = 2_977_044_472;
/// Terms of the series: the next would be less than a part in 2^32.
const TERMS: i128 = 10;

/// When usage was last brought up to date.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock {
    decay: Option<Decay>,
    last: Option<Timestamp>,
}

impl Queues {
    /// Brings usage up to `now`: what was held at the end of the last plan was held since.
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
        self.restless = true;
    }

    /// Notes what is held at the end of a plan.
    pub(crate) fn note_held(&mut self) {
        if self.clock.decay.is_none() {
            return;
        }
        for queue in &mut self.table {
            queue.held_then.clone_from(&queue.sum.allocated);
        }
    }

    pub(super) fn memory(&self, ix: Ix) -> Memory {
        Memory {
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
    fn what_is_past_counts_half_after_each_half_life() {
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
