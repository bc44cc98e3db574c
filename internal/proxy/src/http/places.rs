//! The connections to pods that proxied requests have at the same time: of each user, and in all. A request that finds
//! no place waits a while, because a page asks for many files at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::refusal::WebRefusal;

/// The most connections of one user.
const PER_USER_MAX: usize = 64;
/// The most connections of all users.
const ALL_MAX: usize = 2048;
/// How long a request waits for a place.
const WAIT: Duration = Duration::from_secs(10);

/// All connections.
pub(super) struct ProxyPlaces {
    all: Arc<Semaphore>,
    users: Mutex<BTreeMap<String, Weak<Semaphore>>>,
}

/// One connection's place, until it is dropped.
pub(super) struct ProxyPlace {
    _all: OwnedSemaphorePermit,
    _user: OwnedSemaphorePermit,
}

impl Default for ProxyPlaces {
    fn default() -> ProxyPlaces {
        ProxyPlaces {
            all: Arc::new(Semaphore::new(ALL_MAX)),
            users: Mutex::default(),
        }
    }
}

impl ProxyPlaces {
    fn of(&self, user: &str) -> Arc<Semaphore> {
        let mut users = self.users.lock();
        if let Some(known) = users.get(user).and_then(Weak::upgrade) {
            return known;
        }
        users.retain(|_, places| places.strong_count() > 0);
        let places = Arc::new(Semaphore::new(PER_USER_MAX));
        users.insert(user.to_owned(), Arc::downgrade(&places));
        places
    }

    /// A place; waits for one.
    pub(super) async fn take(&self, user: &str) -> Result<ProxyPlace, WebRefusal> {
        self.take_within(user, WAIT).await
    }

    async fn take_within(&self, user: &str, wait: Duration) -> Result<ProxyPlace, WebRefusal> {
        let taken = tokio::time::timeout(wait, async {
            let user = self.of(user).acquire_owned().await.ok()?;
            let all = self.all.clone().acquire_owned().await.ok()?;
            Some(ProxyPlace {
                _all: all,
                _user: user,
            })
        });
        taken.await.ok().flatten().ok_or_else(|| {
            WebRefusal::too_many(format!(
                "user {user:?} has {PER_USER_MAX} connections to ports of pods, or all users have {ALL_MAX}; close a page \
                 and try again"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_user_has_a_bounded_number_of_connections_and_leaves_those_of_others() {
        let places = ProxyPlaces::default();
        let take = |user: &'static str| places.take_within(user, Duration::ZERO);
        let mut held = Vec::new();
        for _ in 0..PER_USER_MAX {
            held.push(take("ann").await.unwrap());
        }
        assert_eq!(take("ann").await.err().unwrap().status.as_u16(), 429);
        take("bob").await.unwrap();
        held.pop();
        take("ann").await.unwrap();
        drop(held);
        take("cat").await.unwrap();
        assert_eq!(
            places.users.lock().len(),
            1,
            "users without connections are forgotten"
        );
    }

    #[tokio::test]
    async fn a_request_waits_for_a_place() {
        let places = ProxyPlaces::default();
        let mut held = Vec::new();
        for _ in 0..PER_USER_MAX {
            held.push(places.take("ann").await.unwrap());
        }
        let waits = places.take("ann");
        let frees = async { drop(held) };
        let (taken, ()) = tokio::join!(waits, frees);
        taken.unwrap();
    }
}
