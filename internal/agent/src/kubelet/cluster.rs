//! What the agent asks of the cluster's API, and tells it: the node's pods; the inventory, and
//! whether the MIG strategy can be kept.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, ListParams, Patch, PatchParams};
use resources::devices::MIG_SINGLE;
use resources::names::MIG_NOT_UNIFORM;
use serde_json::json;
use tokio::sync::watch;

use super::TRY_EVERY;
use crate::inventory::Machine;

/// Whose the node's labels are.
const FIELD_MANAGER: &str = "muster-agent";

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

    /// Writes the node's condition on its MIG strategy; none where the strategy is not `single`.
    async fn tell_strategy(&self, trouble: Option<&str>) -> Result<(), kube::Error> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let (status, reason, message) = match trouble {
            Some(message) => ("True", "SeveralProfiles", message),
            None => ("False", "Kept", "slices are given out as the strategy says"),
        };
        if trouble.is_some() {
            tracing::warn!(message, "the MIG strategy can't be kept");
        }
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ");
        let note = json!({"status": {"conditions": [{
            "type": MIG_NOT_UNIFORM, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": now.to_string(),
        }]}});
        let as_us = PatchParams::default();
        (nodes
            .patch_status(&self.node, &as_us, &Patch::Strategic(&note))
            .await)
            .map(|_| ())
    }

    /// Writes the inventory, and the labels. Those are applied: one that was ours and isn't said
    /// any more goes, whichever agent wrote it, and nobody else's is touched.
    async fn tell(&self, machine: &Machine) -> Result<(), kube::Error> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let mut machine = machine.clone();
        let labels = std::mem::take(&mut machine.inventory.labels);
        let note =
            json!({"metadata": {"annotations": {resources::names::INVENTORY: machine.json()}}});
        let as_us = PatchParams::default();
        (nodes
            .patch_metadata(&self.node, &as_us, &Patch::Merge(&note))
            .await)?;
        let note = json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": self.node, "labels": labels}});
        // Labels that another discovery wrote before are taken over.
        let as_us = PatchParams::apply(FIELD_MANAGER).force();
        (nodes
            .patch_metadata(&self.node, &as_us, &Patch::Apply(&note))
            .await)
            .map(|_| ())
    }
}

/// Keeps the node's annotation at what the machine has.
pub async fn publish(cluster: Cluster, mut machine: watch::Receiver<Machine>) {
    let mut said: Option<Option<String>> = None;
    loop {
        let now = machine.borrow_and_update().clone();
        let trouble = now.inventory.not_uniform();
        // Where nobody asked for `single`, only a condition written before is taken back.
        let of_concern = said.is_some() || now.inventory.mig_strategy == MIG_SINGLE;
        let tell = async {
            cluster.tell(&now).await?;
            if of_concern && said.as_ref() != Some(&trouble) {
                cluster.tell_strategy(trouble.as_deref()).await?;
                said = Some(trouble);
            }
            Ok::<_, kube::Error>(())
        };
        if let Err(error) = tell.await {
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
