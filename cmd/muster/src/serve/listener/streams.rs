//! Responses on HTTP/2 connections whose clients accept no data. Such a client may answer pings and leave its flow
//! control window at zero: the connection is alive, nothing is waiting to be written, and each response would be held
//! for ever. This module owns the timing; `body` owns the pieces of a response.
//!
//! hyper asks a response's body for the next piece once the client's window has taken the last one. So if a piece was
//! handed over and no next one is asked for, the client does not accept it; a body that was asked and has no data (a
//! quiet watch) does not wait for the client. hyper runs each request of a connection as a task: the task ends when
//! its response stalls, which resets the stream and leaves the connection's other streams alone.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::rt::Executor;
use tokio::time::Instant;

tokio::task_local! {
    /// The progress of the response that this task sends.
    static PROGRESS: SendProgress;
}

/// How far a response has been sent.
#[derive(Clone, Debug, Default)]
pub struct SendProgress(Arc<Mutex<Option<Instant>>>);

impl SendProgress {
    /// The progress of the current task's response; none outside of an HTTP/2 connection's tasks.
    pub fn current() -> Option<SendProgress> {
        PROGRESS.try_with(Clone::clone).ok()
    }

    /// Records that a piece was handed over and now waits for the client.
    pub fn handed_over(&self) {
        *self.since() = Some(Instant::now());
    }

    /// Records that the next piece is asked for: the client has taken the last one.
    pub fn asked(&self) {
        *self.since() = None;
    }

    /// Returns once the client has accepted no piece for `limit`; after twice that time at the latest.
    async fn stalls(&self, limit: Duration) {
        loop {
            let since = *self.since();
            tokio::time::sleep_until(since.unwrap_or_else(Instant::now) + limit).await;
            if self.since().is_some_and(|since| since.elapsed() >= limit) {
                return;
            }
        }
    }

    fn since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs the requests of HTTP/2 connections, and ends each whose response stalls for this long.
#[derive(Clone, Copy, Debug)]
pub struct Streams(pub Duration);

impl<F> Executor<F> for Streams
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, request: F) {
        let Streams(limit) = *self;
        let progress = SendProgress::default();
        let stalled = progress.clone();
        tokio::spawn(PROGRESS.scope(progress, async move {
            tokio::select! {
                biased;
                _ = request => {}
                () = stalled.stalls(limit) => {
                    tracing::debug!("an answer is given up: its client takes nothing of it");
                }
            }
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn a_piece_that_is_not_taken_stalls_and_a_body_that_was_asked_does_not() {
        let stuck = SendProgress::default();
        stuck.handed_over();
        let quiet = SendProgress::default();
        quiet.handed_over();
        quiet.asked();
        tokio::select! {
            () = stuck.stalls(LIMIT) => {}
            () = quiet.stalls(LIMIT) => panic!("nothing waits for the client"),
        }
        // The client has to read again, and takes less than the limit.
        quiet.handed_over();
        let slow = tokio::time::timeout(LIMIT, quiet.stalls(LONG)).await;
        assert!(slow.is_err());
    }

    #[tokio::test]
    async fn a_request_that_stalls_is_dropped_and_its_answer_finds_its_progress() {
        let (sender, dropped) = tokio::sync::oneshot::channel::<()>();
        Streams(LIMIT).execute(async move {
            let _sender = sender;
            SendProgress::current().expect("in a task").handed_over();
            std::future::pending::<()>().await;
        });
        assert!(dropped.await.is_err(), "the sender is dropped");
        assert!(SendProgress::current().is_none());
    }
}
