//! The server's end of the agents: enrolment and the certificate authority, each node's session,
//! the Node objects and leases that follow from it, and the way of pods and logs between the
//! API and the nodes. Decides nothing about placement, restarts or lost nodes: it carries out
//! bindings and reports what is.

mod asks;
mod book;
pub mod ca;
mod enrolment;
mod error;
mod health;
mod hosts;
mod index;
mod logs;
mod node;
mod resolve;
mod session;
mod status;
mod tokens;
mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::{SignedDuration, Timestamp};
use kube::Client;
use parking_lot::Mutex;
use tokio::task::AbortHandle;

pub use ca::CertificateAuthority;
pub use error::{AskError, FleetError, LogError, TokenError};
pub use logs::{LogQuery, LogStream};
pub use node::{LEASE_SECONDS, SESSION_ANNOTATION};
pub use tokens::{JoinToken, JoinTokens, NewJoinToken, SECRET_TYPE as JOIN_TOKEN_SECRET_TYPE};

use index::{Index, Touched};
use session::Session;

/// How long a join token is good unless it is made otherwise.
pub const DEFAULT_TOKEN_TTL: SignedDuration = SignedDuration::from_hours(24);

/// What the fleet is started with.
#[derive(Clone)]
pub struct FleetConfig {
    /// Signs the nodes' certificates.
    pub ca: Arc<CertificateAuthority>,
    /// Where join tokens are kept.
    pub namespace: String,
}

impl FleetConfig {
    /// The usual: tokens in the system namespace.
    pub fn new(ca: Arc<CertificateAuthority>) -> Self {
        FleetConfig {
            ca,
            namespace: resources::names::SYSTEM_NAMESPACE.to_owned(),
        }
    }
}

/// The connected nodes and what serves them.
pub struct Fleet {
    client: Client,
    ca: Arc<CertificateAuthority>,
    tokens: JoinTokens,
    nodes: node::Nodes,
    index: Mutex<Index>,
    synced: tokio::sync::watch::Sender<bool>,
    sessions: Mutex<BTreeMap<String, Arc<Session>>>,
    next_id: AtomicU64,
    tasks: Mutex<Vec<AbortHandle>>,
}

impl Fleet {
    /// Starts the watches that sessions are fed from. `client` acts as the fleet itself.
    pub fn start(client: Client, config: FleetConfig) -> Arc<Fleet> {
        let fleet = Arc::new(Fleet {
            tokens: JoinTokens::new(client.clone(), &config.namespace),
            nodes: node::Nodes::new(&client),
            client,
            ca: config.ca,
            index: Mutex::default(),
            synced: tokio::sync::watch::Sender::new(false),
            sessions: Mutex::default(),
            next_id: AtomicU64::new(1),
            tasks: Mutex::default(),
        });
        let tasks = watch::spawn(&fleet);
        fleet.tasks.lock().extend(tasks);
        fleet
    }

    /// The gRPC services, to be served beside the rest of the server's port; a request's
    /// [`rpc::PeerIdentity`] extension says whose certificate the connection showed.
    pub fn routes(self: &Arc<Self>) -> tonic::service::Routes {
        session::routes(self).add_service(enrolment::service(self))
    }

    /// Ends every session and watch; agents will come again when there is a server.
    pub fn shutdown(&self) {
        for task in self.tasks.lock().drain(..) {
            task.abort();
        }
        for (_, session) in std::mem::take(&mut *self.sessions.lock()) {
            session.end();
        }
    }

    /// Makes a join token; its text is shown only now.
    pub async fn create_join_token(
        &self,
        ttl: SignedDuration,
        description: &str,
    ) -> Result<NewJoinToken, FleetError> {
        self.tokens.create(ttl, description).await
    }

    /// Every join token, expired ones too.
    pub async fn list_join_tokens(&self) -> Result<Vec<JoinToken>, FleetError> {
        self.tokens.list().await
    }

    /// Ends a join token; true if there was one.
    pub async fn revoke_join_token(&self, id: &str) -> Result<bool, FleetError> {
        self.tokens.revoke(id).await
    }

    /// Whether a join token may be used now; its id if so.
    pub async fn verify_join_token(&self, token: &str) -> Result<String, FleetError> {
        self.tokens.verify(token, Timestamp::now()).await
    }

    /// The nodes that have a session now.
    pub fn connected_nodes(&self) -> Vec<String> {
        self.sessions.lock().keys().cloned().collect()
    }

    /// What agents pin at their first contact.
    pub fn ca_fingerprint(&self) -> String {
        self.ca.fingerprint()
    }

    /// The authority that nodes' certificates come from.
    pub fn ca(&self) -> &Arc<CertificateAuthority> {
        &self.ca
    }

    fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    fn session(&self, node: &str) -> Option<Arc<Session>> {
        self.sessions.lock().get(node).cloned()
    }

    /// Changes the index and wakes the sessions that the change concerns.
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
