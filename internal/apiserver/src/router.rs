//! Owns the start of the API, its paths with their handlers, and the in-process client.

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, any};
use resources::access::Caller;
use store::Store;

use crate::server::{ApiConfig, ApiError, ApiServer};
use crate::{bootstrap, client, discovery, dispatch, openapi};

/// The paths of resources and of their discovery.
const RESOURCE_PATHS: [&str; 6] = [
    "/api",
    "/api/",
    "/api/{*path}",
    "/apis",
    "/apis/",
    "/apis/{*path}",
];

/// The other paths and their handlers.
fn other_paths() -> [(&'static str, MethodRouter<ApiServer>); 8] {
    [
        ("/version", any(discovery::version)),
        ("/version/", any(discovery::version)),
        ("/healthz", any(discovery::healthy)),
        ("/livez", any(discovery::healthy)),
        ("/readyz", any(discovery::healthy)),
        ("/openapi/v2", any(openapi::v2)),
        ("/openapi/v3", any(openapi::v3_index)),
        ("/openapi/v3/{*path}", any(openapi::v3)),
    ]
}

/// The paths of [`ApiServer::router`], for any method. Path parameters are in braces.
pub fn paths() -> Vec<&'static str> {
    let others = other_paths().map(|(path, _)| path);
    RESOURCE_PATHS.into_iter().chain(others).collect()
}

impl ApiServer {
    /// Starts the API over a store and writes the initial objects: namespaces, the default queue,
    /// the system's priority classes, roles and bindings. Idempotent. Blocks while they are
    /// written.
    ///
    /// # Errors
    /// If the kinds' schemas cannot be loaded or the store accepts no writes.
    pub fn open(store: Store, config: ApiConfig) -> Result<ApiServer, ApiError> {
        let server = ApiServer::without_objects(store, config)?;
        bootstrap::write(&server)?;
        Ok(server)
    }

    /// The routes, to be merged with others. An outer layer puts the [`Caller`] into the request's
    /// extensions; a request without one belongs to the anonymous user, who may read only health
    /// and version. Another outer layer is [`crate::impersonate`].
    pub fn router(&self) -> Router {
        let mut others = Router::new();
        for (path, handler) in other_paths() {
            others = others.route(path, handler);
        }
        let others = others.route_layer(from_fn_with_state(self.clone(), dispatch::permitted_path));
        let mut resources = Router::new();
        for path in RESOURCE_PATHS {
            resources = resources.route(path, any(dispatch::resources));
        }
        resources.merge(others).with_state(self.clone())
    }

    /// An in-process client for the given caller: no socket, the same rules.
    pub fn client(&self, caller: Caller) -> kube::Client {
        client::in_process(self.router(), caller)
    }
}
