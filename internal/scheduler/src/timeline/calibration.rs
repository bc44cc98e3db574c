//! How wrong estimated starts were: the actual waits of gangs beside the estimates that they were
//! given, learnt separately for gangs with different chances, so that the range of an estimate
//! contains the true start as often as it claims. Decides nothing.
//!
//! Example: 100 gangs were given an estimated wait of 30 minutes and waited for 36, 72, ... 3600
//! seconds. The range of the next such estimate leaves out one in ten at either end, and contains
//! about eight in ten of these waits (`a_range_contains_eight_in_ten_actual_waits`).

use std::collections::BTreeMap;

use super::history::ValueDistribution;
use crate::gang::GangKey;

/// This many seconds are added to waits before they are compared: an estimate of 0 that became a
/// minute counts as twice as long, not as infinitely long.
const BASE_SECONDS: i64 = 60;
/// Ratios are counted in thousandths.
const PARTS: i64 = 1000;
/// The range leaves out one in ten at either end.
const RANGE: (u64, u64) = (100, 900);
/// The range while too few earlier estimates are known, in thousandths of the wait.
const FIRST_GUESS: (i64, i64) = (250, 3000);
/// A kind with fewer answers than this is not used if a wider kind has more.
const ANSWERS_MIN: u64 = 24;
/// Once a kind has this many answers, the answers so far count half.
const ANSWERS_MAX: u64 = 512;

/// What the error of a gang's estimate depends on besides the estimate itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Chance {
    /// How the estimate was found, from the most reliable method on.
    pub(super) way: u8,
    /// The number of binary digits of the gang's request.
    pub(super) size: u8,
    /// The number of binary digits of the gangs before it in its queue.
    pub(super) ahead: u8,
}

/// An estimate that was given.
#[derive(Clone, Copy, Debug)]
struct GivenEstimate {
    at: i64,
    likely: i64,
    chance: Chance,
}

/// The kinds of estimates that are learnt separately, from the narrowest to the widest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum EstimateKind {
    Like(Chance, u8),
    Alike(u8, u8, u8),
    Size(u8, u8),
    Way(u8),
    All,
}

/// All that was learnt about estimates.
#[derive(Clone, Debug, Default)]
pub(super) struct Calibration {
    /// The first estimate of each waiting gang.
    first_estimates: BTreeMap<GangKey, GivenEstimate>,
    /// The actual waits in thousandths of the estimated waits.
    spread: BTreeMap<EstimateKind, ValueDistribution>,
}

impl Calibration {
    /// Records an estimate; only the first one of a gang is compared with its actual wait.
    pub(super) fn notify(&mut self, key: &GangKey, at: i64, likely: i64, chance: Chance) {
        let estimate = GivenEstimate { at, likely, chance };
        if !self.first_estimates.contains_key(key) {
            self.first_estimates.insert(key.clone(), estimate);
        }
    }

    /// Records that a gang started.
    pub(super) fn started(&mut self, key: &GangKey, now: i64) {
        let Some(estimate) = self.first_estimates.remove(key) else {
            return;
        };
        let (wait, foretold) = (now - estimate.at, estimate.likely - estimate.at);
        let part = (wait.max(0) + BASE_SECONDS).saturating_mul(PARTS) / weight(foretold);
        for kind in kinds(estimate.chance, foretold) {
            self.spread
                .entry(kind)
                .or_default()
                .learn(part, ANSWERS_MAX);
        }
    }

    /// Records that a gang is gone.
    pub(super) fn gone(&mut self, key: &GangKey) {
        self.first_estimates.remove(key);
    }

