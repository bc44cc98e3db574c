//! Sign-ins of programs by the device authorization grant (RFC 8628), from a program's request until it has fetched its
//! token. Pure: time and random values are parameters. They are held in memory only: after a restart of the server a
//! program asks again.
//!
//! A program holds the secret device code, a person compares the short user code. A person can guess user codes, so codes
//! that are none are counted by person. Device codes are 256 random bits, and are stored as digests only.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;

use crate::error::IdentityError;
use crate::limits::{
    DEVICE_CODE_KEPT, DEVICE_CODE_TTL, DEVICE_CODES_MAX, DEVICE_CODES_PER_ADDRESS_MAX,
    DEVICE_GUESSES_MAX, DEVICE_POLL_INTERVAL, DEVICE_POLL_INTERVAL_MAX,
};
use crate::throttle::origin;
use crate::tokens::expiry;
use crate::user_code::UserCode;

/// What a program asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRequest {
    /// The program's own name, such as `ann@laptop`; it is not verified.
    pub client: String,
    /// The address that the program asks from.
    pub from: Option<IpAddr>,
    /// The only user that may approve it; any user if none.
    pub user: Option<String>,
    /// The lifetime of the token.
    pub token_ttl: Duration,
}

/// A request as a person sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLogin {
    /// The code, in the form in which programs show it.
    pub user_code: String,
    /// What is asked for.
    pub request: DeviceRequest,
    /// When it was asked for.
    pub begun: Timestamp,
    /// When the code expires.
    pub expires: Timestamp,
}

/// The answer to a program that asks whether its request is approved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DevicePoll {
    /// No person has decided yet.
    Pending,
    /// The same, and the program asks too often: it waits longer from now on.
    SlowDown,
    /// A person refused.
    Refused,
    /// The code has expired.
    Expired,
    /// There is no such code, or its token was fetched.
    Unknown,
    /// A user approved, and the request is taken out.
    Approved(Box<ApprovedLogin>),
}

/// A request that a user approved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApprovedLogin {
    /// The user.
    pub(crate) user: String,
    code: UserCode,
    held: HeldLogin,
}

