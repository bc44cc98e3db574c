//! Owns sets of small numbers and their short text, `1,3-5,7`: what Kubernetes writes in
//! `completedIndexes`.

use std::collections::BTreeSet;
use std::fmt;

/// The most numbers a text may stand for: an Indexed Job's largest number of completions.
const MAX: u32 = 1_000_000;

/// A set of numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Indexes(BTreeSet<u32>);

impl Indexes {
    /// Reads the text; what cannot be read is left out.
    pub(crate) fn parse(text: &str) -> Indexes {
        let mut set = BTreeSet::new();
        for part in text.split(',') {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            if let (Ok(from), Ok(to)) = (from.trim().parse::<u32>(), to.trim().parse::<u32>()) {
                set.extend(from..=to.min(from.saturating_add(MAX)));
            }
        }
        Indexes(set)
    }

    pub(crate) fn insert(&mut self, number: u32) {
        self.0.insert(number);
    }

    pub(crate) fn contains(&self, number: u32) -> bool {
        self.0.contains(&number)
    }

    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Keeps what lies below `end`.
    pub(crate) fn truncate(&mut self, end: u32) {
        self.0.retain(|number| *number < end);
    }
}

impl FromIterator<u32> for Indexes {
    fn from_iter<I: IntoIterator<Item = u32>>(numbers: I) -> Indexes {
        Indexes(numbers.into_iter().collect())
    }
}

impl fmt::Display for Indexes {
    /// Runs of two are written as two numbers, of three and more as a range.
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for number in &self.0 {
            match runs.last_mut() {
                Some((_, end)) if end.checked_add(1) == Some(*number) => *end = *number,
                _ => runs.push((*number, *number)),
            }
        }
        for (nth, (from, end)) in runs.into_iter().enumerate() {
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
