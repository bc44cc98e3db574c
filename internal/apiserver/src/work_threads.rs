//! Owns the choice of thread for a request's work. The time for parsing, patching, merging and
//! checking grows with the body and with the stored object; above a threshold the work runs on a
//! separate thread, of which there are few, so that the runtime's threads stay responsive. Does not
//! know the work.
//!
//! Work includes the wait for the store, so a turn lasts as long as a commit. One caller has at
//! most half of the turns and half of the waiting places, so that other callers' large requests
//! proceed concurrently.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use axum::body::Body;
use bytes::Bytes;
use http::Response;
use parking_lot::Mutex;
use resources::access::{Caller, SERVICE_ACCOUNT_PREFIX, service_account_of};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::decode::{self, Decoded};
use crate::limits::{
    LARGE_AT_ONCE, LARGE_AT_ONCE_PER_CALLER, LARGE_WAITING, LARGE_WAITING_PER_CALLER,
    SMALL_REQUEST_BYTES, YAML_WEIGHT,
};
use crate::request::BodyFormat;
use crate::status::Failure;

/// The caller of a request, for the limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// A component of this process. It has no share: there are few components, and a refused
    /// control loop would retry at once.
    Own,
    /// A user, by name. Requests without a known user have the empty name and share one limit.
    User(String),
}

impl By {
    /// The caller of a request.
    pub(crate) fn of(caller: &Caller) -> By {
        match caller.is_component() {
            true => By::Own,
            // A lead of a namespace creates any number of service accounts in it: they share one limit.
            false => By::User(match service_account_of(&caller.user) {
                Some((namespace, _)) => format!("{SERVICE_ACCOUNT_PREFIX}{namespace}"),
                None => caller.user.clone(),
            }),
        }
    }
}

/// One user's share of the turns, while the user has a request here.
struct UserTurns {
    free: Arc<Semaphore>,
    waiting: AtomicUsize,
}

/// The turns of large requests.
pub(crate) struct RequestTurns {
    free: Arc<Semaphore>,
    waiting: AtomicUsize,
    shares: Mutex<HashMap<String, Weak<UserTurns>>>,
}

/// One turn; it ends when dropped.
pub(crate) struct RequestTurn {
    _all: OwnedSemaphorePermit,
    _own: Option<(OwnedSemaphorePermit, Arc<UserTurns>)>,
}

impl Default for RequestTurns {
    fn default() -> Self {
        RequestTurns {
            free: Arc::new(Semaphore::new(LARGE_AT_ONCE)),
            waiting: AtomicUsize::new(0),
            shares: Mutex::default(),
        }
    }
}

/// The cost of a body, in bytes of JSON. YAML is read twice, each time by a slower reader.
pub(crate) fn weight(bytes: &[u8], format: BodyFormat) -> usize {
    let yaml =
        matches!(format, BodyFormat::Yaml | BodyFormat::Apply) && bytes.first() != Some(&b'{');
    if yaml {
        bytes.len().saturating_mul(YAML_WEIGHT)
    } else {
        bytes.len()
    }
}

/// Counts a request as waiting while it exists, also after the client has disconnected.
struct WaitingRequest<'a>(&'a AtomicUsize);

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn acquired(free: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    let turn = free.clone().acquire_owned().await;
    turn.expect("the semaphore is never closed")
}

impl RequestTurns {
    /// Waits for a turn; refuses if too many requests of all users or of this user wait already.
    /// Requests of this process's own components are never refused.
    async fn next(&self, by: &By) -> Result<RequestTurn, Failure> {
        let share = match by {
            By::Own => None,
            By::User(name) => Some(self.share(name)),
        };
        if let Some(turn) = self.at_once(share.as_ref()) {
            return Ok(turn);
        }
        let before = self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = WaitingRequest(&self.waiting);
        let own = match &share {
            None => None,
            Some(share) => {
                let of_user = share.waiting.fetch_add(1, Ordering::Relaxed);
                let _waiting = WaitingRequest(&share.waiting);
                if before >= LARGE_WAITING || of_user >= LARGE_WAITING_PER_CALLER {
                    return Err(Failure::too_many_large_requests());
                }
                // First a turn of the user's share: then a user's requests waiting for the common
                // turns never exceed the share.
                Some((acquired(&share.free).await, share.clone()))
            }
        };
        Ok(RequestTurn {
            _all: acquired(&self.free).await,
            _own: own,
        })
    }

    /// A turn that is free now, both in total and in the share.
    fn at_once(&self, share: Option<&Arc<UserTurns>>) -> Option<RequestTurn> {
        let own = match share {
            None => None,
            Some(share) => Some((share.free.clone().try_acquire_owned().ok()?, share.clone())),
        };
        Some(RequestTurn {
            _all: self.free.clone().try_acquire_owned().ok()?,
            _own: own,
        })
    }

    /// The user's share. Shares of users without a request here are removed.
    fn share(&self, user: &str) -> Arc<UserTurns> {
        let mut shares = self.shares.lock();
        if let Some(share) = shares.get(user).and_then(Weak::upgrade) {
            return share;
        }
        shares.retain(|_, share| share.strong_count() > 0);
        let share = Arc::new(UserTurns {
            free: Arc::new(Semaphore::new(LARGE_AT_ONCE_PER_CALLER)),
            waiting: AtomicUsize::new(0),
        });
        shares.insert(user.to_owned(), Arc::downgrade(&share));
        share
    }

