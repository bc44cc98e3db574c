//! The server side of the agents: enrolment and the certificate authority, each node's session, its
//! Node object and lease, and the transport of pods and logs between the API and the nodes. Does
//! not decide about placement, restarts or lost nodes: it carries out bindings and reports the
//! nodes' state.

mod admissions;
pub mod ca;
#[cfg(test)]
#[path = "../../resources/testing/documents.rs"]
mod documents;
mod enrolment;
mod error;
mod exec;
mod health;
mod hosts;
mod index;
mod logs;
mod measurements;
mod node;
mod node_places;
mod node_requests;
mod panics;
mod pod_ranges;
mod policy_events;
mod resolve;
mod rollout;
mod sent_instructions;
mod service_account_tokens;
mod session;
mod skew;
mod status;
#[cfg(test)]
mod testing;
mod tokens;
mod watch;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::{Api, DeleteParams};
use parking_lot::Mutex;
use resources::pod_ranges::{DEFAULT_CLUSTER_RANGE, Ipv4Range};
use resources::release::Release;
use resources::services::addresses::ServiceRange;
use rpc::PeerIdentity;
use tokio::task::AbortHandle;
use tonic::Status;

pub use admissions::SECRET_TYPE as NODE_ADMISSION_SECRET_TYPE;
pub use ca::{CertificateAuthority, peer_identity};
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

use admissions::{Admissions, Worth};
use index::{Index, Touched};
use policy_events::PolicyReport;
use session::Session;

/// The node grace unless the server is configured otherwise.
const NODE_GRACE: Duration = Duration::from_secs(40);

/// The parameters of the fleet.
#[derive(Clone)]
pub struct FleetConfig {
    /// Signs the nodes' certificates.
    pub ca: Arc<CertificateAuthority>,
    /// The namespace of join tokens and of the nodes' admissions.
    pub namespace: String,
    /// The server's version, which decides which agents it accepts.
    pub version: Release,
    /// The file with the progress of an upgrade of the agents; none: a restart of the server forgets
    /// it.
    pub rollout_file: Option<PathBuf>,
    /// How long a node may be silent before its pods are lost. An agent that tries another binary goes
    /// back within half of it.
    pub node_grace: Duration,
    /// The range of all pods with addresses of their own; each node gets a part of it.
    pub pod_range: Ipv4Range,
    /// Receives what the agents measure; none: it is dropped.
    pub measurements: Option<MeasurementSink>,
    /// The range of Services' addresses; none if Services have none.
    pub service_range: Option<ServiceRange>,
}

impl FleetConfig {
    /// The defaults: tokens in the system namespace.
    pub fn new(ca: Arc<CertificateAuthority>) -> Self {
        FleetConfig {
            ca,
            namespace: resources::names::SYSTEM_NAMESPACE.to_owned(),
            version: env!("CARGO_PKG_VERSION")
                .parse()
                .expect("the workspace's version is MAJOR.MINOR.PATCH"),
            rollout_file: None,
            node_grace: NODE_GRACE,
            pod_range: DEFAULT_CLUSTER_RANGE,
            measurements: None,
            service_range: None,
        }
    }
}

/// The connected nodes and the services for them.
pub struct Fleet {
    client: Client,
    ca: Arc<CertificateAuthority>,
    version: Release,
    tokens: JoinTokens,
    admissions: Arc<Admissions>,
    nodes: node::NodeObjects,
    index: Mutex<Index>,
    synced: tokio::sync::watch::Sender<bool>,
    sessions: Mutex<BTreeMap<String, Arc<Session>>>,
    /// How many sessions of each node are being opened.
    opening: node_places::NodePlaces,
    /// The commands in containers.
    execs: exec::Execs,
    next_id: AtomicU64,
    tasks: Mutex<Vec<AbortHandle>>,
    rollouts: rollout::Rollouts,
    measurements: Option<MeasurementSink>,
}

impl Fleet {
    /// Starts the watches that keep the sessions current. `client` acts as the fleet itself.
    pub fn start(client: Client, config: FleetConfig) -> Arc<Fleet> {
        let fleet = Arc::new(Fleet {
            tokens: JoinTokens::new(client.clone(), &config.namespace),
            admissions: Arc::new(Admissions::new(client.clone(), &config.namespace)),
            nodes: node::NodeObjects::new(
                &client,
                pod_ranges::PodRanges::new(config.pod_range, config.service_range),
            ),
            client,
            ca: config.ca,
            version: config.version,
            index: Mutex::default(),
            synced: tokio::sync::watch::Sender::new(false),
            sessions: Mutex::default(),
            opening: node_places::NodePlaces::new(session::OPENING_MAX),
            execs: exec::Execs::default(),
            next_id: AtomicU64::new(1),
            tasks: Mutex::default(),
            rollouts: rollout::Rollouts::new(config.rollout_file, config.node_grace),
            measurements: config.measurements,
        });
        let dns = fleet.nodes.ranges.services.map(ServiceRange::dns);
        fleet.index.lock().set_dns(dns);
        let mut tasks = watch::spawn(&fleet);
        let weak = Arc::downgrade(&fleet);
        let look = move |seen| match weak.upgrade() {
            Some(fleet) => fleet.policy_report(seen),
            None => PolicyReport::Stopped,
        };
        tasks.push(policy_events::spawn(fleet.client.clone(), look));
        tasks.extend(watch::spawn_admissions(&fleet));
        fleet.tasks.lock().extend(tasks);
        fleet
    }

