//! What is remembered of second factors while the server runs: users whose password was right and whose code is awaited,
//! secrets that users are about to confirm, the steps of codes that were used, and wrong codes. Pure: time and random
//! values are parameters. A restart forgets all of it; the step of the last code is stored with the factor, too.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::limits::{
    CODE_WAIT_TTL, CODE_WAITS_MAX, CODE_WAITS_PER_USER_MAX, ENROLMENT_TTL, WRONG_CODES_MAX,
    WRONG_CODES_WINDOW,
};
use crate::totp::TotpSecret;

/// A user whose password was right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CodeWait {
    pub(crate) user: String,
    /// The hash of the password that was right: another one ends the wait.
    pub(crate) hash: String,
    begun: Timestamp,
}

/// The wrong codes of a user, from all addresses.
#[derive(Clone, Copy, Debug)]
struct WrongCodes {
    count: usize,
    since: Timestamp,
}

/// A secret that a user is about to confirm.
struct Enrolment {
    /// The session in which it began: another one of the same user does not see the secret.
    session: String,
    secret: TotpSecret,
    begun: Timestamp,
}

/// See the module.
#[derive(Default)]
pub(crate) struct FactorChecks {
    /// By the digest of the secret that the browser has.
    waits: BTreeMap<String, CodeWait>,
    enrolments: BTreeMap<String, Enrolment>,
    used: BTreeMap<String, i64>,
    wrong: BTreeMap<String, WrongCodes>,
}

fn since(then: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(then)).unwrap_or_default()
}

impl FactorChecks {
    /// A user's password was right; its code is awaited under this digest.
    pub(crate) fn wait_for_code(
        &mut self,
        digest: String,
        user: &str,
        hash: String,
        now: Timestamp,
    ) {
        (self.waits).retain(|_, wait| since(wait.begun, now) < CODE_WAIT_TTL);
        let of_user = self.waits.values().filter(|wait| wait.user == user).count();
        if of_user >= CODE_WAITS_PER_USER_MAX {
            self.end_oldest(|wait| wait.user == user);
        }
        if self.waits.len() >= CODE_WAITS_MAX {
            self.end_oldest(|_| true);
        }
        let wait = CodeWait {
            user: user.to_owned(),
            hash,
            begun: now,
        };
        self.waits.insert(digest, wait);
    }

    fn end_oldest(&mut self, counted: impl Fn(&CodeWait) -> bool) {
        let all = self.waits.iter().filter(|(_, wait)| counted(wait));
        let oldest = all.min_by_key(|(_, wait)| wait.begun);
        if let Some(digest) = oldest.map(|(digest, _)| digest.clone()) {
            self.waits.remove(&digest);
        }
    }

    /// The wait with this digest.
    pub(crate) fn waiting(&self, digest: &str, now: Timestamp) -> Option<CodeWait> {
        let wait = self.waits.get(digest)?;
        (since(wait.begun, now) < CODE_WAIT_TTL).then(|| wait.clone())
    }

    /// Ends a wait; false if there is none, as after a second code that came at the same time.
    pub(crate) fn end_wait(&mut self, digest: &str) -> bool {
        self.waits.remove(digest).is_some()
    }

    /// How long a user's codes are refused, after too many wrong ones.
    pub(crate) fn locked(&self, user: &str, now: Timestamp) -> Option<Duration> {
        let wrong = self.wrong.get(user)?;
        let left = WRONG_CODES_WINDOW.saturating_sub(since(wrong.since, now));
        (wrong.count >= WRONG_CODES_MAX && !left.is_zero()).then_some(left)
    }

    /// Counts an attempt as wrong until [`FactorChecks::was_right`] says otherwise, so that attempts at the same time
    /// count too.
    pub(crate) fn attempt(&mut self, user: &str, now: Timestamp) {
        (self.wrong).retain(|_, wrong| since(wrong.since, now) < WRONG_CODES_WINDOW);
        let wrong = self.wrong.entry(user.to_owned()).or_insert(WrongCodes {
            count: 0,
            since: now,
        });
        wrong.count += 1;
    }

    /// A code was right: the user's wrong ones are forgotten.
    pub(crate) fn was_right(&mut self, user: &str) {
        self.wrong.remove(user);
    }

    /// Uses the code of a step; false if that code, or a later one, was used before.
    pub(crate) fn use_step(&mut self, user: &str, step: i64) -> bool {
        if self.used.get(user).is_some_and(|last| step <= *last) {
            return false;
        }
        self.used.insert(user.to_owned(), step);
        true
    }

