//! Tells a node's agent the range of its pods and the ways to other nodes' pods.

use std::sync::Arc;

use rpc::agent::v1::PodNetwork;

use super::{Session, SessionServer};

/// Sends a session what changed of its node's ranges and routes; false if the session has ended.
pub(super) async fn send(
    server: &SessionServer,
    session: &Arc<Session>,
    sent: &mut Option<PodNetwork>,
) -> bool {
    if !session.description.own_pod_network {
        return true;
    }
    let ranges = &server.nodes.ranges;
    let (cluster, services) = (ranges.cluster, ranges.services);
    let now = (server.index.lock()).pod_network(&session.node, cluster, services);
    let now = now.map(|network| PodNetwork {
        network_policies: session.description.network_policies,
        ..network
    });
    let Some(network) = now.filter(|network| sent.as_ref() != Some(network)) else {
        return true;
    };
    *sent = Some(network.clone());
    session.send(network).await
}
