//! Gives a node its part of the range of all pods, and writes the condition about its pods' networks.

use jiff::Timestamp;
use kube::api::{ListParams, Patch, PatchParams};
use resources::pod_ranges::NODE_PREFIX;
use serde_json::json;

use super::{NodeDescription, NodeObjects};
use crate::error::{FleetError, api};
use crate::pod_ranges::{NetworkState, choose, conditions};

impl NodeObjects {
    /// Gives a node a range if its agent wants one, and writes the condition about its pods' networks.
    pub(crate) async fn allot_range(
        &self,
        description: &NodeDescription,
    ) -> Result<(), FleetError> {
        let name = &description.name;
        let state = match description.own_pod_network {
            true => Some(self.range_for(name).await?),
            false => None,
        };
        let now = Timestamp::now();
        self.write_conditions(name, json!({}), |node| conditions(node, state.clone(), now))
            .await
            .map(|_| ())
    }

    async fn range_for(&self, name: &str) -> Result<NetworkState, FleetError> {
        let _alone = self.ranges.allotting.lock().await;
        let cluster = self.ranges.cluster;
        let list = self.nodes.list(&ListParams::default()).await;
        let nodes = list.map_err(api("listing the nodes' pod ranges".to_owned()))?;
        let Some(range) = choose(cluster, name, &nodes.items) else {
            tracing::error!(node = name, %cluster, "the range of all pods has no part left for this node");
            let message = format!(
                "--pod-cidr {cluster} has no /{NODE_PREFIX} left for this node; give the server a larger one, or \
                 remove nodes that are gone"
            );
            return Ok((true, "NoPodRange", message));
        };
        let text = range.to_string();
        let patch = json!({"spec": {"podCIDR": text, "podCIDRs": [text]}});
        self.nodes
            .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .map_err(api(format!("writing the pod range of node {name:?}")))?;
        let message = format!(
            "pods have addresses of their own in {range}; pods with hostNetwork, and those that a container runtime \
             runs, are in the node's network"
        );
        Ok((false, "PodNetwork", message))
    }
}
