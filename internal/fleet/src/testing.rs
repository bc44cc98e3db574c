//! A fleet for unit tests, whose API answers nothing but accepts events.

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
    let directory = tempfile::tempdir().unwrap();
    let ca = CertificateAuthority::load_or_create(directory.path()).unwrap();
    let client = kube::Client::new(service, "default");
    (Fleet::start(client, FleetConfig::new(Arc::new(ca))), events)
}
