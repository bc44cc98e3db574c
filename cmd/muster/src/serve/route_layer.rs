//! The layer around every route. A panic ends one request only; the unread rest of a request's body is read before
//! the response is sent; every response has headers that keep browsers from misinterpreting it. The layer does not
//! interpret requests.

use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use apiserver::limits::MOST_BODY_BYTES;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::oneshot;

use super::metrics::RequestMetrics;

/// The most bytes of an unread body that are read and discarded. A client that still sends when the connection closes
/// may never see the response; for a body with more than the largest accepted size that is tolerated.
const MOST_DISCARDED: usize = MOST_BODY_BYTES;

/// How long reading an unread body may delay its response.
const LONGEST_DISCARD: Duration = Duration::from_secs(5);

/// What a browser may do with a response that is not a page of the web UI: display it, nothing else. Pages set their
/// own policy.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; form-action 'none'; base-uri 'none'";

/// The routes with this layer around them.
pub fn around(routes: Router, requests: Arc<RequestMetrics>) -> Router {
    Router::new()
        .fallback_service(routes)
        .layer(middleware::from_fn_with_state(requests, guarded))
}

async fn guarded(
    State(requests): State<Arc<RequestMetrics>>,
    request: Request,
    next: Next,
) -> Response {
    let begun = Instant::now();
    let method = request.method().clone();
    let response = contained(request, next).await;
    requests.count(&method, response.status(), begun.elapsed());
    response
}

async fn contained(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let (method, path) = (parts.method.clone(), parts.uri.path().to_owned());
    // An agent's stream is endless, so that its body is not read to the end.
    let streams = parts
        .headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    let (body, unread) = if streams || body.is_end_stream() {
        (body, None)
    } else {
        let waits = parts.headers.contains_key(header::EXPECT);
        let (body, unread) = Returned::around(body, waits);
        (Body::new(body), Some(unread))
    };
    let asked = next.run(Request::from_parts(parts, body));
    let mut response = match AssertUnwindSafe(asked).catch_unwind().await {
        Ok(response) => response,
        Err(_) => {
            tracing::error!(%method, path, "a request panicked; it was answered 500");
            panicked()
        }
    };
    if let Some(mut unread) = unread
        && let Ok(rest) = unread.try_recv()
    {
        discard(rest).await;
    }
    if !streams {
        protect(response.headers_mut());
    }
    response
}

fn panicked() -> Response {
    let status = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "Internal error occurred: the request could not be worked on; the server's log says why",
        "reason": "InternalError", "code": 500,
    });
    (StatusCode::INTERNAL_SERVER_ERROR, axum::Json(status)).into_response()
}

/// Adds the headers that keep browsers from misinterpreting a response.
pub fn protect(headers: &mut HeaderMap) {
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    headers
        .entry(header::CONTENT_SECURITY_POLICY)
        .or_insert(HeaderValue::from_static(POLICY));
    headers
        .entry(header::REFERRER_POLICY)
        .or_insert(HeaderValue::from_static("no-referrer"));
}

/// Reads a body to its end, within the bounds.
async fn discard(mut body: Body) {
    if body.size_hint().lower() > MOST_DISCARDED as u64 {
        return;
    }
    let reading = async {
        let mut left = MOST_DISCARDED;
        while let Some(Ok(frame)) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            let bytes = frame.data_ref().map_or(0, |data| data.len());
            match left.checked_sub(bytes) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    };
    // A body that takes too long counts as too large: the response is sent either way.
    let _ = tokio::time::timeout(LONGEST_DISCARD, reading).await;
}

/// A request's body that is handed back if it is dropped before its end, also after an error: a client may still send.
struct Returned {
    body: Option<Body>,
    back: Option<oneshot::Sender<Body>>,
    /// Whether the client sends the body: it sends without `Expect`, or has been asked for it.
    sent: bool,
}

impl Returned {
    /// `waits`: the client sends the body only after the first read (`Expect: 100-continue`).
    fn around(body: Body, waits: bool) -> (Returned, oneshot::Receiver<Body>) {
        let (back, unread) = oneshot::channel();
        let returned = Returned {
            body: Some(body),
            back: Some(back),
            sent: !waits,
        };
        (returned, unread)
    }
}

impl HttpBody for Returned {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        this.sent = true;
        let Some(body) = &mut this.body else {
            return Poll::Ready(None);
        };
        let frame = ready!(Pin::new(body).poll_frame(cx));
        if frame.is_none() {
            this.body = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let empty = || SizeHint::with_exact(0);
        self.body.as_ref().map_or_else(empty, HttpBody::size_hint)
    }
}

