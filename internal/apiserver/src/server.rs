//! Owns the server's parts and how it opens: store, schemas, configuration. Request handling is elsewhere.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::any;
use jiff::Timestamp;
use parking_lot::RwLock;
use resources::access::Caller;
use schema::{SchemaError, Schemas};
use store::Store;

use crate::logs::LogOpener;
use crate::{admission, bootstrap, client, discovery, dispatch, openapi};

/// What may be set about the API.
#[derive(Debug, Clone)]
pub struct ApiConfig {
    /// What `/version` says; Kubernetes clients read the minor version from it.
    pub git_version: String,
    /// How often a watch that asked for bookmarks gets one.
    pub bookmark_every: Duration,
    /// How long a watch lasts that names no timeout.
    pub watch_timeout: Duration,
    /// The clock.
    pub now: fn() -> Timestamp,
}

impl Default for ApiConfig {
    fn default() -> Self {
        ApiConfig {
            git_version: "v1.34.0+muster".into(),
            bookmark_every: Duration::from_secs(60),
            watch_timeout: Duration::from_secs(45 * 60),
            now: Timestamp::now,
        }
    }
}

/// Why the API could not open.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The definitions of the kinds do not fit together: a fault of the build.
    #[error("the API's schemas do not load: {0}; this build is broken, use another")]
    Schemas(#[from] SchemaError),
    /// The objects that must exist from the start could not be written.
    #[error("the API's first objects could not be written: {0}; check the data directory's disk")]
    FirstObjects(String),
}

pub(crate) struct Inner {
    pub(crate) store: Store,
    pub(crate) schemas: Schemas,
    pub(crate) config: ApiConfig,
    pub(crate) logs: RwLock<Option<LogOpener>>,
    pub(crate) admission: admission::Memory,
    /// Held by the eviction whose turn it is, where budgets count.
    pub(crate) evictions: tokio::sync::Mutex<()>,
}

/// The resource API. Clones share one server.
#[derive(Clone)]
pub struct ApiServer(pub(crate) Arc<Inner>);

impl ApiServer {
    /// Opens the API over a store and writes what must exist from the start: namespaces, the default queue and
    /// the system's priority classes. Doing so again changes nothing. Blocks while they are written.
    ///
    /// # Errors
    /// When the kinds' schemas do not load or the store takes no writes.
    pub fn open(store: Store, config: ApiConfig) -> Result<ApiServer, ApiError> {
        let crds: Vec<serde_json::Value> = resources::crds::all()
            .iter()
            .map(|crd| serde_json::to_value(crd).expect("a CustomResourceDefinition is plain data"))
            .collect();
        let schemas = Schemas::load(&crds)?;
        let server = ApiServer(Arc::new(Inner {
            store,
            schemas,
            config,
            logs: RwLock::new(None),
            evictions: tokio::sync::Mutex::new(()),
            admission: admission::Memory::default(),
        }));
        bootstrap::write(&server)?;
        Ok(server)
    }

    /// The routes, to be merged with others. A layer outside puts the [`Caller`] into the request's extensions;
    /// a request without one is answered 401.
    pub fn router(&self) -> Router {
        let handler = any(dispatch::resources);
        Router::new()
            .route("/api", handler.clone())
            .route("/api/", handler.clone())
            .route("/api/{*path}", handler.clone())
            .route("/apis", handler.clone())
            .route("/apis/", handler.clone())
            .route("/apis/{*path}", handler)
            .route("/version", any(discovery::version))
            .route("/version/", any(discovery::version))
            .route("/healthz", any(discovery::healthy))
            .route("/livez", any(discovery::healthy))
            .route("/readyz", any(discovery::healthy))
            .route("/openapi/v2", any(openapi::v2))
            .route("/openapi/v3", any(openapi::v3_index))
            .route("/openapi/v3/{*path}", any(openapi::v3))
            .with_state(self.clone())
    }

    /// A client in this process, as the caller given: no socket, the same rules.
    pub fn client(&self, caller: Caller) -> kube::Client {
        client::in_process(self.router(), caller)
    }

    /// Sets who opens pods' logs. Until then `pods/log` says that none can be read.
    pub fn set_log_opener(&self, opener: LogOpener) {
        *self.0.logs.write() = Some(opener);
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.0.config.now)()
    }
}