    /// The gRPC services, to be served on the server's port with the other routes; a request's
    /// [`rpc::PeerIdentity`] extension contains the identity in the connection's certificate.
    pub fn routes(self: &Arc<Self>) -> tonic::service::Routes {
        session::routes(self).add_service(enrolment::service(self))
    }

    /// Ends every session and watch; agents reconnect once a server runs again.
    pub fn shutdown(&self) {
        for task in self.tasks.lock().drain(..) {
            task.abort();
        }
        for (_, session) in std::mem::take(&mut *self.sessions.lock()) {
            session.end();
        }
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
        if let Some(session) = self.sessions.lock().remove(name) {
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
        let now = Timestamp::now().as_second();
        match peer.node_name() {
            Some(node) => self.admissions.worth(node, peer, now) == Worth::Good,
            None => peer.not_after >= now,
        }
    }

    /// Changes whenever a certificate may have been revoked: the owner of a node's connection then
    /// calls [`Fleet::counts`] again.
    pub fn revocations(&self) -> tokio::sync::watch::Receiver<u64> {
        self.admissions.changes()
    }

    /// Returns the node's name; refuses a peer without a valid node certificate.
    fn admitted<'a>(&self, peer: Option<&'a PeerIdentity>) -> Result<&'a str, Status> {
        let Some(peer) = peer else {
            return Err(Status::unauthenticated(
                "a node's client certificate is needed; join with a token first",
            ));
        };
        let Some(node) = peer.node_name() else {
            return Err(Status::permission_denied(format!(
                "the certificate is for {:?}, not for a node",
                peer.common_name
            )));
        };
        let now = Timestamp::now().as_second();
        match self.admissions.worth(node, peer, now) {
            Worth::Good => Ok(node),
            Worth::Unknown => Err(Status::unavailable(
                "the server has not read which nodes have joined yet; try again",
            )),
            Worth::Expired => Err(Status::unauthenticated(format!(
                "the certificate of node {node:?} has expired; join again with a token (`muster \
                 token join --node {node}` on the server)"
            ))),
            Worth::Revoked => Err(Status::unauthenticated(format!(
                "the certificate of node {node:?} was revoked: the node was removed, or joined \
                 again since; join again with a token (`muster token join --node {node}` on the \
                 server)"
            ))),
        }
    }

    /// The nodes that have a session.
    pub fn connected_nodes(&self) -> Vec<String> {
        self.sessions.lock().keys().cloned().collect()
    }

    /// The fingerprint that agents pin at their first contact.
    pub fn ca_fingerprint(&self) -> String {
        self.ca.fingerprint()
    }

    /// The authority that signs nodes' certificates.
    pub fn ca(&self) -> &Arc<CertificateAuthority> {
        &self.ca
    }

    fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// The policies that are not enforced as they are written, if that may have changed since `seen`.
    fn policy_report(&self, seen: Option<u64>) -> PolicyReport {
        let index = self.index.lock();
        let changes = index.policy_changes();
        if !index.is_synced() || seen == Some(changes) {
            return PolicyReport::Same;
        }
        PolicyReport::Changed(changes, index.policy_shortfalls())
    }

    /// Ends the sessions whose certificate was revoked.
    fn end_revoked(&self) {
        let sessions: Vec<_> = self.sessions.lock().values().cloned().collect();
        for session in sessions
            .iter()
            .filter(|session| !self.counts(&session.peer))
        {
            tracing::info!(
                node = session.node,
                "the node's certificate is no longer valid"
            );
            session.end();
        }
    }

    fn session(&self, node: &str) -> Option<Arc<Session>> {
        self.sessions.lock().get(node).cloned()
    }

    /// Changes the index and wakes the affected sessions.
    fn change(&self, change: impl FnOnce(&mut Index) -> Touched) {
        let (touched, synced) = {
            let mut index = self.index.lock();
            (change(&mut index), index.is_synced())
        };
        if synced {
            self.synced
                .send_if_modified(|was| !std::mem::replace(was, true));
        }
        if touched.nodes.is_empty() {
            return;
        }
        let sessions = self.sessions.lock();
        for node in &touched.nodes {
            if let Some(session) = sessions.get(node) {
                session.wake();
            }
        }
    }
}
