//! One request to a pod's port and its answer: HTTP/1.1, with bodies that stream both ways, or a WebSocket.

use std::time::Duration;

use apiserver::{ExecError, ExecOpener, ExecRequest};
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, Response, StatusCode};
use futures::future::BoxFuture;
use hyper::client::conn::http1;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::Instant;

use super::ProxyTimes;
use super::body::{OwnedTask, PodBody};
use super::headers::{self, View};
use super::places::ProxyPlace;
use super::stream::PodStream;
use crate::refusal::WebRefusal;

/// How long a pod may take until it begins its answer.
pub(super) const ANSWER: Duration = Duration::from_secs(120);
/// How long a pod's answer, or a WebSocket in both directions, may be silent.
pub(super) const SILENCE: Duration = Duration::from_secs(3600);
/// Bytes of the headers of a pod's answer.
const HEADER_BYTES_MAX: usize = 64 * 1024;
/// Headers of a pod's answer.
const HEADERS_MAX: usize = 128;
/// Bytes of a WebSocket's data that are passed on at once.
const PIECE_BYTES: usize = 32 * 1024;

/// A request, and the port that it is for.
pub(super) struct Exchange<'a> {
    pub(super) request: ExecRequest,
    pub(super) port: u16,
    /// The path and the query.
    pub(super) path: String,
    pub(super) view: View<'a>,
    pub(super) method: Method,
    pub(super) headers: &'a HeaderMap,
    pub(super) upgrade: Option<OnUpgrade>,
    pub(super) peer: Option<String>,
    pub(super) times: ProxyTimes,
}

impl Exchange<'_> {
    /// Carries it out; the body of the answer streams, and the place is held to its end.
    pub(super) async fn carry_out(
        self,
        body: Body,
        opener: &ExecOpener,
        place: ProxyPlace,
        right_lost: BoxFuture<'static, ()>,
    ) -> Result<Response<Body>, WebRefusal> {
        if matches!(self.method, Method::CONNECT | Method::TRACE) {
            return Err(WebRefusal::no_such_method(format!(
                "method: Unsupported value: {}: Muster sends no request of this method to programs in pods",
                self.method
            )));
        }
        let pod = self.request.pod.clone();
        let headers = headers::of_request(self.headers, self.view, self.port, self.peer.as_deref());
        let websocket = headers::asks_for_websocket(&headers) && self.upgrade.is_some();
        let mut request = Request::builder()
            .method(self.method.clone())
            .uri(&self.path)
            .body(body)
            .map_err(|error| {
                WebRefusal::invalid(format!("the request's path is no path: {error}"))
            })?;
        *request.headers_mut() = headers;
        if websocket {
            *request.body_mut() = Body::empty();
        }

        let (mut sender, connection) = self.connect(opener).await?;
        let broken = |error: &hyper::Error| {
            WebRefusal::broken(format!(
                "the connection to port {} of pod {pod:?} ended before its answer: {}",
                self.port,
                cause(error)
            ))
        };
        let times = self.times;
        let answered = tokio::time::timeout(times.answer, sender.send_request(request)).await;
        let mut answer = match answered {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(broken(&error)),
            Err(_) => {
                return Err(WebRefusal::silent(format!(
                    "pod {pod:?} began no answer on port {} within {} s",
                    self.port,
                    times.answer.as_secs()
                )));
            }
        };
        let status = answer.status();
        let headers =
            headers::of_answer(answer.headers(), self.view, self.port, &self.method, status);
        let (status, body) = match (status, self.upgrade.filter(|_| websocket)) {
            (StatusCode::SWITCHING_PROTOCOLS, Some(client)) => {
                let pod = hyper::upgrade::on(&mut answer);
                tokio::spawn(websocket_between(
                    client,
                    pod,
                    right_lost,
                    times.silence,
                    (connection, place),
                ));
                (status, Body::empty())
            }
            (status, _) if status.is_informational() => {
                return Err(WebRefusal::broken(format!(
                    "pod {pod:?} answered {status} to a request that asks for no WebSocket"
                )));
            }
            (status, _) => {
                let body = answer.into_body();
                let body = PodBody::new(body, times.silence, right_lost, connection, place);
                (status, Body::new(body))
            }
        };
        let mut answer = Response::new(body);
        *answer.status_mut() = status;
        *answer.headers_mut() = headers;
        Ok(answer)
    }

    /// A connection to the pod's port.
    async fn connect(
        &self,
        opener: &ExecOpener,
    ) -> Result<(http1::SendRequest<Body>, OwnedTask), WebRefusal> {
        let streams = opener(self.request.clone())
            .await
            .map_err(|error| match error {
                ExecError::Unavailable(why) => WebRefusal::unavailable(why),
                ExecError::Refused(why) => WebRefusal::broken(why),
            })?;
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(HEADER_BYTES_MAX)
            .max_headers(HEADERS_MAX)
            .handshake(TokioIo::new(PodStream::over(streams)))
            .await
            .map_err(|error| WebRefusal::broken(cause(&error)))?;
        let task = tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(error = cause(&error), "a connection to a pod ended");
            }
        });
        Ok((sender, OwnedTask(task)))
    }
}

/// An error with its causes.
fn cause(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        words.push_str(": ");
        words.push_str(&error.to_string());
        source = error.source();
    }
    words
}

/// Carries a WebSocket until either side ends it, it is silent for too long, or the caller loses its right. What is
/// held for the connection is dropped at its end.
async fn websocket_between(
    client: OnUpgrade,
    pod: OnUpgrade,
    right_lost: BoxFuture<'static, ()>,
    silence: Duration,
    held: (OwnedTask, ProxyPlace),
) {
    let (Ok(client), Ok(pod)) = tokio::join!(client, pod) else {
        return;
    };
    let used = Mutex::new(Instant::now());
    let (from_client, to_client) = tokio::io::split(TokioIo::new(client));
    let (from_pod, to_pod) = tokio::io::split(TokioIo::new(pod));
    // Neither end can go on without the other.
    tokio::select! {
        () = pass(from_client, to_pod, &used) => {}
        () = pass(from_pod, to_client, &used) => {}
        () = right_lost => {}
        () = idle(&used, silence) => {}
    }
    drop(held);
}

/// Passes bytes on until the end of one direction.
async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    used: &Mutex<Instant>,
) {
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        let read = from.read(&mut buffer).await.unwrap_or(0);
        if read == 0 {
            break;
        }
        *used.lock() = Instant::now();
        if to.write_all(&buffer[..read]).await.is_err() || to.flush().await.is_err() {
            break;
        }
    }
    let _ = to.shutdown().await;
}

/// Returns when nothing was passed on for so long.
async fn idle(used: &Mutex<Instant>, silence: Duration) {
    loop {
        let until = *used.lock() + silence;
        if until <= Instant::now() {
            return;
        }
        tokio::time::sleep_until(until).await;
    }
}
