//! A pod's allocation: what the account needs of a pod. Pure.

use jiff::Timestamp;
use k8s_openapi::Metadata;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use resources::amounts::pod_requests;
use resources::devices::is_gpu_or_part;
use resources::names;
use usage::{Allocation, AllocationEnd, Owner, PodUid, accounted};

/// The pod's uid; every stored pod has one.
pub fn uid(pod: &Pod) -> Option<PodUid> {
    pod.metadata.uid.clone().map(PodUid)
}

/// The pod's allocation; none if it is not bound to a node, so that it holds nothing. `queue_of` returns the queue of a
/// gang by its namespace and name, `model_of` the model of a node's GPUs.
pub fn allocation(
    pod: &Pod,
    queue_of: impl Fn(&str, &str) -> Option<String>,
    model_of: impl Fn(&str) -> Option<String>,
    now: Timestamp,
) -> Option<Allocation> {
    let spec = pod.spec.as_ref()?;
    let node = spec.node_name.clone().filter(|name| !name.is_empty())?;
    let meta = pod.metadata();
    let note = |name: &str| {
        let annotation = meta.annotations.as_ref().and_then(|all| all.get(name));
        let label = meta.labels.as_ref().and_then(|all| all.get(name));
        annotation.or(label).cloned()
    };
    let namespace = meta.namespace.clone().unwrap_or_default();
    let amounts = accounted(&pod_requests(spec));
    let gang = note(names::GROUP_NAME);
    let queue = gang.and_then(|gang| queue_of(&namespace, &gang));
    let queue = queue.or_else(|| note(names::QUEUE_NAME));
    let has_gpus = amounts.iter().any(|(name, _)| is_gpu_or_part(name));
    let model = has_gpus.then(|| model_of(&node)).flatten();
    let owners = meta.owner_references.iter().flatten();
    let controller = owners.into_iter().find(|one| one.controller == Some(true));
    let submitted = meta.creation_timestamp.as_ref().map_or(now, |time| time.0);
    Some(Allocation {
        uid: uid(pod)?,
        pod: meta.name.clone().unwrap_or_default(),
        owner: Owner {
            queue: queue.unwrap_or_else(|| names::DEFAULT_QUEUE.to_owned()),
            user: note(names::USER).unwrap_or_default(),
            team: note(names::TEAM).unwrap_or_default(),
            model: model.unwrap_or_default(),
            namespace,
        },
        kind: controller.map_or_else(String::new, |one| one.kind.clone()),
        job: controller.map_or_else(String::new, |one| one.name.clone()),
        node,
        amounts,
        submitted,
        started: bound_at(pod).unwrap_or(submitted),
        ended: end(pod, now),
    })
}

/// When the pod was bound: the binding sets the condition `PodScheduled`.
fn bound_at(pod: &Pod) -> Option<Timestamp> {
    let status = pod.status.as_ref()?;
    let mut conditions = status.conditions.iter().flatten();
    let scheduled = conditions.find(|one| one.type_ == "PodScheduled" && one.status == "True");
    let since = scheduled.and_then(|one| one.last_transition_time.as_ref());
    since.or(status.start_time.as_ref()).map(|time| time.0)
}

/// How the pod ended: with the last of its containers, or now if no container says when.
fn end(pod: &Pod, now: Timestamp) -> Option<AllocationEnd> {
    let status = pod.status.as_ref()?;
    let phase = status.phase.as_deref()?;
    if !matches!(phase, "Succeeded" | "Failed") {
        return None;
    }
    let containers = status.container_statuses.iter().flatten();
    let ends: Vec<_> = containers.filter_map(terminated).collect();
    let at = ends.iter().filter_map(|end| end.finished_at.as_ref());
    let reason = status.reason.clone().filter(|reason| !reason.is_empty());
    Some(AllocationEnd {
        at: at.map(|time| time.0).max().unwrap_or(now),
        reason: reason.unwrap_or_else(|| phase.to_owned()),
        exit_code: ends.iter().map(|end| end.exit_code).max(),
    })
}

