//! The first message of a session: Hello, the node's own certificate, and its inventory.

use std::time::Duration;

use resources::devices::NodeInventory;
use rpc::PeerIdentity;
use rpc::agent::v1::{AgentMessage, Hello, agent_message};
use tonic::{Status, Streaming};

/// How long an agent may take to send its Hello.
const HELLO: Duration = Duration::from_secs(10);

pub(super) async fn read_hello(inbound: &mut Streaming<AgentMessage>) -> Result<Hello, Status> {
    let first = tokio::time::timeout(HELLO, inbound.message())
        .await
        .map_err(|_| Status::deadline_exceeded("the agent sent no Hello in time"))??;
    match first.and_then(|message| message.body) {
        Some(agent_message::Body::Hello(hello)) => Ok(hello),
        _ => Err(Status::invalid_argument(
            "the first message of a session must be Hello",
        )),
    }
}

/// Returns the peer, if it is the node in the Hello.
pub(super) fn own(peer: Option<PeerIdentity>, node: &str) -> Result<PeerIdentity, Status> {
    let Some(peer) = peer else {
        return Err(Status::unauthenticated(
            "a session needs a node's client certificate; join with a token first",
        ));
    };
    if peer.node_name() != Some(node) {
        return Err(Status::permission_denied(format!(
            "the certificate is for {:?}, not for node {node:?}",
            peer.common_name
        )));
    }
    Ok(peer)
}

pub(super) fn read_inventory(json: &str) -> Result<NodeInventory, Status> {
    serde_json::from_str(json).map_err(|error| {
        Status::invalid_argument(format!(
            "the inventory of the Hello cannot be read: {error}"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_only_for_the_node_that_the_certificate_names() {
        let named = |common_name: &str| PeerIdentity {
            common_name: common_name.to_owned(),
            admission: None,
            not_after: 0,
        };
        let code =
            |peer: Option<PeerIdentity>| own(peer, "n1").map_err(|status| status.code()).map(drop);
        let right = PeerIdentity::node_common_name("n1");
        assert_eq!(code(Some(named(&right))), Ok(()));
        for other in ["system:node:n2", "system:node:", "n1", "admin"] {
            let refused = code(Some(named(other)));
            assert_eq!(refused, Err(tonic::Code::PermissionDenied), "{other}");
        }
        assert_eq!(code(None), Err(tonic::Code::Unauthenticated));
    }
}
