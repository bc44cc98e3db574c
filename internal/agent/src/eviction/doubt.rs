//! Decides whether a pod's measured disk use can be trusted. Pure.
//!
//! A pod that renames or removes what is being counted loses entries of its count, so that it seems to
//! use less than it does, and other pods would be evicted for it when the disk is full. A count
//! cannot distinguish this from harmless work such as a checkpoint that is written and renamed. So a
//! pod is doubtful only if its counts lost entries in [`TURNS`] of the last [`WINDOW`] turns.
//! Example: a pod that renames its directories without a pause is doubtful after 3 turns (30 seconds,
//! or 6 while the disk is too full), and trusted again at most 8 turns after it stopped. A pod whose
//! directories are too deep or too many to count is doubtful at once.

use runtime::usage::DirectoryUsage;

/// The turns that are remembered.
const WINDOW: u32 = 8;
/// In so many of them entries must be lost.
const TURNS: u32 = 3;

/// What is known about one pod's counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Doubt {
    /// One bit for each of the last turns, the latest lowest: whether its count lost entries.
    turns: u32,
    /// Why some of it could not be counted, at the last turn.
    uncountable: Option<String>,
}

impl Doubt {
    /// Records a turn: how many entries it lost, and the pod's use.
    pub fn turn(&mut self, lost: u64, used: &DirectoryUsage) {
        self.turns = ((self.turns << 1) | u32::from(lost > 0)) & ((1 << WINDOW) - 1);
        self.uncountable.clone_from(&used.uncountable);
    }

    /// Why the measured use may be too low, in a sentence; none if it can be trusted.
    pub fn why(&self) -> Option<String> {
        if let Some(why) = &self.uncountable {
            return Some(format!("The pod's disk usage cannot be measured: {why}. "));
        }
        let lost = self.turns.count_ones();
        (lost >= TURNS).then(|| {
            format!(
                "The pod's disk usage is doubtful: files or directories were renamed or removed while they were counted, in {lost} of the last {WINDOW} counts. "
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_doubtful_when_several_recent_turns_lost_entries() {
        let cases: [(&[u64], bool); 7] = [
            (&[], false),
            (&[9, 9], false),
            (&[1, 1, 1], true),
            (&[1, 0, 1, 0, 1], true),
            (&[1, 1, 1, 0, 0, 0, 0, 0], true),
            // The first of them is forgotten.
            (&[1, 1, 1, 0, 0, 0, 0, 0, 0], false),
            (&[1, 0, 0, 0, 1, 0, 0, 0, 1], false),
        ];
        for (turns, doubtful) in cases {
            let mut doubt = Doubt::default();
            for lost in turns {
                doubt.turn(*lost, &DirectoryUsage::default());
            }
            assert_eq!(doubt.why().is_some(), doubtful, "{turns:?}");
        }
    }

    #[test]
    fn a_pod_that_cannot_be_counted_is_doubtful_at_once_and_only_as_long() {
        let deep = DirectoryUsage {
            uncountable: Some("too deep".to_owned()),
            ..DirectoryUsage::default()
        };
        let mut doubt = Doubt::default();
        doubt.turn(0, &deep);
        let words = "The pod's disk usage cannot be measured: too deep. ";
        assert_eq!(doubt.why().as_deref(), Some(words));
        doubt.turn(0, &DirectoryUsage::default());
        assert_eq!(doubt.why(), None);
    }
}
