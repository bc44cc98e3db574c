//! Bodies on their way through the listener: a request's is read within its time, and a response's
//! keeps its connection busy until it has ended.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep};

use super::limits::Limits;
use super::places::InProgress;

/// Why a request's body was not read to its end.
#[derive(Debug)]
pub struct TooSlow;

impl std::fmt::Display for TooSlow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the request's body came too slowly; send it without pauses")
    }
}

impl std::error::Error for TooSlow {}

/// A request's body that has to come within its time.
pub struct Upload {
    body: Incoming,
    limits: Limits,
    /// When all of it has to be there; set when it was first waited for.
    ends: Option<Instant>,
    /// Ends while a piece is waited for.
    pause: Option<Pin<Box<Sleep>>>,
}

impl Upload {
    /// This body, within these bounds.
    pub fn new(body: Incoming, limits: Limits) -> Upload {
        Upload {
            body,
            limits,
            ends: None,
            pause: None,
        }
    }
}

impl HttpBody for Upload {
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::BoxError>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) {
            this.pause = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let now = Instant::now();
        let ends = *this.ends.get_or_insert(now + this.limits.body_total);
        let until = ends.min(now + this.limits.body_pause);
        let pause = this
            .pause
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        match pause.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Some(Err(TooSlow.into()))),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A response's body; its request is in progress for as long as this lasts.
pub struct Answer {
    body: Body,
    _in_progress: InProgress,
}

impl Answer {
    /// This body, of this request.
    pub fn new(body: Body, in_progress: InProgress) -> Answer {
        Answer {
            body,
            _in_progress: in_progress,
        }
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
