//! Owns the server's components: store, schemas, configuration, caches, and the connections with
//! other crates. Other modules handle requests; `router` starts the API.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::RwLock;
use resources::access::Caller;
use resources::admission::pod_security::PodSecurity;
use resources::registry::Kind;
use resources::services::addresses::ServiceRange;
use schema::{SchemaError, Schemas};
use store::Store;

use crate::audit::Auditor;
use crate::authority::Authority;
use crate::decode::{self, ManifestsError};
use crate::exec_opener::ExecOpener;
use crate::exec_places::ExecCounts;
use crate::limits::{MOST_NAMESPACE_BYTES, SMALL_REQUEST_BYTES, STREAM_IDLE, WATCH_RECHECK};
use crate::log_opener::LogOpener;
use crate::node_authorizer::NodeAuthorizer;
use crate::pod_proxy::PodProxy;
use crate::priority_classes::PriorityClassCache;
use crate::request::BodyFormat;
use crate::usage_source::UsageSource;
use crate::users::Users;
use crate::watch_places::WatchPlaces;
use crate::work_threads::{By, RequestTurns, weight};

/// The configuration of the API.
#[derive(Debug, Clone)]
pub struct ApiConfig {
    /// The version in `/version`; Kubernetes clients read the minor version from it.
    pub git_version: String,
    /// The interval of bookmarks in a watch that requested them.
    pub bookmark_every: Duration,
    /// The duration of a watch without a timeout.
    pub watch_timeout: Duration,
    /// How often a watch checks that its caller is still authorised.
    pub watch_recheck: Duration,
    /// How long a client of a running container may have no input and output.
    pub stream_idle: Duration,
    /// The pod security configuration.
    pub pod_security: PodSecurity,
    /// The certificate of the server's authority, as PEM. With it every namespace has it as the ConfigMap
    /// `kube-root-ca.crt`, and pods get a token of their service account; without it neither.
    pub root_ca: Option<String>,
    /// The range of Services' addresses; without it Services have none.
    pub service_range: Option<ServiceRange>,
    /// The most bytes of a namespace's objects.
    pub namespace_bytes: u64,
    /// The clock.
    pub now: fn() -> Timestamp,
}

impl Default for ApiConfig {
    fn default() -> Self {
        ApiConfig {
            git_version: "v1.34.0+muster".into(),
            bookmark_every: Duration::from_secs(60),
            watch_timeout: Duration::from_secs(45 * 60),
            watch_recheck: WATCH_RECHECK,
            stream_idle: STREAM_IDLE,
            pod_security: PodSecurity::default(),
            root_ca: None,
            service_range: None,
            namespace_bytes: MOST_NAMESPACE_BYTES,
            now: Timestamp::now,
        }
    }
}

/// Why the API could not start.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The kinds' definitions are inconsistent: a bug in the build.
    #[error("the API's schemas do not load: {0}; this build is broken, use another")]
    Schemas(#[from] SchemaError),
    /// The initial objects could not be written.
    #[error("the API's first objects could not be written: {0}; check the data directory's disk")]
    FirstObjects(String),
}

pub(crate) struct Inner {
    pub(crate) store: Store,
    pub(crate) schemas: Schemas,
    pub(crate) config: ApiConfig,
    pub(crate) logs: RwLock<Option<LogOpener>>,
    pub(crate) exec_opener: RwLock<Option<ExecOpener>>,
    pub(crate) pod_proxy: RwLock<Option<PodProxy>>,
    pub(crate) usage: RwLock<Option<UsageSource>>,
    /// How many commands in containers each user runs.
    pub(crate) execs: ExecCounts,
    /// The open watches.
    pub(crate) watches: WatchPlaces,
    pub(crate) auditor: RwLock<Option<Auditor>>,
    pub(crate) priority_classes: PriorityClassCache,
    /// The rights of nodes.
    pub(crate) nodes: NodeAuthorizer,
    pub(crate) authority: Authority,
    pub(crate) users: RwLock<Option<Arc<Users>>>,
    /// The queue of large requests.
    pub(crate) large: RequestTurns,
    /// The lock of evictions that count against budgets.
    pub(crate) evictions: tokio::sync::Mutex<()>,
}

/// The resource API. Clones share one server.
#[derive(Clone)]
pub struct ApiServer(pub(crate) Arc<Inner>);

