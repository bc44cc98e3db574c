//! Fleets for unit tests: one whose API answers nothing but accepts events, and one with an API of the test's own.

use std::sync::Arc;

use http::{Method, Request, Response};
use kube::client::Body;
use parking_lot::Mutex;

use crate::ca::CertificateAuthority;
use crate::{Fleet, FleetConfig};

/// A fleet and the events that it wrote.
pub fn fleet() -> (Arc<Fleet>, Arc<Mutex<Vec<String>>>) {
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
    (fleet_on(kube::Client::new(service, "default")), events)
}

/// A fleet whose API is this one.
pub fn fleet_on(client: kube::Client) -> Arc<Fleet> {
    let directory = tempfile::tempdir().unwrap();
    let ca = CertificateAuthority::load_or_create(directory.path()).unwrap();
    Fleet::start(client, FleetConfig::new(Arc::new(ca)))
}