fn terminated(
    container: &ContainerStatus,
) -> Option<&k8s_openapi::api::core::v1::ContainerStateTerminated> {
    container.state.as_ref()?.terminated.as_ref()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(pod: Value) -> Option<Allocation> {
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let queue = |namespace: &str, gang: &str| {
            (namespace == "team" && gang == "g").then(|| "research".to_owned())
        };
        let model = |node: &str| (node == "n1").then(|| "H100".to_owned());
        allocation(&pod, queue, model, "2026-11-26T12:00:00Z".parse().unwrap())
    }

    fn pod() -> Value {
        json!({
            "metadata": {"name": "train-worker-0", "namespace": "team", "uid": "u",
                "creationTimestamp": "2026-11-26T10:00:00Z",
                "annotations": {"scheduling.k8s.io/group-name": "g", "muster.io/user": "ann"},
                "labels": {"muster.io/team": "red"},
                "ownerReferences": [{"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "train", "uid": "j",
                    "controller": true}]},
            "spec": {"nodeName": "n1", "containers": [{"name": "c",
                "resources": {"requests": {"cpu": "500m"}, "limits": {"nvidia.com/gpu": "2"}}}]},
            "status": {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True",
                "lastTransitionTime": "2026-11-26T10:05:00Z"}]},
        })
    }

    #[test]
    fn a_bound_pod_is_counted_for_its_queue_user_team_and_model() {
        let found = of(pod()).unwrap();
        let owner = Owner {
            namespace: "team".to_owned(),
            queue: "research".to_owned(),
            user: "ann".to_owned(),
            team: "red".to_owned(),
            model: "H100".to_owned(),
        };
        assert_eq!(found.owner, owner);
        assert_eq!(
            (found.kind.as_str(), found.job.as_str()),
            ("PyTorchJob", "train")
        );
        assert_eq!(found.started.to_string(), "2026-11-26T10:05:00Z");
        assert_eq!(found.amounts.get("nvidia.com/gpu"), 2);
        assert_eq!(found.ended, None);
        let mut unbound = pod();
        unbound["spec"]["nodeName"] = Value::Null;
        assert_eq!(of(unbound), None);
    }

    #[test]
    fn a_pod_without_gang_owner_and_gpus_has_the_default_queue_and_no_model() {
        let found = of(
            json!({"metadata": {"name": "p", "namespace": "team", "uid": "u"},
            "spec": {"nodeName": "n1", "containers": [{"name": "c"}]}}),
        )
        .unwrap();
        assert_eq!(found.owner.queue, "default");
        assert_eq!(
            (found.owner.model, found.kind),
            (String::new(), String::new())
        );
        assert_eq!(found.started.to_string(), "2026-11-26T12:00:00Z");
    }

    #[test]
    fn the_end_is_the_last_containers_with_the_reason_and_the_exit_code() {
        let mut failed = pod();
        failed["status"]["phase"] = "Failed".into();
        let at = |time: &str, code: i32| {
            json!({"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": {"exitCode": code, "finishedAt": time}}})
        };
        failed["status"]["containerStatuses"] =
            json!([at("2026-11-26T11:00:00Z", 0), at("2026-11-26T11:30:00Z", 3)]);
        let end = of(failed.clone()).unwrap().ended.unwrap();
        assert_eq!(end.at.to_string(), "2026-11-26T11:30:00Z");
        assert_eq!((end.reason.as_str(), end.exit_code), ("Failed", Some(3)));
        failed["status"]["reason"] = "Evicted".into();
        failed["status"]["containerStatuses"] = Value::Null;
        let end = of(failed).unwrap().ended.unwrap();
        assert_eq!(end.at.to_string(), "2026-11-26T12:00:00Z");
        assert_eq!((end.reason.as_str(), end.exit_code), ("Evicted", None));
    }
}
