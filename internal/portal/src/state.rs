//! The state of the handlers: identities, and interfaces to other components that the binary
//! connects.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use administration::idle_jobs::IdleJob;
use axum::extract::{FromRef, FromRequestParts};
use axum::http::request::Parts;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use identity::Identity;
use jiff::Timestamp;
use resources::access::{Caller, RequestAttributes};
use resources::defragmentation::DefragmentationReport;
use resources::exposition::Page;
use resources::queue_status::QueueUsageStatus;
use resources::record::DecisionRecord;
use resources::report::{PlacementReport, Preemptable};
use resources::upgrade::{Rollout, StoreStatus, UpgradeStatus};

use crate::board::{Board, JobEntry, JobRow, NodeCard, Picture, QueueRow};
use crate::oidc_sign_in::OidcSignIn;
use crate::problem::Problem;

/// The API group that roles use for Muster's own resources that are not objects.
const OWN_GROUP: &str = "muster.io";

/// The API group of queues and gangs.
pub const VOLCANO_GROUP: &str = "scheduling.volcano.sh";

/// The portal's state. Cheap to clone.
#[derive(Clone)]
pub struct Portal {
    /// Users, sessions and tokens.
    pub identity: Identity,
    /// The data that the pages show, kept current.
    pub board: Board,
    /// Interfaces to the other components.
    pub hooks: Arc<Backends>,
    /// Signing in by OpenID Connect, if a provider is configured.
    pub oidc: Option<Arc<OidcSignIn>>,
}

impl FromRef<Portal> for Identity {
    fn from_ref(portal: &Portal) -> Identity {
        portal.identity.clone()
    }
}

/// A log's bytes as they arrive.
pub type LogStream = BoxStream<'static, Result<Bytes, std::io::Error>>;

/// The log, and the part of it to read.
#[derive(Clone, Debug, Default)]
pub struct LogQuery {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name; the pod may be deleted.
    pub pod: String,
    /// The container; the first by default.
    pub container: Option<String>,
    /// Follow the log until the container ends.
    pub follow: bool,
    /// Only the last lines.
    pub tail_lines: Option<u64>,
    /// Prefix each line with its time.
    pub timestamps: bool,
    /// The container's previous run.
    pub previous: bool,
}

/// Why a log cannot be read.
#[derive(Clone, Debug)]
pub struct LogProblem {
    /// HTTP status.
    pub status: u16,
    /// The problem and its remedy.
    pub detail: String,
}

/// Why a node did not answer, or why a request about nodes was refused.
#[derive(Clone, Debug)]
pub struct NodeRequestProblem {
    /// HTTP status.
    pub status: u16,
    /// The problem and its remedy.
    pub detail: String,
}

/// Why no backup was written; the text is for the administrator that requested it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct BackupFailed {
    /// The failed step, the file, and the remedy.
    pub reason: String,
}

/// Why a request about an upgrade was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpgradeRefusal {
    /// A value of the request is invalid, or the state of the cluster does not permit it.
    #[error("{0}")]
    Conflict(String),
    /// The server could not do it.
    #[error("{0}")]
    Failed(String),
}

/// The parameters of a rollout of a binary to agents.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RolloutRequest {
    /// The most agents that are upgraded at a time.
    pub max_unavailable: u32,
    /// The binary's path on the server's disk; the server's own binary if none.
    pub binary: Option<std::path::PathBuf>,
}

type UpgradeAnswer<T> = BoxFuture<'static, Result<T, UpgradeRefusal>>;

/// What the server does about upgrades.
pub struct UpgradeBackend {
    /// The state.
    pub status: Box<dyn Fn() -> UpgradeAnswer<UpgradeStatus> + Send + Sync>,
    /// Gives up that older binaries may read the store.
    pub finalize: Box<dyn Fn() -> UpgradeAnswer<StoreStatus> + Send + Sync>,
    /// Begins a rollout of a binary to agents, or goes on with the one that was stopped.
    pub roll_out: Box<dyn Fn(RolloutRequest) -> UpgradeAnswer<Rollout> + Send + Sync>,
    /// Stops the rollout before the next agent; false if none is running.
    pub stop: Box<dyn Fn() -> UpgradeAnswer<bool> + Send + Sync>,
}

