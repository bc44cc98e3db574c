//! Slows down the guessing of passwords without locking legitimate users out.
//!
//! Failures are counted by address and by name together with the address: both make that address
//! wait, longer each time. They are also counted by name, but that only delays a response by up to
//! [`LONGEST_DELAY`]: an attacker that fails deliberately for `admin` cannot prevent other
//! addresses from signing in as `admin`. An attempt counts as failed from its start, so that
//! concurrent attempts gain nothing.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;

use crate::error::IdentityError;

/// Failures for one name from one address before the first wait.
const FREE_FAILURES: u32 = 5;

/// Failures from one address, for any names, before the first wait: several users may share it.
const FREE_FAILURES_OF_ADDRESS: u32 = 20;

/// The longest wait for one name from one address.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// The longest wait of an address for all names.
const LONGEST_WAIT_OF_ADDRESS: Duration = Duration::from_secs(60);

/// The delay that each further failure for a name adds to the next response for it.
const DELAY_STEP: Duration = Duration::from_millis(100);

/// The longest such delay.
const LONGEST_DELAY: Duration = Duration::from_secs(1);

/// The maximum number of names, addresses and pairs that are stored, of each; beyond it the entry
/// with the oldest last failure is dropped.
const REMEMBERED: usize = 10_000;

/// The maximum length of a name, in bytes: no user has a longer one.
const LONGEST_NAME: usize = 40;

#[derive(Default)]
pub(crate) struct Throttle(Mutex<FailureCounts>);

#[derive(Default)]
struct FailureCounts {
    names: FailureTable<String>,
    addresses: FailureTable<IpAddr>,
    pairs: FailureTable<(String, IpAddr)>,
}

#[derive(Clone, Copy)]
struct Failures {
    count: u32,
    last: Timestamp,
    /// Its position in the order of failures.
    place: u64,
}

impl Failures {
    /// How long after the last failure the next attempt may come.
    fn wait(&self, free: u32, longest: Duration) -> Duration {
        match self.count.checked_sub(free) {
            None => Duration::ZERO,
            Some(over) => longest.min(Duration::from_secs(1 << over.min(9))),
        }
    }
}

/// Failures by key, bounded.
struct FailureTable<K> {
    failures: BTreeMap<K, Failures>,
    /// The keys in the order of their last failures.
    order: BTreeMap<u64, K>,
    next: u64,
}

impl<K> Default for FailureTable<K> {
    fn default() -> Self {
        FailureTable {
            failures: BTreeMap::new(),
            order: BTreeMap::new(),
            next: 0,
        }
    }
}

impl<K: Ord + Clone> FailureTable<K> {
    /// The remaining wait.
    fn left(&self, key: &K, free: u32, longest: Duration, now: Timestamp) -> Duration {
        let Some(failures) = self.failures.get(key) else {
            return Duration::ZERO;
        };
        let passed = Duration::try_from(now.duration_since(failures.last)).unwrap_or_default();
        failures.wait(free, longest).saturating_sub(passed)
    }

    fn count(&self, key: &K) -> u32 {
        self.failures.get(key).map_or(0, |failures| failures.count)
    }

    fn add(&mut self, key: K, now: Timestamp) {
        let before = self.failures.get(&key).copied();
        if let Some(before) = before {
            self.order.remove(&before.place);
        } else if self.failures.len() >= REMEMBERED
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.failures.remove(&oldest);
        }
        let place = self.next;
        self.next += 1;
        self.order.insert(place, key.clone());
        let failures = Failures {
            count: before.map_or(0, |before| before.count).saturating_add(1),
            last: now,
            place,
        };
        self.failures.insert(key, failures);
    }

    fn take_back(&mut self, key: &K) {
        if let Some(failures) = self.failures.get_mut(key) {
            failures.count = failures.count.saturating_sub(1);
        }
    }

    fn forget(&mut self, key: &K) {
        if let Some(failures) = self.failures.remove(key) {
            self.order.remove(&failures.place);
        }
    }
}

