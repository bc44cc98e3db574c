//! The clock that measures nodes' silence. It runs only while this server is awake and listening.
//! Pure: the caller passes the readings of the machine's clock.
//!
//! A server that is stopped (SIGSTOP), suspended with its machine, or so busy that its tasks do not
//! run, hears no node, however alive these are. It cannot notice that while it lasts. It notices
//! afterwards, because two successive readings lie further apart than a working server leaves them.
//! The whole time between the two does not count as silence. After a long gap the sessions of the
//! agents may have ended as well, and each node has a full grace period to return.
//!
//! A server that is stopped repeatedly must still notice a dead node. So a gap starts a new grace
//! period only while the silence, over all the time that the server was awake, is shorter than
//! [`GRACES_MAX`] grace periods.
//!
//! Example: with a grace of 40 s a node was silent for 39 s, and then the server is stopped for 60
//! s. The node has 40 s from when the server goes on. After a stop of 5 s it has 1 s: its session
//! has outlasted the stop, and it had not renewed its lease for 39 s in which the server listened.

use std::time::Duration;

/// The shortest gap that is noticed. Below it, a busy machine cannot be told from a stopped one.
const TOLERANCE_LEAST: Duration = Duration::from_secs(1);
/// How many missed readings make a gap.
const READINGS_MISSED: u32 = 3;
/// A gap of at least this fraction of the grace period gives every node a full grace period. At the
/// usual 40 s that is a gap of 10 s, half of the time that ends an agent's session.
const LONG_GAPS_PER_GRACE: u32 = 4;
/// After this many grace periods of silence while the server was awake, gaps start no new one.
const GRACES_MAX: u32 = 4;

/// The time that this server was awake.
#[derive(Debug)]
pub(super) struct ServerClock {
    /// Readings further apart than this have a gap between them.
    tolerance: Duration,
    /// A gap this long starts every node's grace period again.
    long_gap: Duration,
    /// The last reading of the machine's clock.
    last: Option<Duration>,
    awake: Duration,
    /// Silence before this time does not count, unless it reaches `silence_max`.
    counts_from: Duration,
    /// Silence before this time does not count: no sign of life could be recorded until then.
    deaf_until: Duration,
    /// Silence of this length counts regardless of gaps.
    silence_max: Duration,
}

impl ServerClock {
    /// A clock that is read at least `every` so often by a server that is awake.
    pub(super) fn new(grace: Duration, every: Duration) -> ServerClock {
        let tolerance = every.saturating_mul(READINGS_MISSED).max(TOLERANCE_LEAST);
        ServerClock {
            tolerance,
            long_gap: (grace / LONG_GAPS_PER_GRACE).max(tolerance),
            last: None,
            awake: Duration::ZERO,
            counts_from: Duration::ZERO,
            deaf_until: Duration::ZERO,
            silence_max: grace.saturating_mul(GRACES_MAX),
        }
    }

    /// Takes a reading of a clock that is never set, and that also runs while the machine is
    /// suspended. Returns the gap since the last reading, if there is one.
    pub(super) fn read(&mut self, clock: Duration) -> Option<Duration> {
        let passed = clock.saturating_sub(self.last.unwrap_or(clock));
        self.last = Some(clock);
        if passed <= self.tolerance {
            self.awake += passed;
            return None;
        }
        if passed >= self.long_gap {
            self.counts_from = self.awake;
        }
        Some(passed)
    }

    /// The time now, for [`ServerClock::silence`].
    pub(super) fn now(&self) -> Duration {
        self.awake
    }

    /// How long a node that was last heard at this time has been silent.
    pub(super) fn silence(&self, heartbeat: Duration) -> Duration {
        let heartbeat = heartbeat.max(self.deaf_until);
        let whole = self.since(heartbeat);
        if whole >= self.silence_max {
            return whole;
        }
        self.since(heartbeat.max(self.counts_from))
    }

    /// How long this server has been awake since then, whether or not it could hear.
    pub(super) fn since(&self, then: Duration) -> Duration {
        self.awake.saturating_sub(then)
    }