/// Why a YAML text cannot be read as manifests; the text is for its author.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct UnreadableManifests {
    /// The problem and its position.
    pub reason: String,
}

/// The options of a new join token for agents.
#[derive(Clone, Debug)]
pub struct NewJoinToken {
    /// How long it is valid.
    pub ttl: Duration,
    /// The only node that may join with it; any node if none.
    pub node: Option<String>,
    /// How many joins it is valid for.
    pub uses: u32,
}

/// A new join token for an agent.
#[derive(Clone, Debug)]
pub struct CreatedJoinToken {
    /// The secret for the agent, returned once.
    pub secret: String,
    /// The id for listing and revoking it.
    pub id: String,
    /// When it expires.
    pub expires: Timestamp,
    /// The server's address for nodes, as `https://HOST:PORT`.
    pub server: String,
}

/// A join token in a list.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ListedJoinToken {
    /// The id for revoking it.
    pub id: String,
    /// Its purpose.
    pub description: String,
    /// The only node that may join with it.
    pub node: Option<String>,
    /// How many joins remain.
    pub uses: u32,
    /// When it expires.
    pub expires: Timestamp,
}

/// The parameters of a backup.
#[derive(Clone, serde::Deserialize)]
pub struct BackupRequest {
    /// The path of the new file on the server's disk.
    pub path: std::path::PathBuf,
    /// Encrypts it.
    pub passphrase: Option<String>,
}

type Permits = dyn Fn(&Caller, &RequestAttributes<'_>) -> bool + Send + Sync;
type PermitsPath = dyn Fn(&Caller, &str) -> bool + Send + Sync;
type WriteMetrics = dyn Fn(&mut Page) + Send + Sync;
type ClientFor = dyn Fn(&Caller) -> kube::Client + Send + Sync;
type Explain = dyn Fn(&str, &str) -> Option<PlacementReport> + Send + Sync;
type CouldEvict = dyn Fn(String, String) -> BoxFuture<'static, Vec<Preemptable>> + Send + Sync;
type HistorySource = dyn Fn(&str, &str) -> Vec<DecisionRecord> + Send + Sync;
type QueuesSource =
    dyn Fn() -> BoxFuture<'static, BTreeMap<String, QueueUsageStatus>> + Send + Sync;
type Defragmentation = dyn Fn() -> BoxFuture<'static, DefragmentationReport> + Send + Sync;
type OpenLog = dyn Fn(LogQuery) -> BoxFuture<'static, Result<LogStream, LogProblem>> + Send + Sync;
type RdmaRequestSource = dyn Fn(
        String,
        serde_json::Value,
    ) -> BoxFuture<'static, Result<serde_json::Value, NodeRequestProblem>>
    + Send
    + Sync;
type IssueJoinToken = dyn Fn(NewJoinToken) -> BoxFuture<'static, Result<CreatedJoinToken, NodeRequestProblem>>
    + Send
    + Sync;
type ListJoinTokens =
    dyn Fn() -> BoxFuture<'static, Result<Vec<ListedJoinToken>, NodeRequestProblem>> + Send + Sync;
type ByName = dyn Fn(String) -> BoxFuture<'static, Result<bool, NodeRequestProblem>> + Send + Sync;
type BackupSource =
    dyn Fn(BackupRequest) -> BoxFuture<'static, Result<(), BackupFailed>> + Send + Sync;
type ReadManifests = dyn Fn(Caller, String) -> BoxFuture<'static, Result<Vec<serde_json::Value>, UnreadableManifests>>
    + Send
    + Sync;
type PreviewSource =
    dyn Fn(serde_json::Value) -> BoxFuture<'static, Option<Previewed>> + Send + Sync;

/// Where the pods of a job would be placed if it were submitted now, as (pod, node), or the reason
/// why it would be pending.
pub type Previewed = Result<Vec<(String, String)>, Box<PlacementReport>>;

/// The book of allocations. It is locked for as long as an answer takes.
pub type SharedUsage = Arc<parking_lot::Mutex<usage::UsageBook>>;

/// The jobs whose GPUs do nothing, and when they were judged last.
#[derive(Clone)]
pub struct JudgedIdleJobs {
    /// When.
    pub at: Timestamp,
    /// The jobs, those that are idle for longest first.
    pub jobs: Arc<Vec<IdleJob>>,
}

/// The idle jobs; none before the server judged them for the first time.
pub type SharedIdleJobs = Arc<parking_lot::Mutex<Option<JudgedIdleJobs>>>;

/// The alerts, their silences and receivers.
pub type SharedAlerts = Arc<parking_lot::Mutex<alerting::Alerts>>;

/// Why measurements cannot be read; the text is for the reader.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct MeasurementsUnread {
    /// The problem and its remedy.
    pub reason: String,
}

