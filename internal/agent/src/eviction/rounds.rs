//! When the next pod may be evicted because the disk is too full. Pure.
//!
//! One eviction is one round. A round ends when the evicted pod's files are gone and the free space
//! was read after that, or after [`PATIENCE`]; so no second pod is evicted for space that the first
//! one is about to free. A round is fruitless if the free space was at no time higher than at its
//! start. After [`FRUITLESS`] such rounds in a row the space is used by something that an eviction
//! does not free, for instance files that are removed and still open, and no pod is evicted for
//! [`PAUSE`]. Example: the agent evicts pod a at 0 s; a's files are gone at 3 s; at 6 s the disk is
//! still too full and the agent evicts b.

use std::time::Duration;

use tokio::time::Instant;

use super::pressure::Shortage;

/// How long an evicted pod may take to free space before the next pod is evicted.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// After so many evictions in a row that freed nothing the agent pauses.
const FRUITLESS: u32 = 2;
/// How long it pauses.
pub const PAUSE: Duration = Duration::from_secs(300);

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Evict a pod.
    Evict,
    /// Wait for the evicted pod, or until the pause ends.
    Wait,
    /// A pause begins.
    Pause,
}

/// The evictions for free space on one node.
#[derive(Debug, Default)]
pub struct Rounds {
    round: Option<EvictionRound>,
    /// Rounds in a row that freed nothing.
    fruitless: u32,
    paused_until: Option<Instant>,
}

/// The round that is under way.
#[derive(Debug)]
struct EvictionRound {
    victim: String,
    since: Instant,
    /// The shortage at its start.
    before: Shortage,
    /// Whether there was more free space since.
    freed: bool,
    /// Whether the victim's files are gone.
    gone: bool,
}

impl Rounds {
    /// Records the free space: the shortage, or that there is none.
    pub fn saw(&mut self, short: Option<Shortage>) {
        if let Some(round) = &mut self.round {
            round.freed |= short.is_none_or(|now| now.is_less_than(round.before));
        }
        if short.is_none() {
            (self.fruitless, self.paused_until) = (0, None);
        }
    }

    /// What to do about a shortage. `left`: whether files of the evicted pod are still there.
    pub fn next(&mut self, left: impl FnOnce(&str) -> bool, now: Instant) -> Next {
        if self.paused_until.is_some_and(|until| now < until) {
            return Next::Wait;
        }
        if self.paused_until.take().is_some() {
            self.fruitless = 0;
        }
        if let Some(round) = &mut self.round {
            let waiting = now.duration_since(round.since) < PATIENCE;
            // One more turn after the files are gone: the free space must be read after that.
            let over = std::mem::replace(&mut round.gone, !left(&round.victim));
            if waiting && !over {
                return Next::Wait;
            }
            self.fruitless = if round.freed { 0 } else { self.fruitless + 1 };
            self.round = None;
            if self.fruitless >= FRUITLESS {
                self.paused_until = Some(now + PAUSE);
                return Next::Pause;
            }
        }
        Next::Evict
    }

    /// Records that a pod is evicted.
    pub fn begin(&mut self, victim: &str, short: Shortage, now: Instant) {
        self.round = Some(EvictionRound {
            victim: victim.to_owned(),
            since: now,
            before: short,
            freed: false,
            gone: false,
        });
    }

