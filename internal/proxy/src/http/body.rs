//! The body of a pod's answer as it streams to the client: it ends with an error if the pod is silent for too long or
//! the caller loses its right, and the connection to the pod ends with it.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::task::JoinHandle;
use tokio::time::{Instant, Sleep};

use super::places::ProxyPlace;

/// A task that ends with its owner.
pub(super) struct OwnedTask(pub(super) JoinHandle<()>);

impl Drop for OwnedTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Why an answer was cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CutOff {
    #[error("the pod sent nothing for too long")]
    Idle,
    #[error("the right to see this was taken away")]
    RightLost,
}

/// An answer's body.
pub(super) struct PodBody {
    body: Incoming,
    idle: Duration,
    silence: Pin<Box<Sleep>>,
    right_lost: BoxFuture<'static, ()>,
    _connection: OwnedTask,
    _place: ProxyPlace,
}

impl PodBody {
    pub(super) fn new(
        body: Incoming,
        idle: Duration,
        right_lost: BoxFuture<'static, ()>,
        connection: OwnedTask,
        place: ProxyPlace,
    ) -> PodBody {
        PodBody {
            body,
            idle,
            silence: Box::pin(tokio::time::sleep(idle)),
            right_lost,
            _connection: connection,
            _place: place,
        }
    }
}

impl Body for PodBody {
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::BoxError>>> {
        let this = &mut *self;
        if this.right_lost.as_mut().poll(context).is_ready() {
            // A future that is done is not asked again.
            this.right_lost = Box::pin(std::future::pending());
            return Poll::Ready(Some(Err(CutOff::RightLost.into())));
        }
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) {
            this.silence.as_mut().reset(Instant::now() + this.idle);
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        match this.silence.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Some(Err(CutOff::Idle.into()))),
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