    /// Begins the enrolment of a user in a session, in place of an earlier one.
    pub(crate) fn enrol(&mut self, user: &str, session: &str, secret: TotpSecret, now: Timestamp) {
        (self.enrolments).retain(|_, enrolment| since(enrolment.begun, now) < ENROLMENT_TTL);
        let enrolment = Enrolment {
            session: session.to_owned(),
            secret,
            begun: now,
        };
        self.enrolments.insert(user.to_owned(), enrolment);
    }

    /// The secret that a user is about to confirm in this session.
    pub(crate) fn enrolment(
        &self,
        user: &str,
        session: &str,
        now: Timestamp,
    ) -> Option<TotpSecret> {
        let enrolment = self.enrolments.get(user)?;
        let holds = since(enrolment.begun, now) < ENROLMENT_TTL && enrolment.session == session;
        holds.then(|| enrolment.secret.clone())
    }

    /// Ends the enrolment of a user.
    pub(crate) fn end_enrolment(&mut self, user: &str) {
        self.enrolments.remove(user);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(3000 + second).unwrap()
    }

    fn checks() -> FactorChecks {
        FactorChecks::default()
    }

    #[test]
    fn a_code_is_used_once_and_none_of_an_earlier_step() {
        let mut checks = checks();
        let used: Vec<bool> = [99, 100, 101, 101, 100, 103, 102, 104]
            .into_iter()
            .map(|step| checks.use_step("ann", step))
            .collect();
        assert_eq!(used, [true, true, true, false, false, true, false, true]);
        assert!(checks.use_step("bob", 101));
    }

    #[test]
    fn a_wait_ends_in_time_and_the_oldest_ones_make_room() {
        let mut checks = checks();
        let wait = |checks: &mut FactorChecks, number: usize, user: &str, second| {
            checks.wait_for_code(format!("d{number}"), user, "h".into(), at(second));
        };
        wait(&mut checks, 0, "bob", 0);
        let ttl = i64::try_from(CODE_WAIT_TTL.as_secs()).unwrap();
        assert_eq!(checks.waiting("d0", at(ttl - 1)).unwrap().user, "bob");
        assert_eq!(checks.waiting("d0", at(ttl)), None);
        for number in 1..=CODE_WAITS_PER_USER_MAX + 1 {
            wait(&mut checks, number, "ann", i64::try_from(number).unwrap());
        }
        assert!(checks.waiting("d1", at(20)).is_none());
        assert!(checks.waiting("d0", at(20)).is_some() && checks.waiting("d2", at(20)).is_some());
        assert!(checks.end_wait("d2") && !checks.end_wait("d2"));
        for number in 100..100 + CODE_WAITS_MAX {
            wait(&mut checks, number, &format!("u{number}"), 30);
        }
        assert_eq!(checks.waits.len(), CODE_WAITS_MAX);
        assert!(checks.waiting("d0", at(30)).is_none());
    }

    #[test]
    fn wrong_codes_lock_a_user_for_a_while_and_a_right_one_forgets_them() {
        let mut checks = checks();
        for second in 0..WRONG_CODES_MAX {
            assert_eq!(checks.locked("ann", at(5)), None);
            checks.attempt("ann", at(i64::try_from(second).unwrap() % 2));
        }
        let window = i64::try_from(WRONG_CODES_WINDOW.as_secs()).unwrap();
        assert_eq!(
            checks.locked("ann", at(window - 1)),
            Some(Duration::from_secs(1))
        );
        assert_eq!(checks.locked("ann", at(window)), None);
        assert_eq!(checks.locked("bob", at(1)), None);
        checks.was_right("ann");
        assert_eq!(checks.locked("ann", at(1)), None);
        checks.attempt("ann", at(0));
        checks.attempt("bob", at(window));
        assert_eq!(checks.wrong.len(), 1);
    }

    #[test]
    fn an_enrolment_ends_in_time_and_a_new_one_replaces_it() {
        let mut checks = checks();
        checks.enrol("ann", "s", TotpSecret::new([1; 20]), at(0));
        checks.enrol("ann", "s", TotpSecret::new([2; 20]), at(10));
        let ttl = i64::try_from(ENROLMENT_TTL.as_secs()).unwrap();
        let held =
            |checks: &FactorChecks, second| checks.enrolment("ann", "s", at(second)).is_some();
        assert!(checks.enrolment("ann", "s", at(11)) == Some(TotpSecret::new([2; 20])));
        assert!(checks.enrolment("ann", "other", at(11)).is_none());
        assert!(held(&checks, ttl + 9) && !held(&checks, ttl + 10));
        checks.end_enrolment("ann");
        assert!(!held(&checks, 11));
    }
}
