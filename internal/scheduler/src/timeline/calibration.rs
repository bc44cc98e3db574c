//! How far off estimated starts were: what those waited who were told a time, beside what they were
//! told, learnt apart for those whose chances differ, so that the range which is given with an
//! answer holds as often as it says. Decides nothing.

use std::collections::BTreeMap;

use super::history::Spread;
use crate::gang::GangKey;

/// Waits are compared from this many seconds on: a wait of no time at all that took a minute is
/// twice as long, not without end.
const BASE_SECONDS: i64 = 60;
/// What is compared is counted in thousandths.
const PARTS: i64 = 1000;
/// The range leaves out one of ten at either end.
const RANGE: (u64, u64) = (100, 900);
/// The range while too little is known of earlier answers, in thousandths of the wait.
const FIRST_GUESS: (i64, i64) = (250, 3000);
/// Fewer answers than this about gangs like one say nothing of it, if more is known of others.
const ANSWERS_MIN: u64 = 24;
/// The earlier half of so many answers counts half.
const ANSWERS_MAX: u64 = 512;

/// What a gang's chances depend on beside what it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Chance {
    /// How its time was found, from the surest on.
    pub(super) way: u8,
    /// The binary digits of what it asks for.
    pub(super) size: u8,
    /// The binary digits of how many are before it in its queue.
    pub(super) ahead: u8,
}

/// An answer that was given.
#[derive(Clone, Copy, Debug)]
struct Told {
    at: i64,
    likely: i64,
    chance: Chance,
}

/// Which answers are told apart, from the narrowest kind to the widest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Like(Chance, u8),
    Alike(u8, u8, u8),
    Size(u8, u8),
    Way(u8),
    All,
}

/// All that was learnt of answers.
#[derive(Clone, Debug, Default)]
pub(super) struct Calibration {
    /// What gangs that wait were told first.
    told: BTreeMap<GangKey, Told>,
    /// How long they then waited, in parts of what they were told.
    spread: BTreeMap<Kind, Spread>,
}

impl Calibration {
    /// Notes an answer; only the first one to a gang is held against what became of it.
    pub(super) fn tell(&mut self, key: &GangKey, at: i64, likely: i64, chance: Chance) {
        let told = Told { at, likely, chance };
        if !self.told.contains_key(key) {
            self.told.insert(key.clone(), told);
        }
    }

    /// Notes that a gang starts.
    pub(super) fn started(&mut self, key: &GangKey, now: i64) {
        let Some(told) = self.told.remove(key) else {
            return;
        };
        let (wait, foretold) = (now - told.at, told.likely - told.at);
        let part = (wait.max(0) + BASE_SECONDS).saturating_mul(PARTS) / weight(foretold);
        for kind in kinds(told.chance, foretold) {
            self.spread
                .entry(kind)
                .or_default()
                .learn(part, ANSWERS_MAX);
        }
    }

    /// Notes that a gang is gone.
    pub(super) fn gone(&mut self, key: &GangKey) {
        self.told.remove(key);
    }

    /// The range, in seconds from now, of an answer that says so many.
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

/// The kinds that an answer is of. Answers of twice the wait are others.
fn kinds(chance: Chance, foretold: i64) -> [Kind; 5] {
    let wait = digits(weight(foretold) / BASE_SECONDS);
    [
        Kind::Like(chance, wait),
        Kind::Alike(chance.way, chance.size, wait),
        Kind::Size(chance.size, wait),
        Kind::Way(chance.way),
        Kind::All,
    ]
}

/// The binary digits of a number.
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

    /// So many were told a wait of `foretold` seconds, and waited so long.
    fn learn(calibration: &mut Calibration, chance: Chance, foretold: i64, waits: &[i64]) {
        for (at, wait) in waits.iter().enumerate() {
            calibration.tell(&key(at), 0, foretold, chance);
            calibration.started(&key(at), *wait);
        }
    }

    #[test]
    fn a_range_holds_what_eight_of_ten_like_it_waited() {
        let mut calibration = Calibration::default();
        let waits: Vec<i64> = (1..=100).map(|i| i * 36).collect();
        learn(&mut calibration, CHANCE, 1800, &waits);
        let (low, high) = calibration.range(1800, CHANCE);
        let within = waits.iter().filter(|wait| (low..=high).contains(*wait));
        assert!((78..=88).contains(&within.count()), "{low} {high}");
    }

    #[test]
    fn what_was_said_to_start_at_once_and_did_not_widens_the_range_too() {
        let mut calibration = Calibration::default();
        learn(&mut calibration, CHANCE, 0, &[3600; 30]);
        let (low, high) = calibration.range(0, CHANCE);
        assert_eq!(low, 0, "it is said to start at once");
        assert!((3500..4200).contains(&high), "{high}");
    }

    #[test]
    fn those_further_behind_are_told_by_what_others_further_behind_waited() {
        let mut calibration = Calibration::default();
        let behind = Chance { ahead: 5, ..CHANCE };
        learn(&mut calibration, CHANCE, 1000, &[1000; 30]);
        learn(&mut calibration, behind, 1000, &[9000; 30]);
        assert!(calibration.range(1000, CHANCE).1 < 1300);
        assert!(calibration.range(1000, behind).1 > 8000);
        // One that is like neither is told by both.
        let other = Chance { ahead: 3, ..CHANCE };
        assert!(calibration.range(1000, other).1 > 8000);
    }

    #[test]
    fn while_little_is_known_a_range_is_wide() {
        let calibration = Calibration::default();
        let (low, high) = calibration.range(4000, CHANCE);
        assert!(low <= 1000 && high >= 12_000, "{low} {high}");
    }

    #[test]
    fn a_gang_counts_by_what_it_was_told_first_and_not_if_it_goes() {
        let mut calibration = Calibration::default();
        calibration.tell(&key(0), 0, 100, CHANCE);
        calibration.tell(&key(0), 50, 5000, CHANCE);
        calibration.gone(&key(0));
        calibration.started(&key(0), 100);
        assert!(calibration.spread.is_empty());
    }
}