impl ApprovedLogin {
    pub(crate) fn request(&self) -> &DeviceRequest {
        &self.held.request
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Decision {
    Open,
    Approved(String),
    Refused,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct HeldLogin {
    /// The digest of the device code.
    device: String,
    request: DeviceRequest,
    begun: Timestamp,
    expires: Timestamp,
    decision: Decision,
    interval: Duration,
    polled: Option<Timestamp>,
}

/// The codes that are none which a person offered.
#[derive(Clone, Copy, Debug)]
struct Guesses {
    count: usize,
    since: Timestamp,
}

/// The requests, and the wrong codes of each person.
#[derive(Default)]
pub(crate) struct DeviceLogins {
    held: BTreeMap<UserCode, HeldLogin>,
    guesses: BTreeMap<String, Guesses>,
}

/// How long ago a time is; zero if it is in the future, after the clock was set back.
fn since(then: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(then)).unwrap_or_default()
}

impl HeldLogin {
    fn is_over(&self, now: Timestamp) -> bool {
        now >= self.expires || now < self.begun
    }

    fn is_forgotten(&self, now: Timestamp) -> bool {
        now < self.begun || (now >= self.expires && since(self.expires, now) >= DEVICE_CODE_KEPT)
    }

    fn shown(&self, code: &UserCode) -> DeviceLogin {
        DeviceLogin {
            user_code: code.to_string(),
            request: self.request.clone(),
            begun: self.begun,
            expires: self.expires,
        }
    }
}

impl DeviceLogins {
    /// True if a request has this code.
    pub(crate) fn has(&self, code: &UserCode) -> bool {
        self.held.contains_key(code)
    }

    /// Adds a request under a code that no other has, with the digest of its device code.
    pub(crate) fn begin(
        &mut self,
        device: String,
        code: UserCode,
        mut request: DeviceRequest,
        now: Timestamp,
    ) -> Result<(), IdentityError> {
        self.held.retain(|_, held| !held.is_forgotten(now));
        request.from = request.from.map(|address| address.to_canonical());
        let network = request.from.map(origin);
        let of_address: Vec<&HeldLogin> = (self.held.values())
            .filter(|held| held.request.from.map(origin) == network && !held.is_over(now))
            .collect();
        if of_address.len() >= DEVICE_CODES_PER_ADDRESS_MAX {
            let first = of_address.iter().map(|held| held.begun).min();
            let passed = first.map_or(Duration::ZERO, |first| since(first, now));
            let wait = DEVICE_CODE_TTL.saturating_sub(passed);
            return Err(IdentityError::TooManyDeviceCodes { wait });
        }
        if self.held.len() >= DEVICE_CODES_MAX {
            self.make_room();
        }
        let held = HeldLogin {
            device,
            request,
            begun: now,
            expires: expiry(now, DEVICE_CODE_TTL),
            decision: Decision::Open,
            interval: DEVICE_POLL_INTERVAL,
            polled: None,
        };
        self.held.insert(code, held);
        Ok(())
    }

    /// Removes the oldest code of the address that has the most, so that one address with many codes ends no others'.
    fn make_room(&mut self) {
        let mut counts: BTreeMap<Option<IpAddr>, usize> = BTreeMap::new();
        for held in self.held.values() {
            *counts.entry(held.request.from.map(origin)).or_default() += 1;
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        let Some((network, _)) = most else {
            return;
        };
        let of_network = self.held.iter();
        let of_network = of_network.filter(|(_, held)| held.request.from.map(origin) == network);
        let oldest = of_network.min_by_key(|(_, held)| held.begun);
        if let Some(code) = oldest.map(|(code, _)| code.clone()) {
            self.held.remove(&code);
        }
    }

    /// The open request with a code that a user typed. A code that is none counts as a guess.
    pub(crate) fn find(
        &mut self,
        typed: &str,
        user: &str,
        now: Timestamp,
    ) -> Result<DeviceLogin, IdentityError> {
        let (code, held) = self.open(typed, user, now)?;
        Ok(held.shown(&code))
    }

    /// A user approves or refuses the open request with this code, once.
    pub(crate) fn decide(
        &mut self,
        typed: &str,
        user: &str,
        approve: bool,
        now: Timestamp,
    ) -> Result<DeviceLogin, IdentityError> {
        let (code, held) = self.open(typed, user, now)?;
        held.decision = match approve {
            true => Decision::Approved(user.to_owned()),
            false => Decision::Refused,
        };
        Ok(held.shown(&code))
    }

    fn open(
        &mut self,
        typed: &str,
        user: &str,
        now: Timestamp,
    ) -> Result<(UserCode, &mut HeldLogin), IdentityError> {
        if let Some(wait) = self.guess_wait(user, now) {
            return Err(IdentityError::TooManyCodes { wait });
        }
        let code = UserCode::typed(typed);
        let known = code.filter(|code| self.held.get(code).is_some_and(|held| !held.is_over(now)));
        let Some(code) = known else {
            self.count_guess(user, now);
            return Err(IdentityError::NoSuchUserCode);
        };
        let held = self.held.get_mut(&code).expect("it was found above");
        if held.decision != Decision::Open {
            return Err(IdentityError::UserCodeUsed);
        }
        match &held.request.user {
            Some(only) if only != user => Err(IdentityError::UserCodeOfAnother),
            _ => Ok((code, held)),
        }
    }

    fn guess_wait(&self, user: &str, now: Timestamp) -> Option<Duration> {
        let guesses = self.guesses.get(user)?;
        let wait = DEVICE_CODE_TTL.saturating_sub(since(guesses.since, now));
        (guesses.count >= DEVICE_GUESSES_MAX && !wait.is_zero()).then_some(wait)
    }

    fn count_guess(&mut self, user: &str, now: Timestamp) {
        (self.guesses).retain(|_, guesses| since(guesses.since, now) < DEVICE_CODE_TTL);
        let guesses = self.guesses.entry(user.to_owned()).or_insert(Guesses {
            count: 0,
            since: now,
        });
        guesses.count += 1;
    }

    /// The answer to a program with this digest of its device code. An end is answered once, and then the request is
    /// forgotten.
    pub(crate) fn poll(&mut self, device: &str, now: Timestamp) -> DevicePoll {
        let found = self.held.iter_mut().find(|(_, held)| held.device == device);
        let Some((code, held)) = found else {
            return DevicePoll::Unknown;
        };
        let code = code.clone();
        if held.is_over(now) {
            self.held.remove(&code);
            return DevicePoll::Expired;
        }
        match &held.decision {
            Decision::Open => {
                let before = held.polled.replace(now);
                if before.is_none_or(|before| since(before, now) >= held.interval) {
                    return DevicePoll::Pending;
                }
                held.interval =
                    (held.interval + DEVICE_POLL_INTERVAL).min(DEVICE_POLL_INTERVAL_MAX);
                DevicePoll::SlowDown
            }
            Decision::Refused => {
                self.held.remove(&code);
                DevicePoll::Refused
            }
            Decision::Approved(user) => {
                let user = user.clone();
                let held = self.held.remove(&code).expect("it was found above");
                DevicePoll::Approved(Box::new(ApprovedLogin { user, code, held }))
            }
        }
    }

    /// Puts an approved request back whose token could not be issued now.
    pub(crate) fn put_back(&mut self, approved: ApprovedLogin) {
        let ApprovedLogin { code, held, .. } = approved;
        self.held.entry(code).or_insert(held);
    }
}

#[cfg(test)]
#[path = "device_logins_tests.rs"]
mod tests;
