//! How long completed gangs ran, by user, queue and size, and which part of their declared walltime
//! they took.
//!
//! Method: histograms with bins that grow with the run time (eight bins for each doubling, so
//! neighbours differ by at most an eighth). They are small, and the order of ends matters only to
//! which of too many users is forgotten first. A quantile over the runs that were longer than a
//! given time is the expected length of a gang that has run that long.
//!
//! Example: of eight gangs six ran for 10 seconds, one for 1000 and one for 2000. The median is
//! near 10 seconds; for a gang that has already run 500 seconds it is near 1000
//! (`a_long_run_is_compared_with_other_long_runs`).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::name_table::NameTable;

/// Bins for each doubling: neighbours differ by at most an eighth.
const BINS_A_DOUBLING: i64 = 8;
/// Enough for every run time that fits in 40 bits.
const BINS: usize = 40 * BINS_A_DOUBLING as usize;
/// A histogram with fewer ends than this is not used.
const ENDS_MIN: u64 = 8;
/// How many histograms are kept; the one that was updated longest ago is dropped first.
const KEYS_MAX: usize = 2048;

/// The properties of a gang by which its run time is predicted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GangFacts {
    /// The declared walltime in seconds.
    pub(super) declared: Option<i64>,
    pub(super) queue: Arc<str>,
    pub(super) user: Arc<str>,
    /// The number of binary digits of the GPUs that it requests.
    pub(super) size: u32,
}

/// The keys of the histograms, from the narrowest to the widest.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum HistoryKey {
    User(Arc<str>, Arc<str>, u32),
    Queue(Arc<str>, u32),
    Size(u32),
    /// Thousandths of the declared walltime, by user and in all.
    DeclaredBy(Arc<str>),
    Declared,
}

/// A histogram of run times.
#[derive(Clone, Debug, Default)]
struct RunTimeHistogram {
    counts: Vec<u32>,
    total: u64,
    /// When a value was last added.
    updated: u64,
}

/// The distribution of values of one kind.
#[derive(Clone, Debug, Default)]
pub(super) struct ValueDistribution(RunTimeHistogram);

impl ValueDistribution {
    /// Adds a value. Once there are `most` values, the values so far count half.
    pub(super) fn learn(&mut self, value: i64, most: u64) {
        if self.0.total >= most {
            self.0.halve();
        }
        self.0.add(value);
    }

    /// The range that leaves out so many in a thousand values at either end; none where fewer than
    /// `least` values are known.
    pub(super) fn range(&self, (low, high): (u64, u64), least: u64) -> Option<(i64, i64)> {
        if self.0.total < least {
            return None;
        }
        let (low, high) = (self.0.quantile(0, low)?, self.0.quantile(0, high)?);
        let bin = bin(low);
        // Values within one bin are not distinguished.
        let low = if bin == 0 { 0 } else { most(bin - 1) + 1 };
        Some((low, high))
    }
}

/// All histograms.
#[derive(Clone, Debug, Default)]
pub(super) struct RunTimeHistory {
    bins: NameTable<HistoryKey, RunTimeHistogram>,
    /// The keys by when they were last updated.
    by_update: BTreeMap<u64, HistoryKey>,
    updated: u64,
}

impl RunTimeHistory {
    /// Records that a gang ran for so many seconds.
    pub(super) fn learn(&mut self, facts: &GangFacts, seconds: i64) {
        let seconds = seconds.max(1);
        for key in lengths_of(facts) {
            self.add(key, seconds);
        }
        if let Some(declared) = facts.declared.filter(|declared| *declared > 0) {
            let part = seconds.saturating_mul(1000) / declared;
            self.add(HistoryKey::DeclaredBy(facts.user.clone()), part);
            self.add(HistoryKey::Declared, part);
        }
    }

    fn add(&mut self, key: HistoryKey, value: i64) {
        self.updated += 1;
        match self.bins.get(&key) {
            Some(known) => {
                self.by_update.remove(&known.updated);
            }
            None if self.bins.len() >= KEYS_MAX => {
                if let Some((_, oldest)) = self.by_update.pop_first() {
                    self.bins.remove(&oldest);
                }
            }
            None => {}
        }
        let updated = self.updated;
        let bins = self.bins.or_default(&key);
        bins.updated = updated;
        bins.add(value);
        self.by_update.insert(updated, key);
    }

    /// The run time of gangs like this one that ran longer than `beyond`: `per_mille` thousandths
    /// of them ran no longer than the answer. None where too few are known.
    pub(super) fn length(&self, facts: &GangFacts, beyond: i64, per_mille: u64) -> Option<i64> {
        lengths_of(facts)
            .into_iter()
            .find_map(|key| self.bins.get(&key)?.quantile(beyond, per_mille))
    }

    /// As `length`, in thousandths of their declared walltime.
    pub(super) fn part(&self, facts: &GangFacts, beyond: i64, per_mille: u64) -> Option<i64> {
        [
            HistoryKey::DeclaredBy(facts.user.clone()),
            HistoryKey::Declared,
        ]
        .into_iter()
        .find_map(|key| self.bins.get(&key)?.quantile(beyond, per_mille))
    }
}

