//! Sets the MIG partitioning of nodes' GPUs: the label that a node's agent follows, and the gang
//! that it serves. It writes only to a node whose label is unchanged since the decision.

use k8s_openapi::api::core::v1::{Node, ObjectReference};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use resources::names::{MIG_CHOICE, MIG_CONFIG, MIG_CONFIG_STATE, MIG_PENDING};
use scheduler::Repartition;
use serde_json::json;

/// How many times a node is read anew because other clients write to it.
const TRIES: usize = 5;

/// Why a node's label was not written.
#[derive(Debug, thiserror::Error)]
enum RepartitionError {
    #[error(transparent)]
    Choice(#[from] serde_json::Error),
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("its label {MIG_CONFIG} has another value now: {now}")]
    Changed { now: String },
    #[error(
        "{message}; a server that repartitions GPUs needs the right to patch nodes: the chart's server.mig, or \
         packaging/kubernetes/mig"
    )]
    Forbidden { message: String },
    #[error("other clients changed the node before each of the writes")]
    Contended,
}

/// The outcome for a node.
pub(super) struct RepartitionOutcome {
    pub(super) repartition: Repartition,
    /// Why the label was not written.
    pub(super) refused: Option<String>,
}

/// Writes the label of one node.
pub(super) async fn repartition_node(
    client: Client,
    repartition: Repartition,
) -> RepartitionOutcome {
    let refused = write(client, &repartition).await.err();
    let refused = refused.map(|error| error.to_string());
    RepartitionOutcome {
        repartition,
        refused,
    }
}

async fn write(client: Client, repartition: &Repartition) -> Result<(), RepartitionError> {
    let nodes: Api<Node> = Api::all(client);
    let choice = serde_json::to_string(&repartition.choice)?;
    for _ in 0..TRIES {
        let meta = nodes.get_metadata(&repartition.node).await?.metadata;
        let labels = meta.labels.unwrap_or_default();
        let now = labels.get(MIG_CONFIG).filter(|value| !value.is_empty());
        if now != repartition.before.as_ref() {
            let now = now.map_or("nothing", String::as_str).to_owned();
            return Err(RepartitionError::Changed { now });
        }
        // The pending state comes with it: until the agent reports more, none of the node's devices
        // are allocated.
        let note = json!({"metadata": {
            "resourceVersion": meta.resource_version,
            "labels": {MIG_CONFIG: repartition.choice.configuration, MIG_CONFIG_STATE: MIG_PENDING},
            "annotations": {MIG_CHOICE: choice},
        }});
        let (params, note) = (PatchParams::default(), Patch::Merge(&note));
        match nodes
            .patch_metadata(&repartition.node, &params, &note)
            .await
        {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(kube::Error::Api(status)) if status.code == 403 => {
                let message = status.message;
                return Err(RepartitionError::Forbidden { message });
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(RepartitionError::Contended)
}

/// The reference to a node for events.
pub(super) fn about_node(name: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(name.to_owned()),
        // kubelets write the name here, and `kubectl describe` selects events by it.
        uid: Some(name.to_owned()),
        ..ObjectReference::default()
    }
}
