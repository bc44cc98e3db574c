//! Writes evictions: through the pod's `eviction`, with its own grace period and only for the very
//! pod that was meant, until the API has said yes or no. What protects a pod there (a disruption
//! budget) is heeded: a no is an answer. Then the pod is told who it made room for.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, EvictParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client};
use scheduler::Eviction;
use serde_json::{Value, json};

use super::asking::{Answer, until_answered};
use super::statuses::seconds;

/// How an eviction ended.
pub(super) struct Evicted {
    pub(super) eviction: Eviction,
    /// What the API said against it.
    pub(super) refused: Option<String>,
}

/// Evicts one pod. One that is gone, or replaced by another of the name, needs no eviction.
pub(super) async fn evict(client: Client, eviction: Eviction) -> Evicted {
    let api: Api<Pod> = Api::namespaced(client, &eviction.pod.namespace);
    let params = EvictParams {
        delete_options: Some(DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(eviction.pod.uid.clone()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        }),
        ..EvictParams::default()
    };
    let (api, params, meant) = (&api, &params, &eviction);
    let refused = until_answered(|| async move {
        match api.evict(&meant.pod.name, params).await {
            Ok(_) => {
                tell(api, meant).await;
                Answer::Yes
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Answer::Yes,
            Err(kube::Error::Api(status)) if (400..500).contains(&status.code) => {
                Answer::No(status.message)
            }
            Err(error) => Answer::Lost(error.to_string()),
        }
    })
    .await;
    Evicted { eviction, refused }
}

/// Says on the pod why it goes. It may be gone already: then nobody is left to know.
async fn tell(api: &Api<Pod>, eviction: &Eviction) {
    let patch = Patch::Strategic(condition(eviction, Timestamp::now()));
    let params = PatchParams::default();
    if let Err(error) = api.patch_status(&eviction.pod.name, &params, &patch).await {
        tracing::debug!(%error, pod = %eviction.pod.name, "an evicted pod could not be told why");
    }
}

fn condition(eviction: &Eviction, now: Timestamp) -> Value {
    json!({
        "metadata": {"uid": eviction.pod.uid},
        "status": {"conditions": [{
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": format!("{}: {}", eviction.why.as_str(), eviction.message),
            "lastTransitionTime": seconds(now),
        }]},
    })
}

#[cfg(test)]
mod tests {
    use scheduler::{EvictionReason, GroupRef, PodRef};

    use super::*;

    #[test]
    fn the_condition_names_the_very_pod_and_who_it_makes_room_for() {
        let eviction = Eviction {
            pod: PodRef {
                namespace: "ns".into(),
                name: "p".into(),
                uid: "u".into(),
            },
            group: GroupRef {
                namespace: "ns".into(),
                name: "g".into(),
                lone: false,
            },
            node: "n1".into(),
            why: EvictionReason::Reclaimed,
            by: None,
            message: "makes room for ns/h".into(),
        };
        let patch = condition(&eviction, Timestamp::UNIX_EPOCH);
        assert_eq!(patch["metadata"]["uid"], "u");
        let condition = &patch["status"]["conditions"][0];
        assert_eq!(condition["type"], "DisruptionTarget");
        assert_eq!(condition["message"], "Reclaimed: makes room for ns/h");
    }
}
