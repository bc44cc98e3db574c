//! Emptying a node: reads what [`plan`] decides from, and asks for evictions through the API, which enforces budgets.

mod plan;

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use resources::names::CHECKPOINT_BY;
use resources::registry;
use resources::times;
use serde_json::{Value, json};

pub use plan::{DrainRules, PlannedPod, PodFate};

/// Why a pod was not evicted.
#[derive(Debug, thiserror::Error)]
pub enum EvictionError {
    /// The annotation that asks for a checkpoint was refused.
    #[error("pod {pod} was not asked for a checkpoint")]
    Checkpoint {
        /// The pod.
        pod: String,
        /// The API's refusal.
        #[source]
        source: kube::Error,
    },
    /// The eviction was refused for another reason than a budget.
    #[error("pod {pod} was not evicted")]
    Eviction {
        /// The pod.
        pod: String,
        /// The API's refusal.
        #[source]
        source: kube::Error,
    },
}

/// Sets or clears the mark by which a node takes no new pods. Returns whether that changed the node.
pub async fn set_unschedulable(
    client: &Client,
    name: &str,
    unschedulable: bool,
) -> kube::Result<bool> {
    let nodes: Api<Node> = Api::all(client.clone());
    let node = nodes.get(name).await?;
    let spec = node.spec.unwrap_or_default();
    if spec.unschedulable.unwrap_or(false) == unschedulable {
        return Ok(false);
    }
    let value = match unschedulable {
        true => Value::Bool(true),
        false => Value::Null,
    };
    let patch = Patch::Merge(json!({"spec": {"unschedulable": value}}));
    nodes.patch(name, &PatchParams::default(), &patch).await?;
    Ok(true)
}

/// Reads and plans the node's pods.
pub async fn read(
    client: &Client,
    node: &str,
    rules: DrainRules,
    now: Timestamp,
) -> kube::Result<Vec<PlannedPod>> {
    let bound = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let pods = Api::<Pod>::all(client.clone()).list(&bound).await?.items;
    let budgets = Api::<PodDisruptionBudget>::all(client.clone());
    let budgets = budgets.list(&ListParams::default()).await?.items;
    let mut owners = BTreeMap::new();
    for pod in &pods {
        let (Some(key), Some(owner)) = (plan::owner_key(pod), plan::controller(pod)) else {
            continue;
        };
        if owners.contains_key(&key) {
            continue;
        }
        let version = owner.api_version.as_str();
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let Some(kind) = registry::by_kind(group, version, &owner.kind) else {
            continue;
        };
        let gvk = GroupVersionKind::gvk(kind.group, kind.version, kind.kind);
        let resource = ApiResource::from_gvk_with_plural(&gvk, kind.plural);
        let api: Api<DynamicObject> = match kind.namespaced {
            true => Api::namespaced_with(client.clone(), &key.0, &resource),
            false => Api::all_with(client.clone(), &resource),
        };
        if let Some(found) = api.get_opt(&owner.name).await? {
            owners.insert(key, found.metadata);
        }
    }
    Ok(plan::plan(&pods, &budgets, &owners, rules, now))
}

/// Asks for an eviction; false if a budget does not allow it now. The client must not repeat requests that are answered
/// with 429, a budget's refusal.
pub async fn evict(
    client: &Client,
    pod: &PlannedPod,
    now: Timestamp,
) -> Result<bool, EvictionError> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
    if pod.checkpoints {
        let by = now.checked_add(SignedDuration::from_secs(pod.grace));
        let by = times::seconds(by.unwrap_or(Timestamp::MAX));
        let patch = json!({"metadata": {"uid": pod.uid, "annotations": {CHECKPOINT_BY: by}}});
        let patched = pods
            .patch(&pod.name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        match patched {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => return Ok(true),
            Err(source) => {
                let pod = pod.name.clone();
                return Err(EvictionError::Checkpoint { pod, source });
            }
        }
    }
    let request = json!({
        "apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"namespace": pod.namespace, "name": pod.name},
        "deleteOptions": {
            "apiVersion": "v1", "kind": "DeleteOptions",
            "gracePeriodSeconds": pod.grace,
            "preconditions": {"uid": pod.uid},
        },
    });
    let asked: kube::Result<Value> = pods
        .create_subresource("eviction", &pod.name, &PostParams::default(), &request)
        .await;
    match asked {
        Ok(_) => Ok(true),
        // The pod is gone, or another one has its name.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 429 => Ok(false),
        Err(source) => {
            let pod = format!("{}/{}", pod.namespace, pod.name);
            Err(EvictionError::Eviction { pod, source })
        }
    }
}