fn lengths_of(facts: &GangFacts) -> [HistoryKey; 3] {
    [
        HistoryKey::User(facts.queue.clone(), facts.user.clone(), facts.size),
        HistoryKey::Queue(facts.queue.clone(), facts.size),
        HistoryKey::Size(facts.size),
    ]
}

impl RunTimeHistogram {
    fn add(&mut self, value: i64) {
        let at = bin(value);
        if self.counts.len() <= at {
            self.counts.resize(at + 1, 0);
        }
        self.counts[at] = self.counts[at].saturating_add(1);
        self.total += 1;
    }

    fn halve(&mut self) {
        for count in &mut self.counts {
            *count /= 2;
        }
        self.total = self.counts.iter().map(|n| u64::from(*n)).sum();
    }

    fn quantile(&self, beyond: i64, per_mille: u64) -> Option<i64> {
        if self.total < ENDS_MIN {
            return None;
        }
        let from = if beyond <= 0 { 0 } else { bin(beyond) + 1 };
        let rest = self.counts.get(from..)?;
        let all: u64 = rest.iter().map(|n| u64::from(*n)).sum();
        if all == 0 {
            return None;
        }
        let mut seen = 0;
        for (at, n) in rest.iter().enumerate() {
            seen += u64::from(*n);
            if seen * 1000 >= all * per_mille {
                return Some(most(from + at));
            }
        }
        None
    }
}

/// The bin of a run time.
fn bin(value: i64) -> usize {
    let value = value.max(1);
    let doublings = i64::from(63 - value.leading_zeros());
    let within = ((i128::from(value) * i128::from(BINS_A_DOUBLING)) >> doublings) as i64;
    let at = doublings * BINS_A_DOUBLING + within - BINS_A_DOUBLING;
    (at as usize).min(BINS - 1)
}

/// The longest run time of a bin.
fn most(bin: usize) -> i64 {
    let (doublings, within) = (bin / BINS_A_DOUBLING as usize, bin as i64 % BINS_A_DOUBLING);
    let parts = i128::from(BINS_A_DOUBLING);
    let end = ((parts + i128::from(within) + 1) << doublings) + parts - 1;
    (end / parts) as i64 - 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn facts(user: &str, size: u32, declared: Option<i64>) -> GangFacts {
        GangFacts {
            declared,
            queue: "q".into(),
            user: user.into(),
            size,
        }
    }

    #[test]
    fn a_histogram_of_few_ends_is_not_used() {
        let mut history = RunTimeHistory::default();
        for _ in 0..7 {
            history.learn(&facts("a", 1, None), 100);
        }
        assert_eq!(history.length(&facts("a", 1, None), 0, 500), None);
        history.learn(&facts("a", 1, None), 100);
        assert_eq!(history.length(&facts("a", 1, None), 0, 500), Some(103));
    }

    #[test]
    fn a_new_user_is_predicted_from_the_queue_and_then_from_the_size() {
        let mut history = RunTimeHistory::default();
        for _ in 0..8 {
            history.learn(&facts("a", 1, None), 100);
            history.learn(&facts("b", 1, None), 1000);
        }
        assert!(history.length(&facts("a", 1, None), 0, 900) < Some(110));
        assert!(history.length(&facts("c", 1, None), 0, 900) > Some(900));
        assert_eq!(history.length(&facts("c", 2, None), 0, 900), None);
        let elsewhere = GangFacts {
            queue: "other".into(),
            ..facts("c", 1, None)
        };
        assert!(history.length(&elsewhere, 0, 900) > Some(900));
    }

    #[test]
    fn a_long_run_is_compared_with_other_long_runs() {
        let mut history = RunTimeHistory::default();
        for seconds in [10, 10, 10, 10, 10, 10, 1000, 2000] {
            history.learn(&facts("a", 1, None), seconds);
        }
        assert!(history.length(&facts("a", 1, None), 0, 500) < Some(12));
        assert!(history.length(&facts("a", 1, None), 500, 500) > Some(900));
        assert_eq!(history.length(&facts("a", 1, None), 5000, 500), None);
    }

    #[test]
    fn a_user_who_declares_twice_the_run_time_is_learnt() {
        let mut history = RunTimeHistory::default();
        for _ in 0..8 {
            history.learn(&facts("a", 1, Some(200)), 100);
        }
        let part = history.part(&facts("a", 5, Some(9)), 0, 500).unwrap();
        assert!((500..560).contains(&part), "{part}");
    }

    #[test]
    fn the_number_of_histograms_is_bounded() {
        let mut history = RunTimeHistory::default();
        for user in 0..3 * KEYS_MAX {
            history.learn(&facts(&format!("u{user}"), 1, None), 100);
        }
        assert!(history.bins.len() <= KEYS_MAX);
        assert!(history.length(&facts("new", 1, None), 0, 500).is_some());
    }

    proptest! {
        #[test]
        fn a_run_time_lies_in_its_bin_and_bins_are_narrow(value in 1..(1_i64 << 39)) {
            let at = bin(value);
            prop_assert!(value <= most(at), "{value} {at} {}", most(at));
            prop_assert!(at == 0 || most(at - 1) < value || bin(most(at - 1)) < at);
            prop_assert!(most(at) - value <= value / 8 + 1);
        }
    }
}
