//! Requests to a node that it answers once, through its session: its part in a check of RDMA
//! between two nodes. Only the agent and the requester interpret the content.

use std::time::Duration;

use rpc::agent::v1::RdmaAsk;

use crate::error::NodeRequestError;
use crate::open_sessions::OpenSessions;

/// How long a node may take; a test that it runs takes at most half of that.
const ANSWER: Duration = Duration::from_secs(60);

/// Asks a node for its part in a check of RDMA, in JSON, and waits for its answer, in JSON.
///
/// # Errors
///
/// If the node is not connected, does not answer in time, or reports an error.
pub async fn ask_rdma(
    sessions: &OpenSessions,
    node: &str,
    json: String,
) -> Result<String, NodeRequestError> {
    let away = || NodeRequestError::NodeAway {
        node: node.to_owned(),
    };
    let session = sessions.get(node).ok_or_else(away)?;
    let id = sessions.next_id();
    let answer = session.requests.add(id);
    if !session.send(RdmaAsk { id, json }).await {
        session.requests.remove(id);
        return Err(away());
    }
    match tokio::time::timeout(ANSWER, answer).await {
        Err(_) => {
            session.requests.remove(id);
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
