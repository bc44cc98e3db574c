//! What browsers have opened: tickets, which lead from Muster's own address to a port's host once, and the openings
//! that a host's cookie stands for. In memory alone: after a restart of the server a page is opened again. Knows no
//! HTTP; the time is a parameter.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use resources::access::Credential;
use sha2::{Digest, Sha256};

use crate::http::WebPort;

/// How long a ticket lasts.
pub const TICKET_LIFE: Duration = Duration::from_secs(60);
/// How long an opening lasts, if the sign-in behind it lasts so long.
pub const OPENING_LIFE: Duration = Duration::from_secs(43_200);
/// The most tickets of one user; a further one ends the user's oldest.
const TICKETS_PER_USER_MAX: usize = 16;
/// The most tickets; a further one ends the oldest.
const TICKETS_MAX: usize = 4096;
/// The most openings of one user; a further one ends the user's oldest.
const PER_USER_MAX: usize = 64;
/// The most openings; a further one ends the oldest.
const ALL_MAX: usize = 8192;

/// A port that a user opened, and the sign-in with which the user did so.
#[derive(Clone)]
pub struct Opening {
    /// The port, by its number.
    pub port: WebPort,
    /// The uid of the pod or Service.
    pub uid: String,
    /// The label of its host.
    pub label: String,
    /// The user, for the bound on openings.
    pub user: String,
    /// Gives the user with its present rights; none once the sign-in has ended.
    pub credential: Credential,
    /// The host, and the port if any, at which Muster's own address was called.
    pub from: String,
}

struct Kept {
    opening: Opening,
    ends: Instant,
    number: u64,
}

/// Tickets and openings, by the digests of their secrets.
#[derive(Default)]
pub struct Openings {
    tickets: BTreeMap<String, Kept>,
    open: BTreeMap<String, Kept>,
    next: u64,
}

/// There is no randomness; the text is the system's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the system gives no random bytes: {0}; try again")]
pub struct NoRandomness(String);

fn digest(secret: &str) -> String {
    hexadecimal(&Sha256::digest(secret.as_bytes()))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn draw() -> Result<String, NoRandomness> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).map_err(|error| NoRandomness(error.to_string()))?;
    Ok(hexadecimal(&bytes))
}

fn remove_oldest(all: &mut BTreeMap<String, Kept>, of: impl Fn(&Kept) -> bool) {
    let oldest = all
        .iter()
        .filter(|(_, kept)| of(kept))
        .min_by_key(|(_, kept)| kept.number)
        .map(|(digest, _)| digest.clone());
    if let Some(digest) = oldest {
        all.remove(&digest);
    }
}

/// Removes what has expired, and the oldest of this user and of all users where their bounds leave no room for one more.
fn make_room(
    all: &mut BTreeMap<String, Kept>,
    user: &str,
    (of_user_max, all_max): (usize, usize),
    now: Instant,
) {
    all.retain(|_, kept| kept.ends > now);
    let of_user = |kept: &Kept| kept.opening.user == user;
    if all.values().filter(|kept| of_user(kept)).count() >= of_user_max {
        remove_oldest(all, of_user);
    }
    if all.len() >= all_max {
        remove_oldest(all, |_| true);
    }
}

impl Openings {
    /// A ticket for an opening: its secret.
    pub fn ticket(&mut self, opening: Opening, now: Instant) -> Result<String, NoRandomness> {
        let secret = draw()?;
        make_room(
            &mut self.tickets,
            &opening.user,
            (TICKETS_PER_USER_MAX, TICKETS_MAX),
            now,
        );
        let kept = self.kept(opening, now + TICKET_LIFE);
        self.tickets.insert(digest(&secret), kept);
        Ok(secret)
    }

    fn kept(&mut self, opening: Opening, ends: Instant) -> Kept {
        self.next += 1;
        Kept {
            opening,
            ends,
            number: self.next,
        }
    }

