//! The nodes that are connected: each node's open session as the rest of the fleet sees it, and the list of them.
//! Sends messages and wakes drivers; does not read what agents send.

mod registered;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use resources::devices::NodeInventory;
use rpc::PeerIdentity;
use rpc::agent::v1::ServerMessage;
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::time::Instant;
use tonic::Status;

use crate::agent_binary::AgentBinary;
use crate::health::ReportedHealth;
use crate::log_streams::LogSinks;
use crate::node::NodeDescription;
use crate::pending_requests::PendingNodeRequests;
use crate::sent_instructions::SentInstructions;

/// The queue of messages to one agent.
pub type Outbound = mpsc::Sender<Result<ServerMessage, Status>>;

/// A connected node's session.
pub struct Session {
    /// The node's name.
    pub node: String,
    /// The identity in the connection's certificate.
    pub peer: PeerIdentity,
    /// Distinguishes the sessions of a node.
    pub id: u64,
    /// The messages to the agent.
    pub outbound: Outbound,
    /// Wakes the driver.
    pub wake: Notify,
    /// True once the session is to end.
    pub ended: watch::Sender<bool>,
    /// The logs being read from the node.
    pub logs: LogSinks,
    /// Requests that the node has not answered yet.
    pub requests: PendingNodeRequests,
    /// The instructions that the agent has been sent.
    pub instructions: Mutex<SentInstructions>,
    /// When the agent's last message arrived.
    pub last_message: Mutex<Instant>,
    /// The node's inventory; a separate task writes the latest.
    pub inventory: watch::Sender<NodeInventory>,
    /// The agent's latest health report; a separate task writes the latest.
    pub health: watch::Sender<Option<ReportedHealth>>,
    /// The node, as its agent described it.
    pub description: NodeDescription,
    /// The agent's binary, as it reported it.
    pub agent: AgentBinary,
    /// Held while a part of a binary is read for the agent.
    pub sending: Arc<Semaphore>,
}

impl Session {
    /// Wakes the driver: an object that concerns the node has changed.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Ends the session.
    pub fn end(&self) {
        self.ended.send_replace(true);
    }

    /// Sends a message; false if the session has ended.
    pub async fn send(&self, message: impl Into<ServerMessage>) -> bool {
        self.outbound.send(Ok(message.into())).await.is_ok()
    }

    /// Sends a message if the queue has room for it now.
    pub fn try_send(&self, message: impl Into<ServerMessage>) -> bool {
        self.outbound.try_send(Ok(message.into())).is_ok()
    }
}

/// The open sessions, by node.
pub struct OpenSessions {
    by_node: Mutex<BTreeMap<String, Arc<Session>>>,
    next_id: AtomicU64,
}

impl Default for OpenSessions {
    fn default() -> OpenSessions {
        OpenSessions {
            by_node: Mutex::default(),
            next_id: AtomicU64::new(1),
        }
    }
}

impl OpenSessions {
    /// A new id, for a session or for a request in one.
    pub fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// The session of a node, if the node is connected.
    pub fn get(&self, node: &str) -> Option<Arc<Session>> {
        self.by_node.lock().get(node).cloned()
    }

    /// All sessions, by node.
    pub fn all(&self) -> BTreeMap<String, Arc<Session>> {
        self.by_node.lock().clone()
    }

    /// The names of the connected nodes.
    pub fn nodes(&self) -> Vec<String> {
        self.by_node.lock().keys().cloned().collect()
    }

    /// Takes a node's session off the list.
    pub fn remove(&self, node: &str) -> Option<Arc<Session>> {
        self.by_node.lock().remove(node)
    }

    /// Takes a session off the list, unless another session of its node has replaced it.
    fn leave(&self, session: &Session) {
        let mut by_node = self.by_node.lock();
        if by_node
            .get(&session.node)
            .is_some_and(|listed| listed.id == session.id)
        {
            by_node.remove(&session.node);
        }
    }

    /// Wakes the drivers of these nodes' sessions.
    pub fn wake(&self, nodes: &BTreeSet<String>) {
        if nodes.is_empty() {
            return;
        }
        let by_node = self.by_node.lock();
        for session in nodes.iter().filter_map(|node| by_node.get(node)) {
            session.wake();
        }
    }

    /// Ends every session.
    pub fn end_all(&self) {
        for (_, session) in std::mem::take(&mut *self.by_node.lock()) {
            session.end();
        }
    }
}

/// A session without an agent, whose binary has this digest.
#[cfg(test)]
pub fn session_for_tests(node: &str, id: u64, sha256: &str) -> Arc<Session> {
    let hello = rpc::agent::v1::Hello {
        node_name: node.to_owned(),
        binary_sha256: sha256.to_owned(),
        ..Default::default()
    };
    let inventory: NodeInventory = serde_json::from_str("{}").unwrap();
    Arc::new(Session {
        node: node.to_owned(),
        peer: PeerIdentity {
            common_name: PeerIdentity::node_common_name(node),
            admission: None,
            not_after: i64::MAX,
        },
        id,
        outbound: mpsc::channel(1).0,
        wake: Notify::new(),
        ended: watch::Sender::new(false),
        logs: LogSinks::default(),
        requests: PendingNodeRequests::default(),
        instructions: Mutex::new(SentInstructions::open(&[], &[]).0),
        last_message: Mutex::new(Instant::now()),
        inventory: watch::Sender::new(inventory.clone()),
        health: watch::Sender::new(None),
        description: NodeDescription::of(&hello, &inventory),
        agent: AgentBinary::of(&hello),
        sending: Arc::new(Semaphore::new(1)),
    })
}
