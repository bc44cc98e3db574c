//! What the handlers are given: identities, and hooks into the shells that the binary
//! wires together.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use identity::Identity;
use jiff::Timestamp;
use resources::access::{Attributes, Caller};
use resources::record::Record;
use resources::report::{PlacementReport, Preemptable};
use resources::standing::QueueStanding;
use resources::tidying::TidyingReport;

use crate::Problem;
use crate::board::{Board, JobRow, NodeCard, Picture, QueueRow};

/// The API group that roles name Muster's own resources in that are no objects.
const OWN_GROUP: &str = "muster.io";

/// The API group of queues and gangs.
const VOLCANO_GROUP: &str = "scheduling.volcano.sh";

/// The portal's state. Cheap to clone.
#[derive(Clone)]
pub struct Portal {
    /// Users, sessions and tokens.
    pub identity: Identity,
    /// What the pages show, kept current.
    pub board: Board,
    /// Ways into the other shells.
    pub hooks: Arc<Hooks>,
}

/// A log as it comes.
pub type LogStream = BoxStream<'static, Result<Bytes, std::io::Error>>;

/// Which log, and how much of it.
#[derive(Clone, Debug, Default)]
pub struct LogQuery {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name; the pod itself may be gone.
    pub pod: String,
    /// The container; the first when not named.
    pub container: Option<String>,
    /// Stay until the container ends.
    pub follow: bool,
    /// Only the last lines.
    pub tail_lines: Option<u64>,
    /// With each line's time.
    pub timestamps: bool,
    /// Of the run before this one.
    pub previous: bool,
}

/// Why a log can't be read.
#[derive(Clone, Debug)]
pub struct LogProblem {
    /// HTTP status.
    pub status: u16,
    /// What is wrong and what to do.
    pub detail: String,
}

/// Why a node did not answer, or what was asked of the nodes' keeper was refused.
#[derive(Clone, Debug)]
pub struct AskProblem {
    /// HTTP status.
    pub status: u16,
    /// What is wrong and what to do.
    pub detail: String,
}

/// Why no backup was written; the text is for the administrator that asked for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct BackupFailed {
    /// What failed, on which file, and what to do.
    pub reason: String,
}

/// Why a YAML text can't be read as manifests; the text is for the person that wrote it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct UnreadableManifests {
    /// What is wrong, and where.
    pub reason: String,
}

/// What a token with which agents join should be.
#[derive(Clone, Debug)]
pub struct NewJoinToken {
    /// How long it works.
    pub ttl: Duration,
    /// The only node that may join with it; any node if none is named.
    pub node: Option<String>,
    /// How many joins it is good for.
    pub uses: u32,
}

/// A token with which an agent joins.
#[derive(Clone, Debug)]
pub struct JoinToken {
    /// What the agent shows, once.
    pub secret: String,
    /// By what it is listed and revoked.
    pub id: String,
    /// When it stops working.
    pub expires: Timestamp,
}

/// A token with which agents join, as it is listed.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ListedJoinToken {
    /// By what it is revoked.
    pub id: String,
    /// What it was made for.
    pub description: String,
    /// The only node that may join with it.
    pub node: Option<String>,
    /// How many joins it is still good for.
    pub uses: u32,
    /// When it stops working.
    pub expires: Timestamp,
}

/// A backup that is to be made.
#[derive(Clone, serde::Deserialize)]
pub struct BackupRequest {
    /// The file to make, on the server's disk.
    pub path: std::path::PathBuf,
    /// Encrypts it.
    pub passphrase: Option<String>,
}