type MeasuredSource = dyn Fn(
        measurements::HistoryQuery,
    ) -> BoxFuture<'static, Result<Vec<Vec<measurements::Point>>, MeasurementsUnread>>
    + Send
    + Sync;

/// Interfaces to the other components, so that this crate does not depend on them.
pub struct Backends {
    /// The resource API as a caller.
    pub client_for: Box<ClientFor>,
    /// Asks the resource API whether a caller may do something.
    pub permits: Box<Permits>,
    /// The report of a pending gang (namespace, PodGroup or pod).
    pub explain: Box<Explain>,
    /// The gangs whose eviction would let a pending gang (namespace, PodGroup or pod) start.
    pub could_evict: Box<CouldEvict>,
    /// The scheduling decisions about a gang (namespace, PodGroup or pod), the oldest first.
    pub history: Box<HistorySource>,
    /// The points of each series of a question about measurements, in its order.
    pub measured: Box<MeasuredSource>,
    /// The status of every queue, by name.
    pub queues: Box<QueuesSource>,
    /// The current plan of defragmentation; changes nothing.
    pub defragmentation: Box<Defragmentation>,
    /// Opens a log, also of a deleted pod.
    pub open_log: Box<OpenLog>,
    /// Asks a node (by name) for its part in a check of RDMA between two nodes.
    pub ask_rdma: Box<RdmaRequestSource>,
    /// Issues a join token for an agent.
    pub issue_join_token: Box<IssueJoinToken>,
    /// Lists the join tokens.
    pub list_join_tokens: Box<ListJoinTokens>,
    /// Revokes a join token by its id; false if it does not exist.
    pub revoke_join_token: Box<ByName>,
    /// Removes a node by its name and revokes its certificates; false if it does not exist.
    pub remove_node: Box<ByName>,
    /// Parses the manifests in a YAML text as the resource API parses bodies, within its bounds.
    pub read_manifests: Box<ReadManifests>,
    /// Asks the scheduler where a job's pods would be placed, without changes; none for a kind
    /// without pods.
    pub preview: Box<PreviewSource>,
    /// Writes a backup of all data to a new file on the server's disk.
    pub backup: Box<BackupSource>,
    /// Upgrades of the server and its agents.
    pub upgrade: UpgradeBackend,
    /// The book of allocations.
    pub usage: SharedUsage,
    /// The alerts.
    pub alerts: SharedAlerts,
    /// The jobs whose GPUs do nothing.
    pub idle_jobs: SharedIdleJobs,
    /// Asks the resource API whether a caller may GET a path that is not a resource.
    pub permits_path: Box<PermitsPath>,
    /// Writes the scheduler's, the listener's and the process's metrics on the page.
    pub metrics: Box<WriteMetrics>,
}

impl Portal {
    /// The resource API as a caller.
    pub fn client(&self, caller: &Caller) -> kube::Client {
        (self.hooks.client_for)(caller)
    }

    /// True if this caller may do this.
    pub fn permits(&self, caller: &Caller, wanted: &RequestAttributes<'_>) -> bool {
        (self.hooks.permits)(caller, wanted)
    }

    /// True if this caller may do this to Muster's own resources that are not objects (`backups`,
    /// `jointokens`, ...). Roles grant them in the API group `muster.io`.
    pub fn permits_own(&self, caller: &Caller, verb: &str, resource: &str) -> bool {
        self.permits_cluster(caller, verb, OWN_GROUP, resource, None)
    }

    /// The nodes, for a caller that may list them; pods on them are named only if the caller may
    /// read pods.
    pub fn nodes(&self, caller: &Caller) -> Result<Vec<NodeCard>, Problem> {
        self.require(caller, "list", "", "nodes", None)?;
        Ok(self
            .board
            .nodes(|namespace| self.may_see(caller, "", "pods", namespace)))
    }

