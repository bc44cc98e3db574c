//! Slows down guessing: after some failures a name must wait, longer each time.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;

use crate::IdentityError;

/// Failures that cost nothing.
const FREE_FAILURES: u32 = 5;

/// The longest wait.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// The most names remembered; past it the oldest failure is forgotten.
const REMEMBERED: usize = 10_000;

#[derive(Default)]
pub(crate) struct Throttle(Mutex<BTreeMap<String, Failures>>);

struct Failures {
    count: u32,
    last: Timestamp,
}

impl Failures {
    fn wait(&self) -> Duration {
        match self.count.checked_sub(FREE_FAILURES) {
            None => Duration::ZERO,
            Some(over) => LONGEST_WAIT.min(Duration::from_secs(1 << over.min(9))),
        }
    }
}

impl Throttle {
    pub(crate) fn admit(&self, user: &str, now: Timestamp) -> Result<(), IdentityError> {
        let names = self.0.lock();
        let Some(failures) = names.get(user) else {
            return Ok(());
        };
        let passed = Duration::try_from(now.duration_since(failures.last)).unwrap_or_default();
        match failures.wait().checked_sub(passed) {
            Some(wait) if !wait.is_zero() => Err(IdentityError::TooManyAttempts { wait }),
            _ => Ok(()),
        }
    }

    pub(crate) fn failed(&self, user: &str, now: Timestamp) {
        let mut names = self.0.lock();
        if names.len() >= REMEMBERED && !names.contains_key(user) {
            let oldest = names
                .iter()
                .min_by_key(|(_, f)| f.last)
                .map(|(name, _)| name.clone());
            if let Some(oldest) = oldest {
                names.remove(&oldest);
            }
        }
        let entry = names.entry(user.to_string()).or_insert(Failures {
            count: 0,
            last: now,
        });
        entry.count = entry.count.saturating_add(1);
        entry.last = now;
    }

    pub(crate) fn succeeded(&self, user: &str) {
        self.0.lock().remove(user);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    #[test]
    fn five_failures_are_free_and_then_each_waits_longer() {
        let throttle = Throttle::default();
        for _ in 0..FREE_FAILURES {
            throttle.admit("ann", at(0)).unwrap();
            throttle.failed("ann", at(0));
        }
        assert!(throttle.admit("ann", at(0)).is_err());
        assert!(throttle.admit("ann", at(1)).is_ok());
        throttle.failed("ann", at(1));
        assert!(throttle.admit("ann", at(2)).is_err());
        assert!(throttle.admit("ann", at(3)).is_ok());
    }

    #[test]
    fn one_name_does_not_slow_another_and_success_forgets() {
        let throttle = Throttle::default();
        for _ in 0..20 {
            throttle.failed("ann", at(0));
        }
        assert!(throttle.admit("bob", at(0)).is_ok());
        assert!(throttle.admit("ann", at(299)).is_err());
        assert!(throttle.admit("ann", at(300)).is_ok());
        throttle.succeeded("ann");
        assert!(throttle.admit("ann", at(0)).is_ok());
    }
}