/// An admitted attempt to sign in. It counts as failed until its owner reports otherwise.
pub(crate) struct SignInAttempt<'a> {
    throttle: &'a Throttle,
    name: String,
    address: IpAddr,
    delay: Duration,
}

impl SignInAttempt<'_> {
    /// The delay before the password is checked.
    pub(crate) fn delay(&self) -> Duration {
        self.delay
    }

    /// The password was right: resets the failures for this name. The failures of the address for
    /// other names stay: otherwise an attacker with one valid password could reset them.
    pub(crate) fn succeeded(self) {
        let mut counts = self.throttle.0.lock();
        counts.addresses.take_back(&self.address);
        counts.names.forget(&self.name);
        counts.pairs.forget(&(self.name, self.address));
    }

    /// No password was checked.
    pub(crate) fn take_back(self) {
        let mut counts = self.throttle.0.lock();
        counts.addresses.take_back(&self.address);
        counts.names.take_back(&self.name);
        counts.pairs.take_back(&(self.name, self.address));
    }
}

impl Throttle {
    /// Admits an attempt, or returns how long its address has to wait.
    pub(crate) fn begin(
        &self,
        name: &str,
        from: Option<IpAddr>,
        now: Timestamp,
    ) -> Result<SignInAttempt<'_>, IdentityError> {
        let address = from.map_or(Ipv6Addr::UNSPECIFIED.into(), origin);
        let mut counts = self.0.lock();
        let of_address = (counts.addresses).left(
            &address,
            FREE_FAILURES_OF_ADDRESS,
            LONGEST_WAIT_OF_ADDRESS,
            now,
        );
        if name.len() > LONGEST_NAME {
            // No user has such a name, and nothing is recorded.
            counts.addresses.add(address, now);
            if of_address.is_zero() {
                return Err(IdentityError::WrongPassword);
            }
            return Err(IdentityError::TooManyAttempts { wait: of_address });
        }
        let pair = (name.to_string(), address);
        let wait = of_address.max(counts.pairs.left(&pair, FREE_FAILURES, LONGEST_WAIT, now));
        if !wait.is_zero() {
            return Err(IdentityError::TooManyAttempts { wait });
        }
        let name = name.to_string();
        let over = (counts.names.count(&name) + 1).saturating_sub(FREE_FAILURES);
        let delay = DELAY_STEP.saturating_mul(over).min(LONGEST_DELAY);
        counts.names.add(name.clone(), now);
        counts.addresses.add(address, now);
        counts.pairs.add(pair, now);
        drop(counts);
        Ok(SignInAttempt {
            throttle: self,
            name,
            address,
            delay,
        })
    }
}

