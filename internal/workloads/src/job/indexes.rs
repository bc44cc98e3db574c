//! Sets of small numbers and their short text, `1,3-5,7`: the form of Kubernetes'
//! `completedIndexes`. A set is stored as runs of consecutive numbers, so its cost is that of its
//! text: any client that may write a Job's status may write `0-4294967295` there.

use std::collections::BTreeMap;
use std::fmt;

/// A set of numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Indexes {
    /// The first number of each run and its last. Runs neither overlap nor are adjacent.
    runs: BTreeMap<u32, u32>,
}

impl Indexes {
    /// Reads the text; unreadable parts are left out.
    pub(crate) fn parse(text: &str) -> Indexes {
        let mut set = Indexes::default();
        for part in text.split(',') {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            if let (Ok(from), Ok(to)) = (from.trim().parse::<u32>(), to.trim().parse::<u32>()) {
                set.insert_run(from, to);
            }
        }
        set
    }

    /// All numbers below `end`.
    pub(crate) fn below(end: u32) -> Indexes {
        let mut set = Indexes::default();
        if let Some(last) = end.checked_sub(1) {
            set.insert_run(0, last);
        }
        set
    }

    pub(crate) fn insert(&mut self, number: u32) {
        self.insert_run(number, number);
    }

    /// Adds the numbers of the other set.
    pub(crate) fn insert_all(&mut self, other: &Indexes) {
        for (from, to) in &other.runs {
            self.insert_run(*from, *to);
        }
    }

    /// Adds `from` to `to`, both included; nothing if `from` is greater.
    fn insert_run(&mut self, from: u32, to: u32) {
        if from > to {
            return;
        }
        let (mut from, mut to) = (from, to);
        // The last run that begins no later than one beyond the new end may overlap it or be
        // adjacent; so may the one before it, until a run ends too early.
        while let Some((&start, &end)) = self.runs.range(..=to.saturating_add(1)).next_back() {
            if end.saturating_add(1) < from {
                break;
            }
            self.runs.remove(&start);
            from = from.min(start);
            to = to.max(end);
        }
        self.runs.insert(from, to);
    }

    pub(crate) fn contains(&self, number: u32) -> bool {
        self.end_of_run(number).is_some()
    }

    /// The last number of the run that holds this number.
    fn end_of_run(&self, number: u32) -> Option<u32> {
        let (_, end) = self.runs.range(..=number).next_back()?;
        (*end >= number).then_some(*end)
    }

    pub(crate) fn len(&self) -> u32 {
        let lengths = self.runs.iter().map(|(from, to)| length(*from, *to));
        lengths.fold(0, u32::saturating_add)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Keeps the numbers below `end`.
    pub(crate) fn truncate(&mut self, end: u32) {
        drop(self.runs.split_off(&end));
        if let Some((_, last)) = self.runs.iter_mut().next_back() {
            // A remaining run begins below `end`, so `end` is not zero.
            *last = (*last).min(end.saturating_sub(1));
        }
    }

    /// How many numbers both sets hold.
    pub(crate) fn shared_with(&self, other: &Indexes) -> u32 {
        let mut shared = 0_u32;
        let (mut ours, mut theirs) = (self.runs.iter().peekable(), other.runs.iter().peekable());
        while let (Some((from, to)), Some((start, end))) = (ours.peek(), theirs.peek()) {
            let (first, last) = ((*from).max(*start), (*to).min(*end));
            if first <= last {
                shared = shared.saturating_add(length(*first, *last));
            }
            if to < end {
                ours.next();
            } else {
                theirs.next();
            }
        }
        shared
    }

    /// The numbers below `end` that are not in the set, in order. The cost is a step for each of
    /// them and for each run between them, regardless of the runs' lengths.
    pub(crate) fn missing_below(&self, end: u32) -> impl Iterator<Item = u32> {
        let mut next = Some(0_u32);
        std::iter::from_fn(move || {
            let mut number = next?;
            while let Some(last) = self.end_of_run(number) {
                number = last.checked_add(1)?;
            }
            next = number.checked_add(1);
            (number < end).then_some(number)
        })
    }
}

fn length(from: u32, to: u32) -> u32 {
    (to - from).saturating_add(1)
}

impl FromIterator<u32> for Indexes {
    fn from_iter<I: IntoIterator<Item = u32>>(numbers: I) -> Indexes {
        let mut set = Indexes::default();
        for number in numbers {
            set.insert(number);
        }
        set
    }
}

impl fmt::Display for Indexes {
    /// Runs of two are written as two numbers, of three and more as a range.
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, (from, end)) in self.runs.iter().enumerate() {
            let comma = if nth == 0 { "" } else { "," };
            match end - from {
                0 => write!(to, "{comma}{from}")?,
                1 => write!(to, "{comma}{from},{end}")?,
                _ => write!(to, "{comma}{from}-{end}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_range_of_any_length_costs_one_run() {
        let table = [
            ("0-4294967295", 1, u32::MAX),
            ("0-4294967295,5,7-9", 1, u32::MAX),
            ("0-2147483646", 1, 2_147_483_647),
            ("4294967295", 1, 1),
            ("4294967294,4294967295", 1, 2),
            ("5-3", 0, 0),
            ("4294967296,-1,x, 7 ,", 1, 1),
        ];
        for (text, runs, numbers) in table {
            let set = Indexes::parse(text);
            assert_eq!((set.runs.len(), set.len()), (runs, numbers), "{text}");
        }
        let mut all = Indexes::parse("0-4294967295");
        assert_eq!(all.missing_below(u32::MAX).next(), None);
        all.truncate(10);
        assert_eq!(all, Indexes::below(10));
        all.truncate(0);
        assert!(all.is_empty());
        let few = Indexes::parse("0-9,1000000-4294967294");
        let missing: Vec<u32> = few.missing_below(u32::MAX).take(3).collect();
        assert_eq!(missing, [10, 11, 12]);
        assert_eq!(few.missing_below(10).next(), None);
    }

    proptest! {
        #[test]
        fn a_set_of_runs_is_a_set(
            runs in prop::collection::vec((0_u32..60, 0_u32..8), 0..12),
            others in prop::collection::vec(0_u32..70, 0..12),
            end in 0_u32..80,
        ) {
            let mut set = Indexes::default();
            let mut plain = BTreeSet::new();
            for (from, more) in runs {
                set.insert_run(from, from + more);
                plain.extend(from..=from + more);
            }
            let other: Indexes = others.iter().copied().collect();
            let others: BTreeSet<u32> = others.into_iter().collect();
            prop_assert_eq!(usize::try_from(set.len()).unwrap(), plain.len());
            for number in 0..90 {
                prop_assert_eq!(set.contains(number), plain.contains(&number));
            }
            let shared = plain.intersection(&others).count();
            prop_assert_eq!(usize::try_from(set.shared_with(&other)).unwrap(), shared);
            let missing: Vec<u32> = set.missing_below(end).collect();
            let expected: Vec<u32> = (0..end).filter(|n| !plain.contains(n)).collect();
            prop_assert_eq!(missing, expected);
            let mut both = set.clone();
            both.insert_all(&other);
            let union: Indexes = plain.union(&others).copied().collect();
            prop_assert_eq!(both, union);
            set.truncate(end);
            let kept: Indexes = plain.iter().copied().filter(|n| *n < end).collect();
            prop_assert_eq!(&set, &kept);
            prop_assert_eq!(Indexes::parse(&set.to_string()), kept);
        }
    }
}
