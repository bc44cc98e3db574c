//! Bodies that pass the listener: a request's body is read within a time limit and counted, and a response's body keeps
//! its connection busy, and its request's place taken, until it ends.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep};

use super::connection_slots::InProgress;
use super::limits::ListenerLimits;
use super::request_slots::{BodyBytes, RequestSlot};
use super::streams::SendProgress;

/// Why a request's body was not read to its end.
#[derive(Debug)]
pub struct BodyTimeout;

impl std::fmt::Display for BodyTimeout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the request's body came too slowly; send it without pauses")
    }
}

impl std::error::Error for BodyTimeout {}

/// A request's body with a time limit, whose bytes count for its origin. Bytes beyond the bound are an error; the rest
/// after it is not counted, because nothing but `route_layer` reads it, which discards it.
pub struct Upload {
    body: Incoming,
    /// Counts the bytes; none for a body that is not counted, or not any more.
    bytes: Option<BodyBytes>,
    limits: ListenerLimits,
    /// Deadline of the whole body; set at the first read.
    ends: Option<Instant>,
    /// Deadline of the next piece.
    pause: Option<Pin<Box<Sleep>>>,
}

impl Upload {
    /// The body with these limits; without a count its bytes are not bounded.
    pub fn new(body: Incoming, bytes: Option<BodyBytes>, limits: ListenerLimits) -> Upload {
        Upload {
            body,
            bytes,
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
            if let Some(Ok(frame)) = &frame
                && let Some(data) = frame.data_ref()
                && let Some(bytes) = &this.bytes
                && let Err(why) = bytes.add(data.len())
            {
                this.bytes = None;
                return Poll::Ready(Some(Err(why.into())));
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let now = Instant::now();
        let ends = *this.ends.get_or_insert(now + this.limits.body_total);
        let until = ends.min(now + this.limits.body_pause);
        let pause = this
            .pause
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        match pause.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Some(Err(BodyTimeout.into()))),
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

/// The largest piece of a response that an HTTP/2 stream gets at once. hyper asks for the next piece once the
/// client's window has room for one byte of the last one, and drops the body with the last piece: at most this much
/// is held after that, because the last piece is a copy.
const PIECE: usize = 64 * 1024;

/// A response's body; its request counts as in progress until the body is dropped.
pub struct CountedBody {
    body: Body,
    /// Data that was read from the body and not yet handed over.
    rest: Bytes,
    /// Set on HTTP/2; on HTTP/1 the connection itself shows whether the client reads.
    progress: Option<SendProgress>,
    _in_progress: InProgress,
    /// The place among all requests; none if the request was refused for want of one.
    _slot: Option<RequestSlot>,
}

impl CountedBody {
    /// A body for this request, with its stream's progress on HTTP/2.
    pub fn new(
        body: Body,
        in_progress: InProgress,
        slot: Option<RequestSlot>,
        progress: Option<SendProgress>,
    ) -> CountedBody {
        CountedBody {
            body,
            rest: Bytes::new(),
            progress,
            _in_progress: in_progress,
            _slot: slot,
        }
    }
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        let Some(progress) = &this.progress else {
            return Pin::new(&mut this.body).poll_frame(context);
        };
        progress.asked();
        if this.rest.is_empty() {
            match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => this.rest = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                ended => return Poll::Ready(ended),
            }
        }
        let mut piece = this.rest.split_to(this.rest.len().min(PIECE));
        if this.rest.is_empty() {
            // A slice keeps the whole buffer in memory, and nothing ends a stream whose last piece waits in h2.
            piece = Bytes::copy_from_slice(&piece);
            this.rest = Bytes::new();
        }
        progress.handed_over();
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let mut size = self.body.size_hint();
        let rest = self.rest.len() as u64;
        if let Some(upper) = size.upper() {
            size.set_upper(upper.saturating_add(rest));
        }
        size.set_lower(size.lower().saturating_add(rest));
        size
    }
}