impl ApiServer {
    /// The API over a store, without its initial objects.
    ///
    /// # Errors
    /// If the kinds' schemas cannot be loaded.
    pub(crate) fn without_objects(
        store: Store,
        config: ApiConfig,
    ) -> Result<ApiServer, SchemaError> {
        let crds: Vec<serde_json::Value> = resources::crds::all()
            .iter()
            .map(|crd| serde_json::to_value(crd).expect("a CustomResourceDefinition is plain data"))
            .collect();
        let schemas = Schemas::load(&crds)?;
        Ok(ApiServer(Arc::new(Inner {
            authority: Authority::open(&store),
            users: RwLock::new(None),
            store,
            schemas,
            config,
            logs: RwLock::new(None),
            exec_opener: RwLock::new(None),
            pod_proxy: RwLock::new(None),
            usage: RwLock::new(None),
            execs: ExecCounts::default(),
            watches: WatchPlaces::default(),
            auditor: RwLock::new(None),
            large: RequestTurns::default(),
            evictions: tokio::sync::Mutex::new(()),
            priority_classes: PriorityClassCache::default(),
            nodes: NodeAuthorizer::default(),
        })))
    }

    /// Parses the manifests in a YAML text, within the bounds of a request's body and off the
    /// runtime's threads if it is large. Documents without content are skipped.
    ///
    /// # Errors
    /// The problem and the document, or that too many requests wait.
    pub async fn read_manifests(
        &self,
        caller: &Caller,
        text: String,
    ) -> Result<Vec<serde_json::Value>, ManifestsError> {
        let read = if weight(text.as_bytes(), BodyFormat::Yaml) <= SMALL_REQUEST_BYTES {
            decode::manifests(&text)
        } else {
            let turns = &self.0.large;
            let by = By::of(caller);
            let read = turns.elsewhere(&by, move || decode::manifests(&text));
            read.await
                .map_err(|failure| ManifestsError::NotRead(failure.message().to_owned()))?
        };
        read.map(|mut manifests| {
            manifests.retain(|manifest| !manifest.is_null());
            manifests
        })
    }

    /// Sets the opener of pods' logs. Until then `pods/log` answers that no log can be read.
    pub fn set_log_opener(&self, opener: LogOpener) {
        *self.0.logs.write() = Some(opener);
    }

    /// Sets the opener of commands in containers. Until then `pods/exec` answers that none can run.
    pub fn set_exec_opener(&self, opener: ExecOpener) {
        *self.0.exec_opener.write() = Some(opener);
    }

    /// Sets what carries out requests to programs in pods. Until then `pods/proxy` and `services/proxy` answer that none can
    /// be reached.
    pub fn set_pod_proxy(&self, proxy: PodProxy) {
        *self.0.pod_proxy.write() = Some(proxy);
    }

    /// Sets what says what nodes and pods use. Until then `metrics.k8s.io` answers that there are no measurements yet.
    pub fn set_usage_source(&self, source: UsageSource) {
        *self.0.usage.write() = Some(source);
    }

    /// A stored object; none if it does not exist or cannot be read. Checks no rights.
    pub fn stored(&self, kind: &Kind, namespace: &str, name: &str) -> Option<serde_json::Value> {
        let entry = self.0.store.get(&kind.key(Some(namespace), name))?;
        serde_json::from_slice(&entry.value).ok()
    }

    /// The stored objects of a namespace that have these labels, by name. Checks no rights.
    pub fn stored_with(
        &self,
        kind: &Kind,
        namespace: &str,
        labels: &BTreeMap<String, String>,
    ) -> Vec<serde_json::Value> {
        let prefix = kind.prefix(Some(namespace));
        let page = self.0.store.list(&prefix, None, usize::MAX);
        let has = |entry: &&Arc<store::Entry>| {
            let own = &entry.meta.labels;
            labels
                .iter()
                .all(|(key, value)| own.get(key) == Some(value))
        };
        let found = page.entries.iter().filter(has);
        found
            .filter_map(|entry| serde_json::from_slice(&entry.value).ok())
            .collect()
    }

    /// Sets the destination of audit events; without it requests are not recorded.
    pub fn set_auditor(&self, auditor: Option<Auditor>) {
        *self.0.auditor.write() = auditor;
    }

    /// The destination of audit events.
    pub fn auditor(&self) -> Option<Auditor> {
        self.0.auditor.read().clone()
    }

    /// Sets the source of users. Until then TokenReviews know only service accounts' tokens, and a
    /// user that is impersonated without groups has none.
    pub fn set_users(&self, users: Users) {
        *self.0.users.write() = Some(Arc::new(users));
    }

    pub(crate) fn users(&self) -> Option<Arc<Users>> {
        self.0.users.read().clone()
    }

    /// The groups in a user's own record.
    pub(crate) fn groups_of(&self, user: &str) -> Vec<String> {
        self.users()
            .map_or_else(Vec::new, |users| (users.groups)(user))
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.0.config.now)()
    }
}
