//! The server side of the agents: enrolment and the certificate authority, each node's session, its
//! Node object and lease, and the transport of pods and logs between the API and the nodes. Does
//! not decide about placement, restarts or lost nodes: it carries out bindings and reports the
//! nodes' state.

mod admissions;
mod agent_binary;
pub mod ca;
mod config;
#[cfg(test)]
#[path = "../../resources/testing/documents.rs"]
mod documents;
mod enrolment;
mod error;
mod exec;
mod health;
mod hosts;
mod index;
mod live_index;
mod log_streams;
mod logs;
mod measurements;
mod node;
mod node_places;
mod node_requests;
mod open_sessions;
mod panics;
mod peer_check;
mod pending_requests;
mod pod_fields;
mod pod_ranges;
mod policy_events;
mod resolve;
mod rollout;
mod sent_instructions;
mod service_account_tokens;
mod session;
mod skew;
mod status;

/// The policies that are not enforced as they are written, if that may have changed since `seen`.
fn policy_report(index: &LiveIndex, seen: Option<u64>) -> PolicyReport {
    let index = index.lock();
    let changes = index.policy_changes();
    if !index.is_synced() || seen == Some(changes) {
        return PolicyReport::Same;
    }
    PolicyReport::Changed(changes, index.policy_shortfalls())
}

#[cfg(test)]
mod testing;
mod tokens;
mod watch;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::{Api, DeleteParams};
use parking_lot::Mutex;
use resources::services::addresses::ServiceRange;
use resources::upgrade::{AgentStatus, Rollout};
use rpc::PeerIdentity;
use rpc::agent::v1::OpenExec;
use tokio::task::AbortHandle;

pub use admissions::SECRET_TYPE as NODE_ADMISSION_SECRET_TYPE;
pub use ca::{CertificateAuthority, peer_identity};
pub use config::FleetConfig;
pub use error::{ExecError, FleetError, LogReadError, NodeRequestError, RolloutError, TokenError};
pub use exec::ExecConnection;
pub use logs::{AgentLogQuery, LogBytes};
pub use measurements::{MeasurementSink, NodeMeasurements};
pub use node::{LEASE_SECONDS, SESSION_ANNOTATION};
pub use rollout::RolloutOptions;
pub use tokens::{
    IssuedJoinToken, JoinToken, JoinTokenOptions, JoinTokens, LONGEST_TTL, MOST_USES,
    SECRET_TYPE as JOIN_TOKEN_SECRET_TYPE,
};

use admissions::Admissions;
use enrolment::EnrolmentService;
use exec::Execs;
use live_index::LiveIndex;
use logs::NodeLogs;
use node_places::NodePlaces;
use open_sessions::OpenSessions;
use policy_events::PolicyReport;
use rollout::Rollouts;
use session::SessionServer;

/// The connected nodes and the services for them: puts the parts of this crate together, and offers the others what
/// they do.
pub struct Fleet {
    client: Client,
    ca: Arc<CertificateAuthority>,
    tokens: Arc<JoinTokens>,
    admissions: Arc<Admissions>,
    sessions: Arc<OpenSessions>,
    /// The commands in containers.
    execs: Arc<Execs>,
    logs: NodeLogs,
    rollouts: Arc<Rollouts>,
    server: Arc<SessionServer>,
    watches: Mutex<Vec<AbortHandle>>,
}

impl Fleet {
    /// Starts the watches that keep the sessions current. `client` acts as the fleet itself.
    pub fn start(client: Client, config: FleetConfig) -> Arc<Fleet> {
        let admissions = Arc::new(Admissions::new(client.clone(), &config.namespace));
        let sessions: Arc<OpenSessions> = Arc::default();
        let index = Arc::new(LiveIndex::new(sessions.clone()));
        let execs: Arc<Execs> = Arc::default();
        let rollouts = Arc::new(Rollouts::new(
            client.clone(),
            sessions.clone(),
            config.rollout_file,
            config.node_grace,
        ));
        let ranges = pod_ranges::PodRanges::new(config.pod_range, config.service_range);
        let server = Arc::new(SessionServer {
            client: client.clone(),
            version: config.version,
            admissions: admissions.clone(),
            nodes: node::NodeObjects::new(&client, ranges),
            index: index.clone(),
            sessions: sessions.clone(),
            opening: NodePlaces::new(session::OPENING_MAX),
            execs: execs.clone(),
            rollouts: rollouts.clone(),
            measurements: config.measurements,
        });
        // Before the first watch begins.
        index
            .lock()
            .set_dns(config.service_range.map(ServiceRange::dns));
        let mut watches = watch::spawn(&client, &index);
        let weak = Arc::downgrade(&index);
        let look = move |seen| match weak.upgrade() {
            Some(index) => policy_report(&index, seen),
            None => PolicyReport::Stopped,
        };
        watches.push(policy_events::spawn(client.clone(), look));
        watches.extend(watch::spawn_admissions(&admissions, &sessions));
        Arc::new(Fleet {
            tokens: Arc::new(JoinTokens::new(client.clone(), &config.namespace)),
            logs: NodeLogs::new(client.clone(), index, sessions.clone()),
            client,
            ca: config.ca,
            admissions,
            sessions,
            execs,
            rollouts,
            server,
            watches: Mutex::new(watches),
        })
    }

    /// The gRPC services, to be served on the server's port with the other routes; a request's
    /// [`rpc::PeerIdentity`] extension contains the identity in the connection's certificate.
    pub fn routes(&self) -> tonic::service::Routes {
        let enrolment = enrolment::service(EnrolmentService {
            ca: self.ca.clone(),
            tokens: self.tokens.clone(),
            admissions: self.admissions.clone(),
            sessions: self.sessions.clone(),
        });
        session::routes(self.server.clone()).add_service(enrolment)
    }

