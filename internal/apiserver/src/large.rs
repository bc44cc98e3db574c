//! Owns where a request is worked on. Parsing, patching, merging and checking take time that grows with what a caller
//! sent and with the object it is about; from a named size on that happens on a thread of its own, of which there are
//! few, so that the runtime's threads go on answering. Does not know what the work is.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use bytes::Bytes;
use http::Response;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::decode::{self, Decoded};
use crate::limits::{LARGE_AT_ONCE, LARGE_WAITING, SMALL_REQUEST_BYTES, YAML_WEIGHT};
use crate::request::Format;
use crate::status::Failure;

/// The turns that large requests take.
pub(crate) struct Turns {
    free: Arc<Semaphore>,
    waiting: AtomicUsize,
}

impl Default for Turns {
    fn default() -> Self {
        Turns {
            free: Arc::new(Semaphore::new(LARGE_AT_ONCE)),
            waiting: AtomicUsize::new(0),
        }
    }
}

/// What a body counts for, in bytes of JSON. YAML is read twice, and each time by a slower reader.
pub(crate) fn weight(bytes: &[u8], format: Format) -> usize {
    let yaml = matches!(format, Format::Yaml | Format::Apply) && bytes.first() != Some(&b'{');
    if yaml {
        bytes.len().saturating_mul(YAML_WEIGHT)
    } else {
        bytes.len()
    }
}

/// Counts a request as waiting for as long as it exists, also where the client goes away meanwhile.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Turns {
    /// Waits for a turn; refuses where too many wait already. Requests of this process's own parts always wait: they
    /// are few, and a control loop that is refused comes again at once.
    async fn next(&self, own: bool) -> Result<OwnedSemaphorePermit, Failure> {
        if let Ok(turn) = self.free.clone().try_acquire_owned() {
            return Ok(turn);
        }
        let before = self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(&self.waiting);
        if before >= LARGE_WAITING && !own {
            return Err(Failure::too_many_large_requests());
        }
        let turn = self.free.clone().acquire_owned().await;
        Ok(turn.expect("the semaphore is never closed"))
    }

    /// Carries out work on a request and an object of so many bytes together: here when they are few, else on
    /// another thread once it is its turn.
    pub(crate) async fn carry_out(
        &self,
        bytes: usize,
        own: bool,
        work: impl Future<Output = Result<Response<Body>, Failure>> + Send + 'static,
    ) -> Result<Response<Body>, Failure> {
        if bytes <= SMALL_REQUEST_BYTES {
            return work.await;
        }
        self.elsewhere(own, || Handle::current().block_on(work))
            .await?
    }

    /// Decodes an object, here when it has few bytes, else on another thread once it is its turn.
    pub(crate) async fn decode(
        &self,
        bytes: Bytes,
        format: Format,
        own: bool,
    ) -> Result<Decoded, Failure> {
        if weight(&bytes, format) <= SMALL_REQUEST_BYTES {
            return decode::object(&bytes, format);
        }
        self.elsewhere(own, move || decode::object(&bytes, format))
            .await?
    }

    /// Carries out work on another thread once it is its turn. The turn ends with the work, also where nobody waits
    /// for it any more.
    pub(crate) async fn elsewhere<T: Send + 'static>(
        &self,
        own: bool,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let turn = self.next(own).await?;
        let worked = tokio::task::spawn_blocking(move || {
            let done = work();
            drop(turn);
            done
        });
        worked.await.map_err(|error| {
            tracing::error!(%error, "a request was not worked on to its end");
            Failure::internal("the request was not worked on to its end; the server's log says why")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: String) -> Result<Response<Body>, Failure> {
        Ok(Response::new(Body::from(text)))
    }

    async fn thread_of(bytes: usize) -> bool {
        let here = std::thread::current().id();
        let (sent, seen) = std::sync::mpsc::channel();
        let work = async move {
            sent.send(std::thread::current().id()).unwrap();
            answer(String::new())
        };
        let turns = Turns::default();
        turns.carry_out(bytes, false, work).await.unwrap();
        seen.recv().unwrap() == here
    }

    #[tokio::test]
    async fn small_requests_stay_and_larger_ones_leave_the_runtimes_thread() {
        assert!(thread_of(SMALL_REQUEST_BYTES).await);
        assert!(!thread_of(SMALL_REQUEST_BYTES + 1).await);
    }

    #[tokio::test]
    async fn one_more_than_may_wait_is_refused_and_a_control_loop_is_not() {
        let turns = Arc::new(Turns::default());
        let mut held = Vec::new();
        for _ in 0..LARGE_AT_ONCE {
            held.push(turns.next(false).await.unwrap());
        }
        let wait = |own: bool| {
            let turns = turns.clone();
            tokio::spawn(async move { turns.next(own).await.map(drop) })
        };
        let waiting: Vec<_> = (0..LARGE_WAITING).map(|_| wait(false)).collect();
        while turns.waiting.load(Ordering::Relaxed) < LARGE_WAITING {
            tokio::task::yield_now().await;
        }
        let refused = turns.next(false).await.unwrap_err();
        assert_eq!(refused.code().as_u16(), 429);
        let own = wait(true);
        held.clear();
        for one in waiting {
            one.await.unwrap().unwrap();
        }
        own.await.unwrap().unwrap();
        assert_eq!(turns.waiting.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn yaml_counts_for_more_than_json() {
        assert_eq!(weight(b"a: 1", Format::Yaml), 4 * YAML_WEIGHT);
        assert_eq!(weight(b"{}", Format::Apply), 2);
        assert_eq!(weight(b"a: 1", Format::Json), 4);
    }

    #[tokio::test]
    async fn work_that_panics_is_an_answer_and_gives_its_turn_back() {
        let turns = Turns::default();
        for _ in 0..=LARGE_AT_ONCE {
            let failed = turns.elsewhere::<()>(false, || panic!("on purpose")).await;
            assert_eq!(failed.unwrap_err().code().as_u16(), 500);
        }
        assert_eq!(turns.free.available_permits(), LARGE_AT_ONCE);
    }
}