    /// The server was awake and could not record signs of life: every node's grace period starts
    /// again.
    pub(super) fn was_deaf(&mut self) {
        self.deaf_until = self.awake;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GRACE: Duration = Duration::from_secs(40);
    const EVERY: Duration = Duration::from_secs(1);

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    /// Reads the clock each second while awake, and not while stopped. A step is how long the server is
    /// awake, and how long it is stopped after that; the node is last heard at the start.
    fn silence_after(steps: &[(u64, u64)]) -> Duration {
        let mut clock = ServerClock::new(GRACE, EVERY);
        let mut now = 1_000;
        clock.read(seconds(now));
        let heartbeat = clock.now();
        for (awake, stopped) in steps {
            for _ in 0..*awake {
                now += 1;
                clock.read(seconds(now));
            }
            now += stopped;
            clock.read(seconds(now));
        }
        clock.silence(heartbeat)
    }

    #[test]
    fn only_the_time_that_the_server_was_awake_is_silence() {
        /// The case's name, the seconds awake and stopped in turn, and the silence in seconds.
        type Row<'a> = (&'a str, &'a [(u64, u64)], u64);
        let table: [Row<'_>; 11] = [
            ("never stopped", &[(39, 0)], 39),
            ("dead, and never stopped", &[(40, 0)], 40),
            ("stopped for 60 s", &[(9, 60), (3, 0)], 3),
            ("stopped for an hour", &[(9, 3600)], 0),
            (
                "stopped again and again for 5 s",
                &[(9, 5), (9, 5), (9, 5)],
                27,
            ),
            (
                "the same, and really dead",
                &[(9, 5), (9, 5), (9, 5), (9, 5), (9, 5)],
                45,
            ),
            ("died while the server was stopped", &[(1, 60), (40, 0)], 40),
            ("stopped for 10 s after 39 s of silence", &[(39, 10)], 0),
            ("late by less than the tolerance", &[(10, 3), (10, 3)], 26),
            ("stopped for 60 s four times", &[(39, 60); 4], 0),
            (
                "stopped too often",
                &[(39, 60), (39, 60), (39, 60), (43, 60)],
                160,
            ),
        ];
        for (what, steps, silent) in table {
            assert_eq!(silence_after(steps), seconds(silent), "{what}");
        }
    }

    #[test]
    fn the_tolerance_and_the_long_gap_are_exact() {
        let gap = |from: u64, millis: u64| {
            let mut clock = ServerClock::new(GRACE, EVERY);
            clock.read(seconds(from));
            clock.read(seconds(from) + Duration::from_millis(millis))
        };
        assert_eq!(gap(5, 3_000), None);
        assert_eq!(gap(5, 3_001), Some(Duration::from_millis(3_001)));
        let left = |stopped: u64| silence_after(&[(20, stopped)]);
        assert_eq!(left(9), seconds(20), "a short gap only does not count");
        assert_eq!(left(10), seconds(0), "a long one starts the grace anew");
    }

    #[test]
    fn a_gap_is_no_sign_of_life() {
        let mut clock = ServerClock::new(GRACE, EVERY);
        for second in 0..=50 {
            clock.read(seconds(second));
        }
        clock.read(seconds(1_000));
        assert_eq!(clock.silence(seconds(0)), seconds(0));
        assert_eq!(clock.since(seconds(0)), seconds(50));
    }

    #[test]
    fn a_server_that_could_not_write_starts_every_grace_anew() {
        let mut clock = ServerClock::new(GRACE, EVERY);
        for second in 0..60 {
            clock.read(seconds(second));
        }
        assert_eq!(clock.silence(seconds(0)), seconds(59));
        clock.was_deaf();
        assert_eq!(clock.silence(seconds(0)), seconds(0));
        clock.read(seconds(60));
        assert_eq!(clock.silence(seconds(0)), seconds(1));
    }

    proptest! {
        #[test]
        fn silence_is_never_longer_than_the_time_between_close_readings(
            waits in prop::collection::vec(0_u64..100_000, 1..60),
        ) {
            let mut clock = ServerClock::new(GRACE, EVERY);
            let mut now = Duration::ZERO;
            clock.read(now);
            let mut close = Duration::ZERO;
            for wait in waits {
                let wait = Duration::from_millis(wait);
                now += wait;
                let gap = clock.read(now);
                prop_assert_eq!(gap.is_some(), wait > seconds(3));
                if gap.is_none() {
                    close += wait;
                }
                prop_assert!(clock.silence(Duration::ZERO) <= close);
            }
            // A clock that goes backward is ignored, and counts nothing.
            let before = clock.now();
            clock.read(Duration::ZERO);
            prop_assert_eq!(clock.now(), before);
        }
    }
}
