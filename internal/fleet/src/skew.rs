//! Refuses agents whose version does not fit the server's. The agent logs the refusal, and the node's
//! condition shows it; the pods that the agent runs go on.

use jiff::Timestamp;
use resources::node_conditions::VERSION;
use resources::release::{Release, check_agent};
use rpc::agent::v1::Hello;
use tonic::Status;

use crate::node::NodeObjects;

/// Checks the version in a Hello.
///
/// # Errors
/// `FAILED_PRECONDITION` with the remedy; agents take that code for this refusal.
pub async fn check(server: Release, nodes: &NodeObjects, hello: &Hello) -> Result<(), Status> {
    let Err(refusal) = check_agent(server, &hello.agent_version) else {
        return Ok(());
    };
    let (node, reason) = (&hello.node_name, refusal.to_string());
    tracing::warn!(node, reason, "the server refuses an agent");
    // A node that never had a session has no object yet; its agent's log has the reason.
    let known = nodes.nodes.get_opt(node).await;
    if matches!(known, Ok(Some(_))) {
        let written = nodes.write_trouble(node, &VERSION, &reason, Timestamp::now());
        if let Err(error) = written.await {
            tracing::warn!(node, %error, "the server could not write the condition of a refused node");
        }
    }
    Err(Status::failed_precondition(reason))
}
