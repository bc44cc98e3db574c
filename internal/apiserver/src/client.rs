//! Owns the in-process client: a `kube::Client` whose transport is the router itself.

use axum::Router;
use axum::body::Body;
use http::Request;
use resources::access::Caller;
use tower::ServiceExt;

/// The default namespace of a client.
const DEFAULT_NAMESPACE: &str = "default";

/// Marks a request as coming from this process: its lists and watches omit
/// `metadata.managedFields`. Muster's components keep thousands of decoded objects, which would
/// consist mostly of field managers, and never read them; a write without them keeps the stored
/// ones.
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
