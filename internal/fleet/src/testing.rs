//! An API for unit tests that answers nothing but accepts events.

use std::sync::Arc;

use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;

/// A client of that API, and the events that were written.
pub fn client() -> (Client, Arc<Mutex<Vec<String>>>) {
    let events: Arc<Mutex<Vec<String>>> = Arc::default();
    let written = events.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let written = written.clone();
        async move {
            if *request.method() != Method::POST || !request.uri().path().ends_with("/events") {
                return Err(std::io::Error::other("nowhere"));
            }
            let bytes = request.into_body().collect_bytes().await;
            let bytes = bytes.map_err(std::io::Error::other)?;
            written
                .lock()
                .push(String::from_utf8_lossy(&bytes).into_owned());
            Ok(Response::new(Body::from(bytes.to_vec())))
        }
    });
    (Client::new(service, "default"), events)
}
