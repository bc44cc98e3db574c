//! Owns the fence around a leader's client: until when it may write. Past that moment every
//! write is refused before it is sent, whoever in the process wants it sent: a process that was
//! held up, or a task that has not heard, can't act for a term that is over. Reads pass.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use tokio::time::Instant;
use tower::{BoxError, Service};

/// Until when writes may go out; clones share it.
#[derive(Clone)]
pub struct Fence(Arc<Mutex<Option<Instant>>>);

/// A write was kept from being sent.
#[derive(Debug, thiserror::Error)]
#[error("not written: this server does not lead any more")]
pub struct Fenced;

impl Fence {
    /// Open until this moment.
    #[must_use]
    pub fn open_until(moment: Instant) -> Fence {
        Fence(Arc::new(Mutex::new(Some(moment))))
    }

    /// Opens it for longer. One that was shut stays so.
    pub fn extend(&self, moment: Instant) {
        if let Some(until) = &mut *self.0.lock() {
            *until = moment;
        }
    }

    /// Shuts it for good.
    pub fn shut(&self) {
        *self.0.lock() = None;
    }

    /// May writes go out now?
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.0.lock().is_some_and(|until| Instant::now() < until)
    }

    /// A client whose writes this fence lets through or not.
    #[must_use]
    pub fn around(&self, client: Client) -> Client {
        let namespace = client.default_namespace().to_owned();
        let fenced = Gate {
            client,
            fence: self.clone(),
        };
        Client::new(fenced, namespace)
    }
}

struct Gate {
    client: Client,
    fence: Fence,
}

impl Service<Request<Body>> for Gate {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Body>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        // The client sends when it can; it takes any number of requests.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let writes = !matches!(*request.method(), Method::GET | Method::HEAD);
        if writes && !self.fence.is_open() {
            return Box::pin(async { Err(Fenced.into()) });
        }
        let client = self.client.clone();
        Box::pin(async move { client.send(request).await.map_err(Into::into) })
    }
}
