//! What the agent asks of the cluster's API, and tells it: the node's pods, the inventory.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::json;
use tokio::sync::watch;

use super::TRY_EVERY;
use crate::inventory::Machine;

/// The API, as one node's agent uses it.
#[derive(Clone)]
pub struct Cluster {
    client: kube::Client,
    node: String,
}

impl Cluster {
    /// For the node of this name.
    pub fn new(client: kube::Client, node: &str) -> Cluster {
        Cluster {
            client,
            node: node.to_string(),
        }
    }

    /// All pods that are bound to the node, as they are now.
    pub async fn pods(&self) -> Result<Vec<Pod>, kube::Error> {
        let pods: Api<Pod> = Api::all(self.client.clone());
        let here = ListParams::default().fields(&format!("spec.nodeName={}", self.node));
        Ok(pods.list(&here).await?.items)
    }

    async fn tell(&self, machine: &Machine) -> Result<(), kube::Error> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let note =
            json!({"metadata": {"annotations": {resources::names::INVENTORY: machine.json()}}});
        let as_us = PatchParams::default();
        (nodes
            .patch_metadata(&self.node, &as_us, &Patch::Merge(&note))
            .await)
            .map(|_| ())
    }
}

/// Keeps the node's annotation at what the machine has.
pub async fn publish(cluster: Cluster, mut machine: watch::Receiver<Machine>) {
    loop {
        let now = machine.borrow_and_update().clone();
        if let Err(error) = cluster.tell(&now).await {
            // The kubelet may not have made the node yet.
            tracing::debug!(%error, node = cluster.node, "the inventory can't be told yet");
            tokio::time::sleep(TRY_EVERY).await;
            continue;
        }
        if machine.changed().await.is_err() {
            return;
        }
    }
}