    /// Takes a ticket for the host with this label: the secret of the opening's cookie, and the opening. None if there is
    /// no such ticket, or it was used, has expired or is another host's.
    pub fn enter(
        &mut self,
        ticket: &str,
        label: &str,
        now: Instant,
    ) -> Result<Option<(String, Opening)>, NoRandomness> {
        let Some(kept) = self.tickets.remove(&digest(ticket)) else {
            return Ok(None);
        };
        if kept.ends <= now || kept.opening.label != label {
            return Ok(None);
        }
        let secret = draw()?;
        let opening = kept.opening;
        make_room(&mut self.open, &opening.user, (PER_USER_MAX, ALL_MAX), now);
        let kept = self.kept(opening.clone(), now + OPENING_LIFE);
        self.open.insert(digest(&secret), kept);
        Ok(Some((secret, opening)))
    }

    /// The opening that a cookie of the host with this label stands for.
    pub fn find(&self, secret: &str, label: &str, now: Instant) -> Option<Opening> {
        let kept = self.open.get(&digest(secret))?;
        (kept.ends > now && kept.opening.label == label).then(|| kept.opening.clone())
    }

    /// Ends an opening: its sign-in has ended.
    pub fn end(&mut self, secret: &str) {
        self.open.remove(&digest(secret));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opening(user: &str, label: &str) -> Opening {
        Opening {
            port: WebPort {
                kind: "pods".into(),
                namespace: "a".into(),
                name: "p".into(),
                port: "80".into(),
            },
            uid: "u".into(),
            label: label.into(),
            user: user.into(),
            credential: Credential::new(|| None),
            from: "gpu1:8443".into(),
        }
    }

    #[test]
    fn a_ticket_works_once_in_time_and_for_its_own_host() {
        let mut all = Openings::default();
        let now = Instant::now();
        let ticket = all.ticket(opening("ann", "l1"), now).unwrap();
        let (secret, found) = all.enter(&ticket, "l1", now).unwrap().unwrap();
        assert_eq!((found.label.as_str(), found.user.as_str()), ("l1", "ann"));
        assert!(all.enter(&ticket, "l1", now).unwrap().is_none());
        assert!(all.find(&secret, "l1", now).is_some());
        assert!(all.find(&secret, "l2", now).is_none());
        assert!(all.find(&ticket, "l1", now).is_none());
        assert!(all.find(&secret, "l1", now + OPENING_LIFE).is_none());
        all.end(&secret);
        assert!(all.find(&secret, "l1", now).is_none());

        let ticket = all.ticket(opening("ann", "l1"), now).unwrap();
        assert!(all.enter(&ticket, "l2", now).unwrap().is_none());
        let ticket = all.ticket(opening("ann", "l1"), now).unwrap();
        assert!(
            all.enter(&ticket, "l1", now + TICKET_LIFE)
                .unwrap()
                .is_none()
        );
        assert!(all.enter("", "l1", now).unwrap().is_none());
    }

    #[test]
    fn tickets_and_openings_are_bounded_and_the_oldest_goes() {
        let mut all = Openings::default();
        let now = Instant::now();
        let (first, bobs) = (
            all.ticket(opening("ann", "l"), now).unwrap(),
            all.ticket(opening("bob", "l"), now).unwrap(),
        );
        for _ in 0..TICKETS_PER_USER_MAX {
            all.ticket(opening("ann", "l"), now).unwrap();
        }
        assert_eq!(all.tickets.len(), TICKETS_PER_USER_MAX + 1);
        assert!(all.enter(&first, "l", now).unwrap().is_none());
        assert!(all.enter(&bobs, "l", now).unwrap().is_some());
        for user in 0..=TICKETS_MAX {
            all.ticket(opening(&user.to_string(), "l"), now).unwrap();
        }
        assert_eq!(all.tickets.len(), TICKETS_MAX);
        let mut all = Openings::default();

        let mut open = |user: &str| {
            let ticket = all.ticket(opening(user, "l"), now).unwrap();
            all.enter(&ticket, "l", now).unwrap().unwrap().0
        };
        let (anns, bobs) = (open("ann"), open("bob"));
        for _ in 0..PER_USER_MAX {
            open("ann");
        }
        assert!(all.find(&anns, "l", now).is_none());
        assert!(all.find(&bobs, "l", now).is_some());
        assert_eq!(all.open.len(), PER_USER_MAX + 1);
    }
}