    /// Ends every session and watch; agents reconnect once a server runs again.
    pub fn shutdown(&self) {
        for watch in self.watches.lock().drain(..) {
            watch.abort();
        }
        self.rollouts.shutdown();
        self.sessions.end_all();
    }

    /// Creates a join token and returns its text, which cannot be read later.
    pub async fn create_join_token(
        &self,
        options: &JoinTokenOptions,
    ) -> Result<IssuedJoinToken, FleetError> {
        self.tokens.create(options).await
    }

    /// A token with which the agent in this process joins as `node`; it is not stored.
    pub fn own_join_token(&self, node: &str) -> Result<String, FleetError> {
        self.tokens.draw_own(node)
    }

    /// Every join token, expired ones too.
    pub async fn list_join_tokens(&self) -> Result<Vec<JoinToken>, FleetError> {
        self.tokens.list().await
    }

    /// Revokes a join token; true if it existed.
    pub async fn revoke_join_token(&self, id: &str) -> Result<bool, FleetError> {
        self.tokens.revoke(id).await
    }

    /// Removes a node: revokes its certificates, ends its session, and deletes its Node object and
    /// its lease. True if any of them existed. Containers that its agent still runs continue until
    /// an administrator stops them there: the server cannot reach the agent any more.
    pub async fn remove_node(&self, name: &str) -> Result<bool, FleetError> {
        if !node::valid_name(name) {
            return Err(FleetError::NodeName {
                name: name.to_owned(),
            });
        }
        let admitted = self.admissions.remove(name).await?;
        if let Some(session) = self.sessions.remove(name) {
            session.end();
        }
        let nodes: Api<Node> = Api::all(self.client.clone());
        let leases: Api<Lease> =
            Api::namespaced(self.client.clone(), resources::names::NODE_LEASES);
        let parameters = DeleteParams::default();
        let gone = |error: &kube::Error| error::status_code(error) == Some(404);
        let there = match nodes.delete(name, &parameters).await {
            Ok(_) => true,
            Err(error) if gone(&error) => false,
            Err(error) => return Err(error::api(format!("deleting node {name:?}"))(error)),
        };
        match leases.delete(name, &parameters).await {
            Err(error) if !gone(&error) => {
                return Err(error::api(format!("deleting the lease of node {name:?}"))(
                    error,
                ));
            }
            _ => {}
        }
        tracing::info!(
            node = name,
            "a node was removed and its certificates revoked"
        );
        Ok(admitted || there)
    }

    /// True if a client certificate is valid. A node's certificate is valid while the node was
    /// neither removed nor joined again since. The fleet does not judge other certificates.
    pub fn counts(&self, peer: &PeerIdentity) -> bool {
        peer_check::is_valid(&self.admissions, peer, Timestamp::now())
    }

    /// Changes whenever a certificate may have been revoked: the owner of a node's connection then
    /// calls [`Fleet::counts`] again.
    pub fn revocations(&self) -> tokio::sync::watch::Receiver<u64> {
        self.admissions.changes()
    }

    /// The nodes that have a session.
    pub fn connected_nodes(&self) -> Vec<String> {
        self.sessions.nodes()
    }

    /// The fingerprint that agents pin at their first contact.
    pub fn ca_fingerprint(&self) -> String {
        self.ca.fingerprint()
    }

    /// The authority that signs nodes' certificates.
    pub fn ca(&self) -> &Arc<CertificateAuthority> {
        &self.ca
    }

    /// Opens a container's log. If the pod object is gone, every connected node is asked: logs
    /// outlast the pods.
    ///
    /// # Errors
    /// If no node has the log, or its node is not connected or cannot read it.
    pub async fn open_log(&self, query: AgentLogQuery) -> Result<LogBytes, LogReadError> {
        self.logs.open(query).await
    }

    /// Starts a command in a container on a node.
    ///
    /// # Errors
    /// If the node is not connected, does not answer in time, has too many commands, or cannot start this one.
    pub async fn open_exec(&self, node: &str, open: OpenExec) -> Result<ExecConnection, ExecError> {
        self.execs.open(&self.sessions, node, open).await
    }

    /// Asks a node for its part in a check of RDMA, in JSON, and waits for its answer, in JSON.
    ///
    /// # Errors
    /// If the node is not connected, does not answer in time, or reports an error.
    pub async fn ask_rdma(&self, node: &str, json: String) -> Result<String, NodeRequestError> {
        node_requests::ask_rdma(&self.sessions, node, json).await
    }

    /// The last upgrade of the agents; none if there was none.
    pub fn rollout(&self) -> Option<Rollout> {
        self.rollouts.last()
    }

    /// Offers a binary to the connected agents, one after another. Agents that have it are left
    /// alone, so a rollout that stopped goes on with the same call.
    ///
    /// # Errors
    /// If another binary is being rolled out, if the binary can't be offered, if no agent is
    /// connected, or if the progress can't be recorded.
    pub async fn roll_out(&self, options: RolloutOptions) -> Result<Rollout, RolloutError> {
        self.rollouts.begin(options).await
    }

    /// Stops the rollout before the next agent; true if one was running.
    ///
    /// # Errors
    /// If the progress can't be recorded.
    pub fn stop_rollout(&self) -> Result<bool, RolloutError> {
        self.rollouts.stop()
    }

    /// Goes on with a rollout that an earlier server began, if its binary is still there.
    pub async fn resume_rollout(&self) {
        self.rollouts.resume().await;
    }

    /// The agents of all nodes with their versions.
    ///
    /// # Errors
    /// If the nodes can't be read.
    pub async fn agents(&self) -> Result<Vec<AgentStatus>, FleetError> {
        self.rollouts.agents().await
    }
}
