//! Writes evictions through the pod's `eviction` subresource, with the pod's own grace period and
//! its uid as a precondition, until the API accepts or refuses. A pod that declares how long its
//! checkpoint takes is notified of its deadline and gets that long. The API enforces disruption
//! budgets; a refusal is final. The request carries the reason, which the embedded engine writes in the pod's condition
//! at once; for other API servers the condition is written afterwards.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use resources::names::{
    CHECKPOINT_BY, DISRUPTION_TARGET, EVICTION_REASON, PREEMPTION_BY_SCHEDULER,
};
use resources::numbers::pod_grace;
use resources::times::seconds;
use scheduler::Eviction;
use serde_json::{Value, json};

use super::api_retry::{AttemptResult, until_answered};

/// The grace period of a pod that sets none, in seconds.
const GRACE: i64 = 30;

/// How an eviction ended.
pub(super) struct Evicted {
    pub(super) eviction: Eviction,
    /// The API's reason for refusing.
    pub(super) refused: Option<String>,
}

/// Evicts one pod. A pod that is gone, or replaced by another of the same name, needs no eviction.
pub(super) async fn evict(client: Client, eviction: Eviction) -> Evicted {
    let api: Api<Pod> = Api::namespaced(client, &eviction.pod.namespace);
    let request = request(&eviction, grace(&api, &eviction).await);
    let (api, request, meant) = (&api, &request, &eviction);
    let answer = until_answered(|| async move {
        // Not `Api::evict`, which sends its options under a name that no API reads.
        let asked: kube::Result<Value> = api
            .create_subresource("eviction", &meant.pod.name, &PostParams::default(), request)
            .await;
        match asked {
            Ok(_) => {
                write_reason(api, meant).await;
                AttemptResult::Given(None)
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                AttemptResult::Given(None)
            }
            Err(kube::Error::Api(status)) if (400..500).contains(&status.code) => {
                AttemptResult::Given(Some(status.message))
            }
            Err(error) => AttemptResult::Lost(error.to_string()),
        }
    })
    .await;
    let refused = answer.unwrap_or_else(|none| Some(none.to_string()));
    Evicted { eviction, refused }
}

/// Why the pod is evicted: a word and a sentence.
fn reason(eviction: &Eviction) -> String {
    format!("{}: {}", eviction.why.as_str(), eviction.message)
}

/// The request body that evicts exactly this pod, with a longer grace period if its own is too
/// short.
fn request(eviction: &Eviction, grace: Option<u32>) -> Value {
    let mut request = json!({
        "apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {
            "namespace": eviction.pod.namespace, "name": eviction.pod.name,
            "annotations": {EVICTION_REASON: reason(eviction)},
        },
        "deleteOptions": {
            "apiVersion": "v1", "kind": "DeleteOptions",
            "preconditions": {"uid": eviction.pod.uid},
        },
    });
    if let Some(grace) = grace {
        request["deleteOptions"]["gracePeriodSeconds"] = json!(grace);
    }
    request
}

/// The grace period of a pod that checkpoints on eviction, if longer than its own; also writes the
/// deadline on the pod. None: the pod's own grace period applies.
async fn grace(api: &Api<Pod>, eviction: &Eviction) -> Option<u32> {
    let asked = eviction.grace?;
    let own = match api.get(&eviction.pod.name).await {
        Ok(pod) if pod.metadata.uid.as_deref() == Some(&*eviction.pod.uid) => {
            let spec = pod.spec.unwrap_or_default();
            pod_grace(spec.termination_grace_period_seconds.unwrap_or(GRACE))
        }
        // The pod is gone or replaced: the eviction request will report it.
        _ => return None,
    };
    let grace = asked.max(own);
    let patch = Patch::Strategic(notice(eviction, grace, Timestamp::now()));
    let params = PatchParams::default();
    if let Err(error) = api.patch(&eviction.pod.name, &params, &patch).await {
        tracing::debug!(%error, pod = %eviction.pod.name, "the server could not ask a pod for a checkpoint");
    }
    u32::try_from(grace).ok().filter(|_| asked > own)
}

/// The annotation for a pod that has this many seconds to checkpoint.
fn notice(eviction: &Eviction, grace: i64, now: Timestamp) -> Value {
    let by = now.checked_add(SignedDuration::from_secs(grace));
    let by = by.unwrap_or(Timestamp::MAX);
    json!({"metadata": {
        "uid": eviction.pod.uid,
        "annotations": {CHECKPOINT_BY: seconds(by)},
    }})
}

/// Writes the reason for the eviction on the pod. A pod that is already gone needs no reason.
async fn write_reason(api: &Api<Pod>, eviction: &Eviction) {
    let patch = Patch::Strategic(condition(eviction, Timestamp::now()));
    let params = PatchParams::default();
    if let Err(error) = api.patch_status(&eviction.pod.name, &params, &patch).await {
        tracing::debug!(%error, pod = %eviction.pod.name, "the server could not write the reason of an eviction to the pod");
    }
}

fn condition(eviction: &Eviction, now: Timestamp) -> Value {
    json!({
        "metadata": {"uid": eviction.pod.uid},
        "status": {"conditions": [{
            "type": DISRUPTION_TARGET,
            "status": "True",
            "reason": PREEMPTION_BY_SCHEDULER,
            "message": reason(eviction),
            "lastTransitionTime": seconds(now),
        }]},
    })
}

#[cfg(test)]
mod tests {
    use scheduler::{EvictionReason, GroupRef, PodRef};

    use super::*;

    #[test]
    fn the_condition_names_the_pod_and_its_preemptor() {
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
            message: "reclaimed for ns/h".into(),
            grace: Some(600),
        };
        let body = request(&eviction, Some(600));
        assert_eq!(body["deleteOptions"]["preconditions"]["uid"], "u");
        assert_eq!(body["deleteOptions"]["gracePeriodSeconds"], 600);
        let reason = &body["metadata"]["annotations"][EVICTION_REASON];
        assert_eq!(reason, "Reclaimed: reclaimed for ns/h");
        let note = notice(&eviction, 600, Timestamp::UNIX_EPOCH);
        assert_eq!(note["metadata"]["uid"], "u");
        let by = &note["metadata"]["annotations"]["muster.io/checkpoint-by"];
        assert_eq!(by, "1970-01-01T00:10:00Z");
        let patch = condition(&eviction, Timestamp::UNIX_EPOCH);
        assert_eq!(patch["metadata"]["uid"], "u");
        let condition = &patch["status"]["conditions"][0];
        assert_eq!(condition["type"], "DisruptionTarget");
        assert_eq!(condition["message"], "Reclaimed: reclaimed for ns/h");
    }
}