    /// A sentence about the pause, for users; empty if there is none.
    pub fn message(&self, now: Instant) -> String {
        match self.paused_until {
            Some(until) if now < until => format!(
                "The last {FRUITLESS} evictions freed nothing, so no pod is evicted for {} s; look for files that are removed and still open (lsof +L1), and for files that belong to no pod. ",
                PAUSE.as_secs()
            ),
            _ => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shortage of 100 bytes with so many left.
    fn left(bytes: u64) -> Option<Shortage> {
        Some(Shortage::Bytes(100, bytes))
    }

    /// One step: the second; the free bytes (none: enough); whether the victim's files are there;
    /// the expected answer. After [`Next::Evict`] a pod is evicted.
    type Step = (u64, Option<u64>, bool, Next);

    fn walk(steps: &[Step]) -> (Rounds, Instant) {
        let start = Instant::now();
        let mut rounds = Rounds::default();
        let mut now = start;
        for (second, free, files, expected) in steps {
            now = start + Duration::from_secs(*second);
            let short = free.and_then(left);
            rounds.saw(short);
            let Some(short) = short else { continue };
            assert_eq!(rounds.next(|_| *files, now), *expected, "at {second} s");
            if *expected == Next::Evict {
                rounds.begin("victim", short, now);
            }
        }
        (rounds, now)
    }

    #[test]
    fn a_second_pod_is_evicted_only_after_the_first_ones_files_are_gone() {
        walk(&[
            (0, Some(5), false, Next::Evict),
            (2, Some(4), true, Next::Wait),
            (50, Some(4), true, Next::Wait),
            // Gone, but the free space may have been read before.
            (52, Some(4), false, Next::Wait),
            (54, Some(9), false, Next::Evict),
        ]);
    }

    #[test]
    fn a_pod_that_does_not_go_is_waited_for_so_long_and_no_longer() {
        walk(&[
            (0, Some(5), true, Next::Evict),
            (59, Some(5), true, Next::Wait),
            (60, Some(5), true, Next::Evict),
        ]);
    }

    #[test]
    fn a_round_goes_on_when_the_shortage_passes_for_a_moment() {
        walk(&[
            (0, Some(5), true, Next::Evict),
            (1, None, true, Next::Wait),
            (2, Some(5), true, Next::Wait),
            (4, Some(5), false, Next::Wait),
            (6, Some(5), false, Next::Evict),
        ]);
    }

    #[test]
    fn two_evictions_that_free_nothing_bring_a_pause() {
        let (rounds, now) = walk(&[
            (0, Some(5), false, Next::Evict),
            (2, Some(5), false, Next::Wait),
            (4, Some(5), false, Next::Evict),
            (6, Some(3), false, Next::Wait),
            (8, Some(5), false, Next::Pause),
            (10, Some(5), false, Next::Wait),
            (307, Some(5), false, Next::Wait),
        ]);
        assert!(rounds.message(now).contains("freed nothing"));
        assert_eq!(rounds.message(now + Duration::from_secs(1)), "");
        walk(&[
            (0, Some(5), false, Next::Evict),
            (2, Some(5), false, Next::Wait),
            (4, Some(5), false, Next::Evict),
            (6, Some(5), false, Next::Wait),
            (8, Some(5), false, Next::Pause),
            (308, Some(5), false, Next::Evict),
            // The count of fruitless rounds begins again.
            (310, Some(5), false, Next::Wait),
            (312, Some(5), false, Next::Evict),
        ]);
    }

    #[test]
    fn an_eviction_that_frees_space_ends_the_row_of_fruitless_ones() {
        walk(&[
            (0, Some(5), false, Next::Evict),
            (2, Some(5), false, Next::Wait),
            (4, Some(5), false, Next::Evict),
            // Another pod takes the freed space at once.
            (5, Some(6), false, Next::Wait),
            (6, Some(5), false, Next::Evict),
            (8, Some(5), false, Next::Wait),
            (10, Some(5), false, Next::Evict),
            (12, Some(5), false, Next::Wait),
            (14, Some(5), false, Next::Pause),
        ]);
    }

    #[test]
    fn a_pause_ends_when_there_is_space() {
        walk(&[
            (0, Some(5), false, Next::Evict),
            (2, Some(5), false, Next::Wait),
            (4, Some(5), false, Next::Evict),
            (6, Some(5), false, Next::Wait),
            (8, Some(5), false, Next::Pause),
            (9, None, false, Next::Wait),
            (10, Some(5), false, Next::Evict),
        ]);
    }
}
