//! The hosts of pods' pages in front of all routes: their answers are the pods' own, without the headers that protect
//! Muster's. A panic ends one request only.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use futures::FutureExt as _;
use proxy::WebProxy;

use super::metrics::RequestMetrics;
use super::route_layer;

#[derive(Clone)]
struct PodPages {
    proxy: WebProxy,
    requests: Arc<RequestMetrics>,
}

/// The routes, with the hosts of pods' pages beside them.
pub fn beside(routes: Router, proxy: WebProxy, requests: Arc<RequestMetrics>) -> Router {
    let pages = PodPages { proxy, requests };
    Router::new()
        .fallback_service(routes)
        .layer(middleware::from_fn_with_state(pages, divide))
}

async fn divide(State(pages): State<PodPages>, request: Request<Body>, next: Next) -> Response {
    if !pages.proxy.owns(&request) {
        return next.run(request).await;
    }
    let begun = Instant::now();
    let method = request.method().clone();
    let answer = AssertUnwindSafe(pages.proxy.answer(request)).catch_unwind();
    let answer = answer.await.unwrap_or_else(|_| {
        tracing::error!(%method, "a request for a page of a pod panicked; it was answered 500");
        let words = "the server could not work on the request; its log says why\n";
        let mut answer = (StatusCode::INTERNAL_SERVER_ERROR, words).into_response();
        route_layer::protect(answer.headers_mut());
        answer
    });
    pages
        .requests
        .count(&method, answer.status(), begun.elapsed());
    answer
}