/// The address that failures are counted for. An IPv6 client usually controls its whole network of
/// 64 bits.
pub(crate) fn origin(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.into(),
        IpAddr::V6(v6) => {
            let network = u128::from(v6) & !u128::from(u64::MAX);
            Ipv6Addr::from(network).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    fn from(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, last]))
    }

    /// Fails as often as is allowed without a wait, concurrently.
    fn fail_freely(throttle: &Throttle, name: &str, address: Option<IpAddr>) {
        for _ in 0..FREE_FAILURES {
            throttle.begin(name, address, at(0)).unwrap();
        }
    }

    #[test]
    fn five_failures_are_free_and_then_each_waits_longer() {
        let throttle = Throttle::default();
        fail_freely(&throttle, "ann", from(1));
        assert!(throttle.begin("ann", from(1), at(0)).is_err());
        assert!(throttle.begin("ann", from(1), at(1)).is_ok());
        assert!(throttle.begin("ann", from(1), at(2)).is_err());
        assert!(throttle.begin("ann", from(1), at(3)).is_ok());
    }

    #[test]
    fn failures_of_other_addresses_do_not_lock_a_user_out() {
        let throttle = Throttle::default();
        for address in 1..=200 {
            fail_freely(&throttle, "admin", from(address));
        }
        assert!(throttle.begin("admin", from(1), at(0)).is_err());
        let admin = throttle.begin("admin", from(201), at(0)).unwrap();
        assert_eq!(admin.delay(), LONGEST_DELAY);
        admin.succeeded();
        let again = throttle.begin("admin", from(201), at(0)).unwrap();
        assert_eq!(again.delay(), Duration::ZERO);
    }

    #[test]
    fn a_name_is_answered_later_the_more_it_was_failed_for() {
        let throttle = Throttle::default();
        let delays: Vec<u128> = (1..=17)
            .map(|n| throttle.begin("ann", from(n), at(0)).unwrap())
            .map(|attempt| attempt.delay().as_millis())
            .collect();
        assert_eq!(delays[..7], [0, 0, 0, 0, 0, 100, 200]);
        assert_eq!(delays[14..], [1000, 1000, 1000]);
    }

    #[test]
    fn an_address_that_fails_for_many_names_waits_for_all_of_them() {
        let throttle = Throttle::default();
        for n in 0..FREE_FAILURES_OF_ADDRESS {
            throttle.begin(&format!("u{n}"), from(1), at(0)).unwrap();
        }
        assert!(throttle.begin("ann", from(1), at(0)).is_err());
        assert!(throttle.begin("ann", from(2), at(0)).is_ok());
        assert!(throttle.begin("ann", from(1), at(1)).is_ok());
    }

    #[test]
    fn a_right_password_forgets_the_names_failures_and_not_the_addresses() {
        let throttle = Throttle::default();
        for n in 0..FREE_FAILURES_OF_ADDRESS - 1 {
            throttle.begin(&format!("u{n}"), from(1), at(0)).unwrap();
        }
        throttle.begin("ann", from(1), at(0)).unwrap().succeeded();
        throttle.begin("bob", from(1), at(0)).unwrap();
        assert!(throttle.begin("ann", from(1), at(0)).is_err());
    }

    #[test]
    fn an_attempt_that_looked_at_no_password_costs_nothing() {
        let throttle = Throttle::default();
        for _ in 0..2 * FREE_FAILURES_OF_ADDRESS {
            throttle.begin("ann", from(1), at(0)).unwrap().take_back();
        }
        assert!(throttle.begin("ann", from(1), at(0)).is_ok());
    }

    #[test]
    fn a_name_longer_than_any_is_refused_and_not_kept() {
        let throttle = Throttle::default();
        let refused = throttle.begin(&"x".repeat(LONGEST_NAME + 1), from(1), at(0));
        assert!(matches!(refused, Err(IdentityError::WrongPassword)));
        assert!(throttle.0.lock().names.failures.is_empty());
        assert!(
            throttle
                .begin(&"x".repeat(LONGEST_NAME), from(1), at(0))
                .is_ok()
        );
        for _ in 0..FREE_FAILURES_OF_ADDRESS {
            let _ = throttle.begin(&"x".repeat(2_000_000), from(1), at(0));
        }
        let refused = throttle.begin(&"x".repeat(41), from(1), at(0));
        assert!(matches!(
            refused,
            Err(IdentityError::TooManyAttempts { .. })
        ));
    }

    #[test]
    fn no_more_are_remembered_than_the_bound_and_the_oldest_goes() {
        let mut table = FailureTable::default();
        for key in 0..REMEMBERED {
            table.add(key, at(0));
        }
        table.add(0, at(1));
        table.add(REMEMBERED, at(1));
        assert_eq!(table.failures.len(), REMEMBERED);
        assert_eq!(table.order.len(), REMEMBERED);
        assert_eq!((table.count(&0), table.count(&1)), (2, 0));
        table.forget(&0);
        assert_eq!(table.order.len(), REMEMBERED - 1);
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one_address() {
        let parse = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(
            origin(parse("2001:db8::1")),
            origin(parse("2001:db8::ffff:2"))
        );
        assert_ne!(
            origin(parse("2001:db8::1")),
            origin(parse("2001:db8:0:1::1"))
        );
        assert_eq!(origin(parse("::ffff:10.0.0.1")), parse("10.0.0.1"));
    }
}
