//! Requests to a node that it answers once, through its session: its part in a check of RDMA
//! between two nodes. Only the agent and the requester interpret the content.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use rpc::agent::v1::{RdmaAnswer, RdmaAsk};
use tokio::sync::oneshot;

use crate::Fleet;
use crate::error::NodeRequestError;

/// How long a node may take; a test that it runs takes at most half of that.
const ANSWER: Duration = Duration::from_secs(60);

/// Requests that a node has not answered yet, by id.
#[derive(Default)]
pub struct PendingNodeRequests(Mutex<BTreeMap<u64, oneshot::Sender<RdmaAnswer>>>);

impl PendingNodeRequests {
    /// The node has answered.
    pub fn answered(&self, answer: RdmaAnswer) {
        if let Some(asker) = self.0.lock().remove(&answer.id) {
            // A requester that has given up does not receive the answer.
            let _ = asker.send(answer);
        }
    }

    /// The session has ended; no answer will come.
    pub fn clear(&self) {
        self.0.lock().clear();
    }
}

impl Fleet {
    /// Asks a node for its part in a check of RDMA, in JSON, and waits for its answer, in JSON.
    ///
    /// # Errors
    ///
    /// If the node is not connected, does not answer in time, or reports an error.
    pub async fn ask_rdma(&self, node: &str, json: String) -> Result<String, NodeRequestError> {
        let away = || NodeRequestError::NodeAway {
            node: node.to_owned(),
        };
        let session = self.session(node).ok_or_else(away)?;
        let id = self.next_id();
        let (asker, answer) = oneshot::channel();
        session.asks.0.lock().insert(id, asker);
        if !session.send(RdmaAsk { id, json }).await {
            session.asks.0.lock().remove(&id);
            return Err(away());
        }
        match tokio::time::timeout(ANSWER, answer).await {
            Err(_) => {
                session.asks.0.lock().remove(&id);
                Err(NodeRequestError::Silent {
                    node: node.to_owned(),
                    seconds: ANSWER.as_secs(),
                })
            }
            Ok(Err(_)) => Err(away()),
            Ok(Ok(answer)) if answer.error.is_empty() => Ok(answer.json),
            Ok(Ok(answer)) => Err(NodeRequestError::Refused(answer.error)),
        }
    }
}