    /// Executes work on a request and an object of this many bytes in total: here if they are few,
    /// otherwise on another thread after getting a turn.
    pub(crate) async fn carry_out(
        &self,
        bytes: usize,
        by: &By,
        work: impl Future<Output = Result<Response<Body>, Failure>> + Send + 'static,
    ) -> Result<Response<Body>, Failure> {
        if bytes <= SMALL_REQUEST_BYTES {
            return work.await;
        }
        self.elsewhere(by, || Handle::current().block_on(work))
            .await?
    }

    /// Decodes an object, here if it has few bytes, otherwise on another thread after getting a
    /// turn.
    pub(crate) async fn decode(
        &self,
        bytes: Bytes,
        format: BodyFormat,
        by: &By,
    ) -> Result<Decoded, Failure> {
        if weight(&bytes, format) <= SMALL_REQUEST_BYTES {
            return decode::object(&bytes, format);
        }
        self.elsewhere(by, move || decode::object(&bytes, format))
            .await?
    }

    /// Executes work on another thread after getting a turn. The turn ends with the work, even if
    /// the caller has stopped waiting.
    pub(crate) async fn elsewhere<T: Send + 'static>(
        &self,
        by: &By,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let turn = self.next(by).await?;
        let worked = tokio::task::spawn_blocking(move || {
            let done = work();
            drop(turn);
            done
        });
        worked.await.map_err(|error| {
            tracing::error!(%error, "the server could not complete a request");
            Failure::internal("the server could not complete the request; see the server's log")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: String) -> Result<Response<Body>, Failure> {
        Ok(Response::new(Body::from(text)))
    }

    fn user(name: &str) -> By {
        By::User(name.to_owned())
    }

    fn ann() -> By {
        user("ann")
    }

    async fn thread_of(bytes: usize) -> bool {
        let here = std::thread::current().id();
        let (sent, seen) = std::sync::mpsc::channel();
        let work = async move {
            sent.send(std::thread::current().id()).unwrap();
            answer(String::new())
        };
        let turns = RequestTurns::default();
        turns.carry_out(bytes, &ann(), work).await.unwrap();
        seen.recv().unwrap() == here
    }

    #[tokio::test]
    async fn small_requests_stay_and_larger_ones_leave_the_runtimes_thread() {
        assert!(thread_of(SMALL_REQUEST_BYTES).await);
        assert!(!thread_of(SMALL_REQUEST_BYTES + 1).await);
    }

    #[tokio::test]
    async fn one_more_than_may_wait_is_refused_and_a_control_loop_is_not() {
        let turns = Arc::new(RequestTurns::default());
        let mut held = Vec::new();
        for _ in 0..LARGE_AT_ONCE {
            held.push(turns.next(&By::Own).await.unwrap());
        }
        let wait = |by: By| {
            let turns = turns.clone();
            tokio::spawn(async move { turns.next(&by).await.map(drop) })
        };
        let waiting: Vec<_> = (0..LARGE_WAITING)
            .map(|number| wait(user(&format!("u{number}"))))
            .collect();
        while turns.waiting.load(Ordering::Relaxed) < LARGE_WAITING {
            tokio::task::yield_now().await;
        }
        let refused = turns.next(&ann()).await.err().unwrap();
        assert_eq!(refused.code().as_u16(), 429);
        let own = wait(By::Own);
        held.clear();
        for one in waiting {
            one.await.unwrap().unwrap();
        }
        own.await.unwrap().unwrap();
        assert_eq!(turns.waiting.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn one_users_requests_leave_turns_and_places_to_wait_for_others() {
        let turns = Arc::new(RequestTurns::default());
        let mut held = Vec::new();
        for _ in 0..LARGE_AT_ONCE_PER_CALLER {
            held.push(turns.next(&ann()).await.unwrap());
        }
        let wait = || {
            let turns = turns.clone();
            tokio::spawn(async move { turns.next(&ann()).await.map(drop) })
        };
        let waiting: Vec<_> = (0..LARGE_WAITING_PER_CALLER).map(|_| wait()).collect();
        while turns.waiting.load(Ordering::Relaxed) < LARGE_WAITING_PER_CALLER {
            tokio::task::yield_now().await;
        }
        let refused = turns.next(&ann()).await.err().unwrap();
        assert_eq!(refused.code().as_u16(), 429);
        // Another user takes the remaining turns.
        for _ in LARGE_AT_ONCE_PER_CALLER..LARGE_AT_ONCE {
            held.push(turns.next(&user("bob")).await.unwrap());
        }
        held.clear();
        for one in waiting {
            one.await.unwrap().unwrap();
        }
        assert_eq!(turns.free.available_permits(), LARGE_AT_ONCE);
        // A user's share is removed with the last request.
        drop(turns.next(&user("carol")).await.unwrap());
        assert_eq!(turns.shares.lock().len(), 1);
    }

    #[test]
    fn yaml_counts_for_more_than_json() {
        assert_eq!(weight(b"a: 1", BodyFormat::Yaml), 4 * YAML_WEIGHT);
        assert_eq!(weight(b"{}", BodyFormat::Apply), 2);
        assert_eq!(weight(b"a: 1", BodyFormat::Json), 4);
    }

    #[tokio::test]
    async fn work_that_panics_is_an_answer_and_gives_its_turn_back() {
        let turns = RequestTurns::default();
        for _ in 0..=LARGE_AT_ONCE {
            let failed = turns.elsewhere::<()>(&ann(), || panic!("on purpose")).await;
            assert_eq!(failed.unwrap_err().code().as_u16(), 500);
        }
        assert_eq!(turns.free.available_permits(), LARGE_AT_ONCE);
    }
}
