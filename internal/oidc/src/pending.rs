//! The sign-ins that have begun and not ended. Each is taken out once, by the state that came back from the provider,
//! and only for the browser whose cookie has the sign-in's secret.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

use jiff::Timestamp;

use crate::claims::same;
use crate::limits::{PENDING_MAX, PENDING_PER_ADDRESS_MAX, SIGN_IN_TTL};

/// A sign-in that has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PendingSignIn {
    /// What the browser's cookie must have.
    pub(crate) browser: String,
    pub(crate) nonce: String,
    pub(crate) verifier: String,
    pub(crate) redirect: String,
    pub(crate) next: String,
    pub(crate) begun: Timestamp,
    pub(crate) from: Option<IpAddr>,
}

/// The pending sign-ins by state.
#[derive(Default)]
pub(crate) struct PendingSignIns(HashMap<String, PendingSignIn>);

/// The address, or its /64 network for IPv6, of which one host has all addresses.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
    }
}

impl PendingSignIns {
    /// Adds a sign-in. If there are too many, of its address or in all, the oldest of these ends.
    pub(crate) fn add(&mut self, state: String, mut new: PendingSignIn) {
        new.from = new.from.map(network);
        let now = new.begun;
        self.0.retain(|_, pending| !is_over(pending, now));
        let of_address = new.from;
        self.make_room(PENDING_PER_ADDRESS_MAX, |pending| {
            pending.from == of_address
        });
        self.make_room(PENDING_MAX, |_| true);
        self.0.insert(state, new);
    }

    fn make_room(&mut self, most: usize, counted: impl Fn(&PendingSignIn) -> bool) {
        let held = self.0.values().filter(|pending| counted(pending)).count();
        if held < most {
            return;
        }
        let all = self.0.iter().filter(|(_, pending)| counted(pending));
        let oldest = all.min_by_key(|(_, pending)| pending.begun);
        let oldest = oldest.map(|(state, _)| state.clone());
        if let Some(state) = oldest {
            self.0.remove(&state);
        }
    }

    /// Takes a sign-in out, whatever becomes of it; none if it is unknown, is over, or began in another browser.
    pub(crate) fn take(
        &mut self,
        state: &str,
        browser: &str,
        now: Timestamp,
    ) -> Option<PendingSignIn> {
        let pending = self.0.remove(state)?;
        (!is_over(&pending, now) && same(&pending.browser, browser)).then_some(pending)
    }
}

fn is_over(pending: &PendingSignIn, now: Timestamp) -> bool {
    let age = now.duration_since(pending.begun);
    age.is_negative() || age.unsigned_abs() > SIGN_IN_TTL
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    fn begun(from: &str, second: i64) -> PendingSignIn {
        PendingSignIn {
            browser: "b".to_owned(),
            nonce: "n".to_owned(),
            verifier: "v".to_owned(),
            redirect: "r".to_owned(),
            next: "/ui/".to_owned(),
            begun: at(second),
            from: Some(from.parse().unwrap()),
        }
    }

    #[test]
    fn a_sign_in_ends_once_in_its_browser_and_in_time() {
        let taken = |state: &str, browser: &str, second| {
            let mut all = PendingSignIns::default();
            all.add("s".to_owned(), begun("10.0.0.1", 0));
            let first = all.take(state, browser, at(second)).is_some();
            (first, all.take("s", "b", at(second)).is_some())
        };
        assert_eq!(taken("s", "b", 1), (true, false));
        assert_eq!(taken("s", "b", 600), (true, false));
        assert_eq!(taken("s", "b", 601), (false, false));
        assert_eq!(taken("s", "b", -1), (false, false));
        // An attempt from another browser ends it too.
        assert_eq!(taken("s", "c", 1), (false, false));
        assert_eq!(taken("s", "", 1), (false, false));
        assert_eq!(taken("t", "b", 1), (false, true));
    }

    #[test]
    fn one_address_ends_only_its_own_oldest_sign_in() {
        let mut all = PendingSignIns::default();
        all.add("other".to_owned(), begun("10.0.0.2", 0));
        for number in 0..=PENDING_PER_ADDRESS_MAX {
            let second = i64::try_from(number).unwrap();
            all.add(format!("s{number}"), begun("2001:db8::1", second));
        }
        assert_eq!(all.0.len(), PENDING_PER_ADDRESS_MAX + 1);
        assert!(all.0.contains_key("other") && !all.0.contains_key("s0"));
        // The same network.
        all.add("more".to_owned(), begun("2001:db8::ffff:2", 100));
        assert!(!all.0.contains_key("s1") && all.0.contains_key("more"));
    }

    #[test]
    fn no_more_are_held_than_the_bound_and_old_ones_make_room() {
        let mut all = PendingSignIns::default();
        for number in 0..PENDING_MAX + 5 {
            let second = i64::try_from(number).unwrap() / 100;
            let from = format!("10.{}.{}.1", number / 200, number % 200);
            all.add(format!("s{number}"), begun(&from, second));
        }
        assert_eq!(all.0.len(), PENDING_MAX);
        all.add("late".to_owned(), begun("10.99.0.1", 1000));
        assert_eq!(all.0.len(), 1);
    }

    proptest::proptest! {
        #[test]
        fn each_sign_in_is_taken_at_most_once(steps in proptest::collection::vec((0..3_u8, 0..2_u8, proptest::bool::ANY), 0..40)) {
            let mut all = PendingSignIns::default();
            let mut open = std::collections::BTreeSet::new();
            for (second, (state, browser, add)) in steps.into_iter().enumerate() {
                let second = i64::try_from(second).unwrap();
                let name = format!("s{state}");
                if add {
                    all.add(name.clone(), begun("10.0.0.1", second));
                    open.insert(state);
                } else {
                    let browser = ["b", "c"][usize::from(browser)];
                    let taken = all.take(&name, browser, at(second)).is_some();
                    let was_open = open.remove(&state);
                    proptest::prop_assert_eq!(taken, was_open && browser == "b");
                }
            }
        }
    }
}
