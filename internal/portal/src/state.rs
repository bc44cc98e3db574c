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
use resources::access::Caller;
use resources::record::Record;
use resources::report::{PlacementReport, Preemptable};
use resources::standing::QueueStanding;
use resources::tidying::TidyingReport;

use crate::Problem;
use crate::board::Board;

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

/// Why a node did not answer.
#[derive(Clone, Debug)]
pub struct AskProblem {
    /// HTTP status.
    pub status: u16,
    /// What is wrong and what to do.
    pub detail: String,
}

/// A token with which an agent joins.
#[derive(Clone, Debug)]
pub struct JoinToken {
    /// What the agent shows, once.
    pub secret: String,
    /// When it stops working.
    pub expires: Timestamp,
}

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
    dyn Fn(Duration) -> BoxFuture<'static, Result<JoinToken, String>> + Send + Sync;
type Backup = dyn Fn(std::path::PathBuf) -> BoxFuture<'static, Result<(), String>> + Send + Sync;
type Preview = dyn Fn(serde_json::Value) -> BoxFuture<'static, Option<Previewed>> + Send + Sync;

/// Where the pods of a job would go if it were submitted now, as (pod, node), or the
/// reason why it would wait.
pub type Previewed = Result<Vec<(String, String)>, Box<PlacementReport>>;

/// Ways into the other shells, so that this crate needs no arrow to them.
pub struct Hooks {
    /// The resource API in a caller's name.
    pub client_for: Box<ClientFor>,
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
