//! The requests to one node that it has not answered yet. Routes each answer to its requester.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use rpc::agent::v1::RdmaAnswer;
use tokio::sync::oneshot;

/// Requests that a node has not answered yet, by id.
#[derive(Default)]
pub struct PendingNodeRequests(Mutex<BTreeMap<u64, oneshot::Sender<RdmaAnswer>>>);

impl PendingNodeRequests {
    /// Adds a request; returns the receiver of its answer.
    pub fn add(&self, id: u64) -> oneshot::Receiver<RdmaAnswer> {
        let (requester, answer) = oneshot::channel();
        self.0.lock().insert(id, requester);
        answer
    }

    /// The requester has given up.
    pub fn remove(&self, id: u64) {
        self.0.lock().remove(&id);
    }

    /// The node has answered.
    pub fn answered(&self, answer: RdmaAnswer) {
        if let Some(requester) = self.0.lock().remove(&answer.id) {
            // A requester that has given up does not receive the answer.
            let _ = requester.send(answer);
        }
    }

    /// The session has ended; no answer will come.
    pub fn clear(&self) {
        self.0.lock().clear();
    }
}
