//! Owns the number of watches that are open, of each user and in all.
//!
//! Muster's own components are not counted: there are few, and a refused control loop would only try
//! again. A node has its own number and counts for no other caller, so that users' watches do not
//! keep a node out.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use resources::access::Caller;

use crate::limits::{WATCHES, WATCHES_PER_USER};
use crate::status::Failure;
use crate::work_threads::By;

#[derive(Default)]
struct WatchCounts {
    users: HashMap<String, usize>,
    all: usize,
}

/// The open watches.
#[derive(Clone, Default)]
pub(crate) struct WatchPlaces(Arc<Mutex<WatchCounts>>);

/// The place of one watch; it is free again when this is dropped.
pub(crate) struct WatchPlace {
    _counted: Option<Counted>,
}

struct Counted {
    counts: Arc<Mutex<WatchCounts>>,
    user: String,
    in_all: bool,
}

impl WatchPlaces {
    /// A place for a watch of this caller.
    ///
    /// # Errors
    ///
    /// If the caller, or all callers, have as many watches as they may.
    pub(crate) fn take(&self, caller: &Caller) -> Result<WatchPlace, Failure> {
        let By::User(user) = By::of(caller) else {
            return Ok(WatchPlace { _counted: None });
        };
        let in_all = caller.node_name().is_none();
        let mut counts = self.0.lock();
        if in_all && counts.all >= WATCHES {
            return Err(Failure::too_many_requests(&format!(
                "too many requests: {WATCHES} watches are open, please try again later"
            )));
        }
        let count = counts.users.entry(user.clone()).or_default();
        if *count >= WATCHES_PER_USER {
            return Err(Failure::too_many_requests(&format!(
                "too many requests: user {user:?} has {WATCHES_PER_USER} watches open; close some, or please try \
                 again later"
            )));
        }
        *count += 1;
        counts.all += usize::from(in_all);
        Ok(WatchPlace {
            _counted: Some(Counted {
                counts: self.0.clone(),
                user,
                in_all,
            }),
        })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        counts.all -= usize::from(self.in_all);
        let count = counts.users.remove(&self.user).unwrap_or_default();
        if count > 1 {
            counts
                .users
                .insert(std::mem::take(&mut self.user), count - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str) -> Caller {
        Caller {
            user: name.to_owned(),
            ..Caller::default()
        }
    }

    fn refused(places: &WatchPlaces, caller: &Caller) -> String {
        let failure = places.take(caller).err().expect("it is refused");
        assert_eq!(failure.code().as_u16(), 429);
        let status = failure.to_value();
        assert_eq!(status["reason"], "TooManyRequests");
        assert_eq!(status["details"]["retryAfterSeconds"], 1);
        status["message"].as_str().unwrap().to_owned()
    }

    #[test]
    fn one_more_watch_than_a_user_may_have_is_refused_until_one_ends() {
        let places = WatchPlaces::default();
        let ann = user("ann");
        let mut held: Vec<_> = (0..WATCHES_PER_USER)
            .map(|_| places.take(&ann).unwrap())
            .collect();
        assert!(refused(&places, &ann).contains("user \"ann\" has 512 watches open"));
        held.push(places.take(&user("bob")).unwrap());
        held.swap_remove(0);
        held.push(places.take(&ann).unwrap());
        refused(&places, &ann);
        drop(held);
        let counts = places.0.lock();
        assert!(counts.users.is_empty() && counts.all == 0);
    }

    #[test]
    fn one_more_watch_than_all_users_may_have_is_refused_and_the_systems_own_are_not() {
        let places = WatchPlaces::default();
        let held: Vec<_> = (0..WATCHES)
            .map(|number| places.take(&user(&format!("u{}", number % 64))).unwrap())
            .collect();
        assert!(refused(&places, &user("ann")).contains("4096 watches are open"));
        let component = Caller::component("scheduler");
        let node = Caller::node("n1");
        let own: Vec<_> = (0..WATCHES_PER_USER)
            .flat_map(|_| {
                [
                    places.take(&component).unwrap(),
                    places.take(&node).unwrap(),
                ]
            })
            .collect();
        // A stolen key of a node opens no more than a user.
        refused(&places, &node);
        drop(own);
        assert_eq!(places.0.lock().all, WATCHES);
        drop(held);
    }

    #[test]
    fn the_service_accounts_of_a_namespace_share_a_number() {
        let places = WatchPlaces::default();
        let _held: Vec<_> = (0..WATCHES_PER_USER)
            .map(|number| {
                let account = Caller::service_account("team", &format!("a{number}"));
                places.take(&account).unwrap()
            })
            .collect();
        refused(&places, &Caller::service_account("team", "b"));
        places.take(&Caller::service_account("other", "b")).unwrap();
    }
}
