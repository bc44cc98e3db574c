//! Declares a pod on a lost node as failed. It does not judge whether the node is lost.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ObjectReference, Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client};
use resources::names::{DISRUPTION_TARGET, NODE_LOST};
use serde::Deserialize;
use serde_json::{Value, json};

use super::access::unless_gone;
use super::mirror::{self, ObjectKey, uid_of};
use crate::part::part_of;

/// The part of a pod from which [`BoundPod`] is made. Decoding the rest of every pod, only to drop
/// it, would be most of these loops' cost.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct PodPart {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: SpecPart,
    #[serde(default)]
    status: StatusPart,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SpecPart {
    #[serde(default)]
    node_name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct StatusPart {
    #[serde(default)]
    phase: String,
    #[serde(default)]
    conditions: Vec<PodCondition>,
}

part_of!(Pod, PodPart);

/// The fields of a pod that the loops over nodes and leftover pods need.
pub(super) struct BoundPod {
    pub(super) uid: String,
    /// Empty while the pod is not bound.
    pub(super) node: String,
    pub(super) finished: bool,
    pub(super) deleting: bool,
    pub(super) owned: bool,
    pub(super) created: Option<Timestamp>,
    conditions: Vec<PodCondition>,
}

impl BoundPod {
    pub(super) fn of(pod: PodPart) -> BoundPod {
        let uid = uid_of(&pod);
        BoundPod {
            uid,
            node: pod.spec.node_name,
            finished: matches!(&*pod.status.phase, "Succeeded" | "Failed"),
            deleting: pod.metadata.deletion_timestamp.is_some(),
            owned: pod.metadata.owner_references.is_some_and(|o| !o.is_empty()),
            created: pod.metadata.creation_timestamp.map(|time| time.0),
            conditions: pod.status.conditions,
        }
    }

    pub(super) fn reference(&self, key: &ObjectKey) -> ObjectReference {
        mirror::reference("v1", "Pod", key, Some(self.uid.clone()))
    }
}

/// The status of a pod that was lost with its node.
pub(super) fn lost_status(conditions: &[PodCondition], message: &str, now: Timestamp) -> Value {
    let mut conditions = conditions.to_vec();
    conditions.retain(|condition| condition.type_ != DISRUPTION_TARGET);
    for condition in &mut conditions {
        let answers = matches!(&*condition.type_, "Ready" | "ContainersReady");
        if answers && condition.status != "False" {
            condition.status = "False".to_owned();
            condition.reason = Some(NODE_LOST.to_owned());
            condition.last_transition_time = Some(Time(now));
        }
    }
    // A Job's failure policy uses this condition to tell a lost pod from a failed program.
    conditions.push(PodCondition {
        type_: DISRUPTION_TARGET.to_owned(),
        status: "True".to_owned(),
        reason: Some(NODE_LOST.to_owned()),
        message: Some(message.to_owned()),
        last_transition_time: Some(Time(now)),
        ..PodCondition::default()
    });
    json!({
        "phase": "Failed",
        "reason": NODE_LOST,
        "message": message,
        "conditions": conditions,
    })
}

/// Declares a pod failed because its node is lost. A pod that was being deleted is deleted at once:
/// no agent is left to report its end.
pub(super) async fn declare(
    client: &Client,
    key: &ObjectKey,
    pod: &BoundPod,
    message: &str,
    now: Timestamp,
) -> kube::Result<()> {
    let api: Api<Pod> = Api::namespaced(client.clone(), &key.0);
    let patch = Patch::Merge(json!({
        "metadata": { "uid": pod.uid },
        "status": lost_status(&pod.conditions, message, now),
    }));
    let params = PatchParams::default();
    unless_gone(api.patch_status(&key.1, &params, &patch).await)?;
    if pod.deleting {
        delete_now(client, key, pod).await?;
    }
    Ok(())
}

/// Deletes a pod without waiting for its node.
pub(super) async fn delete_now(
    client: &Client,
    key: &ObjectKey,
    pod: &BoundPod,
) -> kube::Result<()> {
    let api: Api<Pod> = Api::namespaced(client.clone(), &key.0);
    let params = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions {
            uid: Some(pod.uid.clone()),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    unless_gone(api.delete(&key.1, &params).await)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_pod_is_failed_not_ready_and_a_disruption() {
        let condition = |type_: &str| PodCondition {
            type_: type_.to_owned(),
            status: "True".to_owned(),
            ..PodCondition::default()
        };
        let before = ["Initialized", "Ready", "DisruptionTarget"].map(condition);
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let status = lost_status(&before, "gone", now);
        assert_eq!(status["phase"], "Failed");
        assert_eq!(status["reason"], "NodeLost");
        assert_eq!(status["message"], "gone");
        let told: Vec<_> = status["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| (c["type"].as_str().unwrap(), c["status"].as_str().unwrap()))
            .collect();
        assert_eq!(
            told,
            [
                ("Initialized", "True"),
                ("Ready", "False"),
                ("DisruptionTarget", "True")
            ]
        );
    }
}