    /// The range, in seconds from now, of an estimated wait.
    pub(super) fn range(&self, foretold: i64, chance: Chance) -> (i64, i64) {
        let foretold = foretold.max(0);
        let known = kinds(chance, foretold).into_iter().find_map(|kind| {
            let spread = self.spread.get(&kind)?;
            spread.range(RANGE, ANSWERS_MIN)
        });
        let (low, high) = known.unwrap_or(FIRST_GUESS);
        let after = |part: i64| {
            let weighed = i128::from(weight(foretold)) * i128::from(part) / i128::from(PARTS);
            i64::try_from(weighed).unwrap_or(i64::MAX) - BASE_SECONDS
        };
        (
            after(low).clamp(0, foretold),
            after(high).max(foretold.saturating_add(BASE_SECONDS)),
        )
    }
}

fn weight(foretold: i64) -> i64 {
    foretold.max(0).saturating_add(BASE_SECONDS)
}

/// The kinds that an estimate belongs to. Estimates of twice the wait are of another kind.
fn kinds(chance: Chance, foretold: i64) -> [EstimateKind; 5] {
    let wait = digits(weight(foretold) / BASE_SECONDS);
    [
        EstimateKind::Like(chance, wait),
        EstimateKind::Alike(chance.way, chance.size, wait),
        EstimateKind::Size(chance.size, wait),
        EstimateKind::Way(chance.way),
        EstimateKind::All,
    ]
}

/// The number of binary digits of a number.
pub(super) fn digits(amount: i64) -> u8 {
    (i64::BITS - amount.max(0).leading_zeros()) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANCE: Chance = Chance {
        way: 1,
        size: 3,
        ahead: 2,
    };

    fn key(at: usize) -> GangKey {
        GangKey::group("ns".into(), &format!("g{at}"))
    }

    /// Gangs that were given an estimate of `foretold` seconds and waited for `waits`.
    fn learn(calibration: &mut Calibration, chance: Chance, foretold: i64, waits: &[i64]) {
        for (at, wait) in waits.iter().enumerate() {
            calibration.notify(&key(at), 0, foretold, chance);
            calibration.started(&key(at), *wait);
        }
    }

    #[test]
    fn a_range_contains_eight_in_ten_actual_waits() {
        let mut calibration = Calibration::default();
        let waits: Vec<i64> = (1..=100).map(|i| i * 36).collect();
        learn(&mut calibration, CHANCE, 1800, &waits);
        let (low, high) = calibration.range(1800, CHANCE);
        let within = waits.iter().filter(|wait| (low..=high).contains(*wait));
        assert!((78..=88).contains(&within.count()), "{low} {high}");
    }

    #[test]
    fn a_late_start_widens_the_range_of_an_estimate_of_zero() {
        let mut calibration = Calibration::default();
        learn(&mut calibration, CHANCE, 0, &[3600; 30]);
        let (low, high) = calibration.range(0, CHANCE);
        assert_eq!(low, 0, "the estimate says that it starts at once");
        assert!((3500..4200).contains(&high), "{high}");
    }

    #[test]
    fn gangs_further_behind_are_estimated_from_gangs_further_behind() {
        let mut calibration = Calibration::default();
        let behind = Chance { ahead: 5, ..CHANCE };
        learn(&mut calibration, CHANCE, 1000, &[1000; 30]);
        learn(&mut calibration, behind, 1000, &[9000; 30]);
        assert!(calibration.range(1000, CHANCE).1 < 1300);
        assert!(calibration.range(1000, behind).1 > 8000);
        // A gang that is like neither is estimated from both.
        let other = Chance { ahead: 3, ..CHANCE };
        assert!(calibration.range(1000, other).1 > 8000);
    }

    #[test]
    fn a_range_is_wide_while_little_is_known() {
        let calibration = Calibration::default();
        let (low, high) = calibration.range(4000, CHANCE);
        assert!(low <= 1000 && high >= 12_000, "{low} {high}");
    }

    #[test]
    fn a_gang_counts_by_its_first_estimate_and_not_if_it_is_deleted() {
        let mut calibration = Calibration::default();
        calibration.notify(&key(0), 0, 100, CHANCE);
        calibration.notify(&key(0), 50, 5000, CHANCE);
        calibration.gone(&key(0));
        calibration.started(&key(0), 100);
        assert!(calibration.spread.is_empty());
    }
}
