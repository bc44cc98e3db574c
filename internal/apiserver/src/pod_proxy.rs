//! Requests below `pods/NAME/proxy` and `services/NAME/proxy`, which another crate carries out: what it is given of them,
//! and which paths they have. The dispatcher has checked the right to the request's verb.

use std::sync::Arc;

use axum::body::Body;
use futures::future::BoxFuture;
use http::Response;
use http::request::Parts;
use resources::access::{Caller, Credential};
use resources::registry::Kind;

/// The subresource.
pub const PROXY: &str = "proxy";

/// A request to a program in a pod.
pub struct ProxiedRequest {
    /// The request.
    pub parts: Parts,
    /// Its body.
    pub body: Body,
    /// The kind: of pods, or of Services.
    pub kind: &'static Kind,
    /// The namespace.
    pub namespace: String,
    /// The object in the path, as `[SCHEME:]NAME[:PORT]`.
    pub object: String,
    /// The program's own path as it was sent; empty if nothing follows the subresource, not even a slash.
    pub below: String,
    /// The caller.
    pub caller: Caller,
    /// The caller's credential, if it may end before the request does.
    pub credential: Option<Credential>,
}

/// Carries such a request out.
pub type PodProxy = Arc<dyn Fn(ProxiedRequest) -> BoxFuture<'static, Response<Body>> + Send + Sync>;

/// True if a path is below the subresource.
pub fn is_proxied(path: &str) -> bool {
    below(path).is_some()
}

/// The part of a namespaced object's path after `/proxy`, as it was sent; empty if nothing follows, not even a slash.
/// None for another path.
pub fn below(path: &str) -> Option<&str> {
    // /api/VERSION/namespaces/NAMESPACE/RESOURCE/NAME/proxy
    const SEGMENTS: usize = 7;
    let trimmed = path.trim_start_matches('/');
    let end = trimmed.match_indices('/').nth(SEGMENTS - 1);
    let (own, below) = trimmed.split_at(end.map_or(trimmed.len(), |(at, _)| at));
    let segments: Vec<&str> = own.split('/').collect();
    let is_proxied = segments.len() == SEGMENTS
        && segments.first() == Some(&"api")
        && segments.last() == Some(&PROXY);
    is_proxied.then_some(below)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxied_path_keeps_what_follows_as_it_was_sent() {
        let path = "/api/v1/namespaces/a/services/web:80/proxy";
        for more in ["", "/", "/x%2Fy//z/", "/namespaces/b"] {
            assert_eq!(below(&format!("{path}{more}")), Some(more));
        }
        for other in [
            "/api/v1/pods",
            "/api/v1/namespaces/a/pods/b/log/proxy",
            "/",
            "",
        ] {
            assert_eq!(below(other), None, "{other}");
        }
    }
}
