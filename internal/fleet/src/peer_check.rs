//! Whether the certificate of a connection is valid now, and the refusals of those that are not.

use jiff::Timestamp;
use rpc::PeerIdentity;
use tonic::Status;

use crate::admissions::{Admissions, Worth};

/// True if a client certificate is valid. A node's certificate is valid while the node was neither
/// removed nor joined again since. The fleet does not judge other certificates.
pub fn is_valid(admissions: &Admissions, peer: &PeerIdentity, now: Timestamp) -> bool {
    let now = now.as_second();
    match peer.node_name() {
        Some(node) => admissions.worth(node, peer, now) == Worth::Good,
        None => peer.not_after >= now,
    }
}

/// Returns the node's name.
///
/// # Errors
/// If the peer has no valid certificate of a node.
pub fn admitted<'a>(
    admissions: &Admissions,
    peer: Option<&'a PeerIdentity>,
    now: Timestamp,
) -> Result<&'a str, Status> {
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
    match admissions.worth(node, peer, now.as_second()) {
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
