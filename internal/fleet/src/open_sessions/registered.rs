//! A session's place in the fleet's list, which it leaves also when its driver panics.

use std::sync::Arc;

use super::{Fleet, Session};

/// A session in the fleet's list. Dropping it ends the session and takes it off the list, also when
/// the session's driver panics: the node is then shown as disconnected, and its agent connects
/// again.
pub(super) struct RegisteredSession {
    pub(super) fleet: Arc<Fleet>,
    pub(super) session: Arc<Session>,
}

impl Drop for RegisteredSession {
    fn drop(&mut self) {
        let session = &self.session;
        if std::thread::panicking() {
            tracing::error!(
                node = session.node,
                "a session's driver panicked; the session ends, and the agent connects again"
            );
        }
        session.end();
        session.logs.clear();
        session.asks.clear();
        let mut sessions = self.fleet.sessions.lock();
        if sessions
            .get(&session.node)
            .is_some_and(|listed| listed.id == session.id)
        {
            sessions.remove(&session.node);
        }
    }
}

/// A session without an agent, whose binary has this digest.
#[cfg(test)]
pub(crate) fn session_for_tests(node: &str, id: u64, sha256: &str) -> Arc<Session> {
    use parking_lot::Mutex;
    use resources::devices::NodeInventory;
    use rpc::PeerIdentity;
    use rpc::agent::v1::Hello;
    use tokio::sync::{Notify, Semaphore, mpsc, watch};
    use tokio::time::Instant;

    use crate::logs::LogSinks;
    use crate::node::NodeDescription;
    use crate::node_requests::PendingNodeRequests;
    use crate::rollout::AgentBinary;
    use crate::sent_instructions::SentInstructions;

    let hello = Hello {
        node_name: node.to_owned(),
        binary_sha256: sha256.to_owned(),
        ..Hello::default()
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
        asks: PendingNodeRequests::default(),
        book: Mutex::new(SentInstructions::open(&[], &[]).0),
        heard: Mutex::new(Instant::now()),
        inventory: watch::Sender::new(inventory.clone()),
        health: watch::Sender::new(None),
        description: NodeDescription::of(&hello, &inventory),
        agent: AgentBinary::of(&hello),
        sending: Arc::new(Semaphore::new(1)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(node: &str, id: u64) -> Arc<Session> {
        session_for_tests(node, id, "")
    }

    fn registered(fleet: &Arc<Fleet>, session: Arc<Session>) -> RegisteredSession {
        let node = session.node.clone();
        fleet.sessions.lock().insert(node, session.clone());
        RegisteredSession {
            fleet: fleet.clone(),
            session,
        }
    }

    #[tokio::test]
    async fn a_session_whose_driver_panics_leaves_the_list_and_others_stay() {
        let (fleet, _) = crate::testing::fleet();
        let panics = registered(&fleet, session("n1", 1));
        let ended = panics.session.ended.subscribe();
        let stays = registered(&fleet, session("n2", 2));
        assert_eq!(fleet.connected_nodes(), ["n1", "n2"]);
        let driver = tokio::spawn(async move {
            let _registered = panics;
            panic!("over a pod");
        });
        assert!(driver.await.unwrap_err().is_panic());
        assert_eq!(fleet.connected_nodes(), ["n2"]);
        assert!(*ended.borrow());
        // A session that was replaced leaves its successor in the list.
        let successor = registered(&fleet, session("n2", 3));
        drop(stays);
        assert_eq!(fleet.connected_nodes(), ["n2"]);
        drop(successor);
        assert!(fleet.connected_nodes().is_empty());
    }
}
