//! Decides whether a pod's measured disk use can be trusted. Pure.
//!
//! A pod that renames what is being counted loses entries of its count, so that it seems to use less
//! than it does, and other pods would be evicted for it when the disk is full. Harmless work loses
//! entries too: a data loader removes temporary files, a checkpoint is written and renamed. But it
//! loses another file or directory each time, and to hide space a pod must lose the same one again and
//! again. So a pod is doubtful only if the same inode was lost in [`COUNTS`] of its last [`WINDOW`]
//! counts: what is lost more rarely was found by more than half of them. An inode with another time of
//! creation is another file or directory. A pod is doubtful, too, if so many counts lost more entries
//! than are remembered, and at once if its directories are too deep or too many to count.
//!
//! Example: a pod that renames a directory without a pause is doubtful after 4 counts (40 seconds, or 8
//! while the disk is too full), and trusted again after 5 counts without a loss. Limit: a count of a
//! pod with very many files takes several turns, and so does the doubt.

use std::collections::BTreeMap;
use std::time::SystemTime;

use runtime::usage::MAX_LOST;

/// The counts that are remembered, one bit for each.
const WINDOW: u32 = u8::BITS;
/// In so many of them the same entry must be lost.
const COUNTS: u32 = 4;

/// What is known about one pod's counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Doubt {
    /// The entries that the last counts lost, by inode; at most [`MAX_LOST`] of each count, and one.
    lost: BTreeMap<u64, Losses>,
    /// Why some of it could not be counted, at the last turn.
    uncountable: Option<String>,
}

/// The losses of one entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Losses {
    /// When it was created, if that is known.
    created: Option<SystemTime>,
    /// One bit for each of the last counts, the latest lowest: whether it was lost.
    counts: u8,
}

impl Doubt {
    /// Records a turn: why some of the pod could not be counted.
    pub fn turn(&mut self, uncountable: Option<&str>) {
        self.uncountable = uncountable.map(str::to_owned);
    }

    /// Records the entries that a complete count lost, with the times of their creation.
    pub fn count(&mut self, lost: &BTreeMap<u64, Option<SystemTime>>) {
        self.lost.retain(|_, losses| {
            losses.counts <<= 1;
            losses.counts != 0
        });
        for (inode, created) in lost {
            let losses = self.lost.entry(*inode).or_default();
            let another = |before: SystemTime| created.is_some_and(|now| now != before);
            if losses.created.is_some_and(another) {
                *losses = Losses::default();
            }
            losses.created = created.or(losses.created);
            losses.counts |= 1;
        }
    }

    /// Why the measured use may be too low, in a sentence; none if it can be trusted.
    pub fn why(&self) -> Option<String> {
        if let Some(why) = &self.uncountable {
            return Some(format!("The pod's disk usage cannot be measured: {why}. "));
        }
        let counts = self.lost.values().map(|losses| losses.counts.count_ones());
        let most = counts.max().filter(|most| *most >= COUNTS)?;
        Some(format!(
            "The pod's disk usage is doubtful: {most} of the last {WINDOW} counts lost the same files or directories, or more than {MAX_LOST}, which were renamed or removed meanwhile. "
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// What a count lost: inodes, with the times of their creation, in seconds.
    type Lost = &'static [(u64, Option<u64>)];

    fn record(doubt: &mut Doubt, lost: Lost) {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let lost = lost
            .iter()
            .map(|(inode, created)| (*inode, created.map(at)));
        doubt.count(&lost.collect());
    }

    #[test]
    fn a_pod_is_doubtful_when_several_recent_counts_lost_the_same_entry() {
        const A: Lost = &[(7, None)];
        const B: Lost = &[(8, None)];
        const BOTH: Lost = &[(7, Some(1)), (8, Some(1))];
        const NONE: Lost = &[];
        let cases: [(&[Lost], bool); 11] = [
            (&[], false),
            (&[A, A, A], false),
            (&[A, A, A, A], true),
            // Temporary files and checkpoints: others each time.
            (&[A, B, &[(9, None)], &[(10, None)], &[(11, None)]], false),
            (&[A, B, A, B, A, B], false),
            (&[A, BOTH, NONE, A, B, NONE, A], true),
            (&[A, A, A, A, NONE, NONE, NONE, NONE], true),
            // The first of them is forgotten.
            (&[A, A, A, A, NONE, NONE, NONE, NONE, NONE], false),
            // One inode, and another directory each time.
            (
                &[
                    &[(7, Some(1))],
                    &[(7, Some(2))],
                    &[(7, Some(3))],
                    &[(7, Some(4))],
                ],
                false,
            ),
            (&[BOTH, BOTH, A, BOTH], true),
            (&[BOTH, BOTH, BOTH, &[(7, Some(2)), (8, Some(2))]], false),
        ];
        for (counts, doubtful) in cases {
            let mut doubt = Doubt::default();
            for lost in counts {
                record(&mut doubt, lost);
            }
            assert_eq!(doubt.why().is_some(), doubtful, "{counts:?}");
        }
    }

    #[test]
    fn a_pod_that_is_trusted_again_leaves_nothing_behind() {
        let mut doubt = Doubt::default();
        for _ in 0..COUNTS {
            record(&mut doubt, &[(7, None)]);
        }
        assert!(doubt.why().is_some());
        for _ in 0..WINDOW {
            record(&mut doubt, &[]);
        }
        assert_eq!(doubt, Doubt::default());
    }

    #[test]
    fn a_pod_that_cannot_be_counted_is_doubtful_at_once_and_only_as_long() {
        let mut doubt = Doubt::default();
        doubt.turn(Some("too deep"));
        let words = "The pod's disk usage cannot be measured: too deep. ";
        assert_eq!(doubt.why().as_deref(), Some(words));
        doubt.turn(None);
        assert_eq!(doubt.why(), None);
    }
}
