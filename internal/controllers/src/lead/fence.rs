//! The fence around a leader's client: until when it may write. After that moment the client
//! refuses every write before it is sent, for every task of the process. So neither a stalled
//! process nor a task that has not noticed can act for a term that is over. Reads pass.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use tokio::time::Instant;
use tower::{BoxError, Service};

/// The time until which writes may go out; clones share it.
#[derive(Clone)]
pub struct Fence(Arc<Mutex<Option<Instant>>>);

/// The fence refused a write.
#[derive(Debug, thiserror::Error)]
#[error("not written: this server is no longer the leader")]
pub struct Fenced;

impl Fence {
    /// A fence that is open until this moment.
    #[must_use]
    pub fn open_until(moment: Instant) -> Fence {
        Fence(Arc::new(Mutex::new(Some(moment))))
    }

    /// Keeps the fence open until this later moment. A fence that was shut stays shut.
    pub fn extend(&self, moment: Instant) {
        if let Some(until) = &mut *self.0.lock() {
            *until = moment;
        }
    }

    /// Shuts the fence for good.
    pub fn shut(&self) {
        *self.0.lock() = None;
    }

    /// Whether writes may go out now.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.0.lock().is_some_and(|until| Instant::now() < until)
    }

    /// A client whose writes pass only while this fence is open.
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
        // The inner client queues requests itself and accepts any number of them.
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
