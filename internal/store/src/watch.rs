//! Owns watches: each watcher's position in the recent events under a prefix. A watcher has no
//! queue: it reads from its position. A watcher that falls behind the history gets an error and ends.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use futures::Stream;

use crate::entry::{Event, Revision};
use crate::error::WatchError;
use crate::memory::SharedState;
use crate::topic::Topic;

/// The maximum number of events that a watcher reads at once.
const BATCH_MAX: usize = 256;

/// Identifies watchers of one topic.
static WATCHERS: AtomicU64 = AtomicU64::new(0);

/// The changes under a prefix from a revision on, each once, in order. Ends with an error if it has
/// fallen behind the history, and without one if the store closes.
pub struct Watch {
    shared: Arc<SharedState>,
    topic: Arc<Topic>,
    id: u64,
    seen: Revision,
    taken: VecDeque<Event>,
    ended: bool,
}

impl Watch {
    pub(crate) fn new(shared: Arc<SharedState>, topic: Arc<Topic>, from: Revision) -> Watch {
        Watch {
            shared,
            topic,
            id: WATCHERS.fetch_add(1, Ordering::Relaxed),
            seen: from,
            taken: VecDeque::new(),
            ended: false,
        }
    }

    /// The revision up to which this watcher has received all events; a bookmark may report it.
    #[must_use]
    pub fn progress(&self) -> Revision {
        if let Some(next) = self.taken.front() {
            return Revision::new(next.revision().get() - 1);
        }
        // Events are published under the memory's lock, so that the revision and the topic agree.
        let memory = self.shared.memory.read_recursive();
        let state = self.topic.state.lock();
        match state.events.back() {
            Some(last) if last.revision() > self.seen => self.seen,
            _ if state.trimmed > self.seen => self.seen,
            _ => memory.revision.max(self.seen),
        }
    }

    /// The next events, at least one, up to a bound. None after the store has closed or after an
    /// error.
    pub async fn next_batch(&mut self) -> Option<Result<Vec<Event>, WatchError>> {
        std::future::poll_fn(|cx| {
            Poll::Ready(match std::task::ready!(self.poll_taken(cx)) {
                Some(Ok(())) => Some(Ok(self.taken.drain(..).collect())),
                Some(Err(error)) => Some(Err(error)),
                None => None,
            })
        })
        .await
    }

    /// Waits until `taken` has events.
    fn poll_taken(&mut self, cx: &Context<'_>) -> Poll<Option<Result<(), WatchError>>> {
        if !self.taken.is_empty() {
            return Poll::Ready(Some(Ok(())));
        }
        if self.ended {
            return Poll::Ready(None);
        }
        let mut state = self.topic.state.lock();
        if state.trimmed > self.seen {
            self.ended = true;
            return Poll::Ready(Some(Err(WatchError::Expired {
                oldest: state.trimmed,
            })));
        }
        let start = state
            .events
            .partition_point(|event| event.revision() <= self.seen);
        let events = state.events.range(start..).take(BATCH_MAX).cloned();
        self.taken.extend(events);
        if let Some(last) = self.taken.back() {
            self.seen = last.revision();
            return Poll::Ready(Some(Ok(())));
        }
        if state.closed {
            self.ended = true;
            return Poll::Ready(None);
        }
        state.waiting.insert(self.id, cx.waker().clone());
        Poll::Pending
    }
}

impl Stream for Watch {
    type Item = Result<Event, WatchError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(match std::task::ready!(self.poll_taken(cx)) {
            Some(Ok(())) => self.taken.pop_front().map(Ok),
            Some(Err(error)) => Some(Err(error)),
            None => None,
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.topic.state.lock().waiting.remove(&self.id);
    }
}
