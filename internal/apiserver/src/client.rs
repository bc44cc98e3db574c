//! Owns the in-process client: a `kube::Client` whose transport is the router itself.

use axum::Router;
use axum::body::Body;
use http::Request;
use resources::access::Caller;
use tower::ServiceExt;

/// The namespace a client falls back to.
const DEFAULT_NAMESPACE: &str = "default";

/// Marks a request as coming from this process: its lists and watches leave `metadata.managedFields` out. Muster's
/// parts keep thousands of objects decoded, of which field managers would be most, and none reads them; a write
/// without them keeps those that are stored.
#[derive(Clone, Copy)]
pub(crate) struct InProcess;

pub(crate) fn in_process(router: Router, caller: Caller) -> kube::Client {
    let service =
        router
            .into_service::<Body>()
            .map_request(move |request: Request<kube::client::Body>| {
                let mut request = request.map(Body::new);
                request.extensions_mut().insert(caller.clone());
                request.extensions_mut().insert(InProcess);
                request
            });
    kube::Client::new(service, DEFAULT_NAMESPACE)
}