type Permits = dyn Fn(&Caller, &Attributes<'_>) -> bool + Send + Sync;
type ClientFor = dyn Fn(&Caller) -> kube::Client + Send + Sync;
type Explain = dyn Fn(&str, &str) -> Option<PlacementReport> + Send + Sync;
type CouldEvict = dyn Fn(String, String) -> BoxFuture<'static, Vec<Preemptable>> + Send + Sync;
type History = dyn Fn(&str, &str) -> Vec<Record> + Send + Sync;
type Queues = dyn Fn() -> BoxFuture<'static, BTreeMap<String, QueueStanding>> + Send + Sync;
type Defragmentation = dyn Fn() -> BoxFuture<'static, TidyingReport> + Send + Sync;
type OpenLog = dyn Fn(LogQuery) -> BoxFuture<'static, Result<LogStream, LogProblem>> + Send + Sync;
type AskRdma = dyn Fn(String, serde_json::Value) -> BoxFuture<'static, Result<serde_json::Value, AskProblem>>
    + Send
    + Sync;
type IssueJoinToken =
    dyn Fn(NewJoinToken) -> BoxFuture<'static, Result<JoinToken, AskProblem>> + Send + Sync;
type ListJoinTokens =
    dyn Fn() -> BoxFuture<'static, Result<Vec<ListedJoinToken>, AskProblem>> + Send + Sync;
type ByName = dyn Fn(String) -> BoxFuture<'static, Result<bool, AskProblem>> + Send + Sync;
type Backup = dyn Fn(BackupRequest) -> BoxFuture<'static, Result<(), BackupFailed>> + Send + Sync;
type ReadManifests = dyn Fn(String) -> BoxFuture<'static, Result<Vec<serde_json::Value>, UnreadableManifests>>
    + Send
    + Sync;
type Preview = dyn Fn(serde_json::Value) -> BoxFuture<'static, Option<Previewed>> + Send + Sync;

/// Where the pods of a job would go if it were submitted now, as (pod, node), or the
/// reason why it would wait.
pub type Previewed = Result<Vec<(String, String)>, Box<PlacementReport>>;

/// Ways into the other shells, so that this crate needs no arrow to them.
pub struct Hooks {
    /// The resource API in a caller's name.
    pub client_for: Box<ClientFor>,
    /// Whether a caller may do something, as the resource API decides it.
    pub permits: Box<Permits>,
    /// The report of a gang (namespace, PodGroup or pod) that waits.
    pub explain: Box<Explain>,
    /// Whose eviction would let a gang (namespace, PodGroup or pod) start that waits.
    pub could_evict: Box<CouldEvict>,
    /// What was decided on a gang (namespace, PodGroup or pod), the oldest first.
    pub history: Box<History>,
    /// How every queue stands, by name.
    pub queues: Box<Queues>,
    /// What defragmentation would do now; changes nothing.
    pub defragmentation: Box<Defragmentation>,
    /// Opens a log, also of a pod that is gone.
    pub open_log: Box<OpenLog>,
    /// Asks a node (by name) for its part in a check of RDMA between two nodes.
    pub ask_rdma: Box<AskRdma>,
    /// Issues a token with which an agent joins.
    pub issue_join_token: Box<IssueJoinToken>,
    /// Lists the tokens with which agents may join.
    pub list_join_tokens: Box<ListJoinTokens>,
    /// Ends a join token by its id; false if there is none.
    pub revoke_join_token: Box<ByName>,
    /// Removes a node by its name and revokes its certificates; false if there is none.
    pub remove_node: Box<ByName>,
    /// Reads the manifests in a YAML text as the resource API reads bodies, within its bounds.
    pub read_manifests: Box<ReadManifests>,
    /// Asks the scheduler where a job's pods would go, changing nothing; none for a kind
    /// that has no pods.
    pub preview: Box<Preview>,
    /// Writes a backup of everything to a new file on the server's disk.
    pub backup: Box<Backup>,
}

impl Portal {
    /// The resource API in a caller's name.
    pub fn client(&self, caller: &Caller) -> kube::Client {
        (self.hooks.client_for)(caller)
    }

    /// May this caller do this?
    pub fn permits(&self, caller: &Caller, wanted: &Attributes<'_>) -> bool {
        (self.hooks.permits)(caller, wanted)
    }

    /// May this caller do this to Muster's own resources that are no objects (`backups`, `jointokens`, ...)? Roles grant
    /// them in the API group `muster.io`.
    pub fn permits_own(&self, caller: &Caller, verb: &str, resource: &str) -> bool {
        let wanted = Attributes {
            verb,
            group: OWN_GROUP,
            resource,
            ..Attributes::default()
        };
        self.permits(caller, &wanted)
    }

    /// The nodes, for a caller who may list them; the pods on them by name only where the caller may read pods.
    pub fn nodes(&self, caller: &Caller) -> Result<Vec<NodeCard>, Problem> {
        self.require(caller, "list", "", "nodes", None)?;
        Ok(self
            .board
            .nodes(|namespace| self.sees(caller, "", "pods", namespace)))
    }

    /// The same for one node, with the picture of it; none where there is no such node.
    pub fn node(
        &self,
        caller: &Caller,
        name: &str,
    ) -> Result<Option<(NodeCard, Option<Picture>)>, Problem> {
        self.require(caller, "get", "", "nodes", Some(name))?;
        let sees = |namespace: &str| self.sees(caller, "", "pods", namespace);
        Ok(self.board.node(name, sees))
    }

    /// The queues, for a caller who may list them.
    pub fn queues(&self, caller: &Caller) -> Result<Vec<QueueRow>, Problem> {
        self.require(caller, "list", VOLCANO_GROUP, "queues", None)?;
        Ok(self.board.queues())
    }

    /// One queue, for a caller who may read it; none where there is no such queue.
    pub fn queue(&self, caller: &Caller, name: &str) -> Result<Option<QueueRow>, Problem> {
        self.require(caller, "get", VOLCANO_GROUP, "queues", Some(name))?;
        let mut rows = self.board.queues().into_iter();
        Ok(rows.find(|row| row.name == name))
    }

    /// Refuses a caller who may not do this to a kind without namespaces.
    fn require(
        &self,
        caller: &Caller,
        verb: &str,
        group: &str,
        resource: &str,
        name: Option<&str>,
    ) -> Result<(), Problem> {
        let wanted = Attributes {
            verb,
            group,
            resource,
            name,
            ..Attributes::default()
        };
        if self.permits(caller, &wanted) {
            return Ok(());
        }
        Err(Problem::forbidden(format!(
            "user {:?} may not {verb} {resource}; an administrator can bind a role that permits it",
            caller.user
        )))
    }

    /// Whose eviction would let a gang start that waits: those gangs that the caller may see.
    pub async fn could_evict(
        &self,
        caller: &Caller,
        namespace: &str,
        group: &str,
    ) -> Vec<Preemptable> {
        let asked = (self.hooks.could_evict)(namespace.to_owned(), group.to_owned());
        let mut victims = asked.await;
        victims.retain(|victim| self.sees(caller, VOLCANO_GROUP, "podgroups", &victim.namespace));
        victims
    }

    /// May this caller read a pod's log?
    pub fn reads_log(&self, caller: &Caller, namespace: &str, pod: &str) -> bool {
        let wanted = Attributes {
            verb: "get",
            resource: "pods",
            subresource: Some("log"),
            namespace: Some(namespace),
            name: Some(pod),
            ..Attributes::default()
        };
        self.permits(caller, &wanted)
    }

    /// The jobs that this caller may see, newest first.
    pub fn jobs(&self, caller: &Caller, now: Timestamp) -> Vec<JobRow> {
        let sees = |group: &str, plural: &str, namespace: &str| {
            self.sees(caller, group, plural, namespace)
        };
        self.board.jobs(sees, now)
    }

    /// May this caller see a job or gang of this kind in a namespace?
    pub fn sees(&self, caller: &Caller, group: &str, resource: &str, namespace: &str) -> bool {
        let wanted = Attributes {
            verb: "get",
            group,
            resource,
            namespace: Some(namespace),
            ..Attributes::default()
        };
        self.permits(caller, &wanted)
    }
}

/// The caller of a request; without one the answer is 401.
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
