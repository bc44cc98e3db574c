//! Owns the in-process client: a `kube::Client` whose transport is the router itself.

use axum::Router;
use axum::body::Body;
use http::Request;
use resources::access::Caller;
use tower::ServiceExt;

/// The namespace a client falls back to.
const DEFAULT_NAMESPACE: &str = "default";

pub(crate) fn in_process(router: Router, caller: Caller) -> kube::Client {
    let service =
        router
            .into_service::<Body>()
            .map_request(move |request: Request<kube::client::Body>| {
                let mut request = request.map(Body::new);
                request.extensions_mut().insert(caller.clone());
                request
            });
    kube::Client::new(service, DEFAULT_NAMESPACE)
}