impl Drop for Returned {
    fn drop(&mut self) {
        if let (Some(body), Some(back)) = (self.body.take(), self.back.take())
            && self.sent
            && !body.is_end_stream()
        {
            // If the request itself was cancelled, the receiver is gone.
            let _ = back.send(body);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::routing::{get, post};
    use futures::{StreamExt, stream};
    use tower::ServiceExt;

    use super::*;

    /// A body of `count` pieces of 1 KiB, and a counter of the pieces read.
    fn pieces(count: usize) -> (Body, Arc<AtomicUsize>) {
        let read = Arc::new(AtomicUsize::new(0));
        let counted = read.clone();
        let pieces = stream::iter(0..count).map(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            Ok::<_, std::io::Error>(Bytes::from_static(&[b'x'; 1024]))
        });
        (Body::from_stream(pieces), read)
    }

    fn routes() -> Router {
        around(
            Router::new()
                .route("/refuse", post(async || StatusCode::UNAUTHORIZED))
                .route("/read", post(async |body: Bytes| body.len().to_string()))
                .route(
                    "/panic",
                    get(async || -> StatusCode { panic!("on purpose") }),
                )
                .route(
                    "/page",
                    get(async || [(header::CONTENT_SECURITY_POLICY, "default-src 'self'")]),
                ),
            Arc::default(),
        )
    }

    async fn send(request: Request) -> Response {
        routes().oneshot(request).await.unwrap()
    }

    #[tokio::test]
    async fn the_rest_of_a_refused_body_is_read_up_to_a_bound() {
        let (body, read) = pieces(1024);
        let answer = send(Request::post("/refuse").body(body).unwrap()).await;
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
        assert_eq!(read.load(Ordering::SeqCst), 1024);

        let most = MOST_DISCARDED / 1024;
        let (body, read) = pieces(10 * most);
        send(Request::post("/refuse").body(body).unwrap()).await;
        assert_eq!(read.load(Ordering::SeqCst), most + 1);

        let (body, read) = pieces(2);
        let path = Request::post("/no-such-route");
        let answer = send(path.body(body).unwrap()).await;
        assert_eq!(answer.status(), StatusCode::NOT_FOUND);
        assert_eq!(read.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn a_body_that_the_client_holds_back_is_not_asked_for() {
        let (body, read) = pieces(4);
        let request = Request::post("/refuse").header(header::EXPECT, "100-continue");
        send(request.body(body).unwrap()).await;
        assert_eq!(read.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn an_agents_stream_is_left_alone() {
        let (body, read) = pieces(4);
        let request = Request::post("/refuse").header(header::CONTENT_TYPE, "application/grpc");
        let answer = send(request.body(body).unwrap()).await;
        assert_eq!(read.load(Ordering::SeqCst), 0);
        assert!(!answer.headers().contains_key(header::REFERRER_POLICY));
    }

    #[tokio::test]
    async fn a_body_that_is_read_reaches_its_reader_whole() {
        let (body, _) = pieces(3);
        let answer = send(Request::post("/read").body(body).unwrap()).await;
        let text = axum::body::to_bytes(answer.into_body(), 100).await.unwrap();
        assert_eq!(text, "3072");
    }

    #[tokio::test]
    async fn a_panic_is_a_500_with_a_status_and_the_next_request_is_answered() {
        for _ in 0..2 {
            let answer = send(Request::get("/panic").body(Body::empty()).unwrap()).await;
            assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
            let text = axum::body::to_bytes(answer.into_body(), 4096)
                .await
                .unwrap();
            let status: serde_json::Value = serde_json::from_slice(&text).unwrap();
            assert_eq!(
                (&status["kind"], &status["code"]),
                (&"Status".into(), &500.into())
            );
        }
    }

    #[tokio::test]
    async fn every_answer_is_protected_and_a_page_keeps_its_policy() {
        for (path, policy) in [
            ("/page", "default-src 'self'"),
            ("/none", POLICY),
            ("/panic", POLICY),
        ] {
            let answer = send(Request::get(path).body(Body::empty()).unwrap()).await;
            let headers = answer.headers();
            assert_eq!(headers[header::X_CONTENT_TYPE_OPTIONS], "nosniff", "{path}");
            assert_eq!(headers[header::CONTENT_SECURITY_POLICY], policy, "{path}");
            assert_eq!(headers[header::REFERRER_POLICY], "no-referrer", "{path}");
        }
    }
}