    /// The same for one node, with its picture; none if the node does not exist.
    pub fn node(
        &self,
        caller: &Caller,
        name: &str,
    ) -> Result<Option<(NodeCard, Option<Picture>)>, Problem> {
        self.require(caller, "get", "", "nodes", Some(name))?;
        let sees = |namespace: &str| self.may_see(caller, "", "pods", namespace);
        Ok(self.board.node(name, sees))
    }

    /// The queues, for a caller that may list them.
    pub fn queues(&self, caller: &Caller) -> Result<Vec<QueueRow>, Problem> {
        self.require(caller, "list", VOLCANO_GROUP, "queues", None)?;
        Ok(self.board.queues())
    }

    /// One queue, for a caller that may read it; none if the queue does not exist.
    pub fn queue(&self, caller: &Caller, name: &str) -> Result<Option<QueueRow>, Problem> {
        self.require(caller, "get", VOLCANO_GROUP, "queues", Some(name))?;
        let mut rows = self.board.queues().into_iter();
        Ok(rows.find(|row| row.name == name))
    }

    /// True if this caller may do this to a kind without namespaces.
    pub fn permits_cluster(
        &self,
        caller: &Caller,
        verb: &str,
        group: &str,
        resource: &str,
        name: Option<&str>,
    ) -> bool {
        let wanted = RequestAttributes {
            verb,
            group,
            resource,
            name,
            ..RequestAttributes::default()
        };
        self.permits(caller, &wanted)
    }

    /// Refuses a caller that may not do this to a kind without namespaces.
    pub(crate) fn require(
        &self,
        caller: &Caller,
        verb: &str,
        group: &str,
        resource: &str,
        name: Option<&str>,
    ) -> Result<(), Problem> {
        if self.permits_cluster(caller, verb, group, resource, name) {
            return Ok(());
        }
        Err(Problem::forbidden(format!(
            "user {:?} may not {verb} {resource}; an administrator can bind a role that permits it",
            caller.user
        )))
    }

    /// The gangs whose eviction would let a pending gang start, as far as the caller may see them.
    pub async fn could_evict(
        &self,
        caller: &Caller,
        namespace: &str,
        group: &str,
    ) -> Vec<Preemptable> {
        let asked = (self.hooks.could_evict)(namespace.to_owned(), group.to_owned());
        let mut victims = asked.await;
        victims
            .retain(|victim| self.may_see(caller, VOLCANO_GROUP, "podgroups", &victim.namespace));
        victims
    }

    /// True if this caller may read a pod's log.
    pub fn reads_log(&self, caller: &Caller, namespace: &str, pod: &str) -> bool {
        let wanted = RequestAttributes {
            verb: "get",
            resource: "pods",
            subresource: Some("log"),
            namespace: Some(namespace),
            name: Some(pod),
            ..RequestAttributes::default()
        };
        self.permits(caller, &wanted)
    }

    /// The jobs that this caller may see, newest first.
    pub fn jobs(&self, caller: &Caller, now: Timestamp) -> Vec<JobRow> {
        let sees = |group: &str, plural: &str, namespace: &str| {
            self.may_see(caller, group, plural, namespace)
        };
        self.board.jobs(sees, now)
    }

    /// The jobs, CronJobs and pods without a job that this caller may see, newest first.
    pub fn entries(&self, caller: &Caller) -> Vec<Arc<JobEntry>> {
        let sees = |group: &str, plural: &str, namespace: &str| {
            self.may_see(caller, group, plural, namespace)
        };
        self.board.entries(sees)
    }

    /// True if this caller may see a job or gang of this kind in a namespace.
    pub fn may_see(&self, caller: &Caller, group: &str, resource: &str, namespace: &str) -> bool {
        let wanted = RequestAttributes {
            verb: "get",
            group,
            resource,
            namespace: Some(namespace),
            ..RequestAttributes::default()
        };
        self.permits(caller, &wanted)
    }
}

/// The caller of a request; 401 if there is none.
pub struct SignedIn(pub Caller);

impl<S: Sync> FromRequestParts<S> for SignedIn {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        match parts.extensions.get::<Caller>() {
            Some(caller) => Ok(SignedIn(caller.clone())),
            None => Err(Problem::unauthorized()),
        }
    }
}
