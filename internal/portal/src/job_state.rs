//! A job's state and its cause, from the job's status and its pods.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use resources::hang::HangRecord;
use resources::jobset;
use resources::leader_worker_set;
use resources::names;
use resources::registry::Kind;
use resources::volcano;
use serde_json::Value;

use crate::other_kinds::OtherKind;
use crate::ray_service::sentence as of_ray_service;

/// The label with the job's name that the pods of a kind of job have.
pub fn owner_label(kind: &Kind) -> &'static str {
    match OtherKind::of(kind) {
        Some(other) => other.label,
        None if kind.training().is_some() => names::JOB_NAME,
        None => names::BATCH_JOB_NAME,
    }
}

/// The conditions that only a RayCluster has.
const OF_RAY: [&str; 2] = ["HeadPodReady", "RayClusterProvisioned"];

/// The last condition that is true; of a RayCluster, what its `state` says; of a Volcano Job, its phase; of a JobSet or
/// TrainJob, what its conditions and its Jobs say; of a LeaderWorkerSet, whether a group is ready. A Job has no
/// condition before its end: without one, ready pods make it Running, and it is Pending otherwise.
pub fn state_of(status: &Value) -> String {
    if let Some(phase) = volcano::phase(status) {
        return phase.to_owned();
    }
    if let Some(state) = jobset::state(status).or_else(|| leader_worker_set::state(status)) {
        return state.to_owned();
    }
    let conditions = status["conditions"].as_array();
    if of_ray_service(status).is_some() {
        let holds = |type_: &str| {
            let mut all = conditions.into_iter().flatten();
            all.any(|one| one["type"] == type_ && one["status"] == "True")
        };
        let state = match (holds("Ready"), holds("Suspended")) {
            (true, _) => "Running",
            (_, true) => "Suspended",
            _ => "Pending",
        };
        return state.to_owned();
    }
    let mut types = conditions.into_iter().flatten();
    if types.any(|one| {
        one["type"]
            .as_str()
            .is_some_and(|type_| OF_RAY.contains(&type_))
    }) {
        let state = match status["state"].as_str() {
            Some("ready") => "Running",
            Some("suspended") => "Suspended",
            _ => "Pending",
        };
        return state.to_string();
    }
    let holds = conditions
        .into_iter()
        .flatten()
        .rfind(|condition| condition["status"] == "True")
        .and_then(|condition| condition["type"].as_str());
    let runs = status["ready"].as_i64().is_some_and(|ready| ready > 0);
    holds
        .unwrap_or(if runs { "Running" } else { "Pending" })
        .to_string()
}

/// The facts about one of a job's pods that the job's sentence depends on.
pub struct PodProgress<'p> {
    /// The pod's name.
    pub name: &'p str,
    /// True if the scheduler has bound it to a node.
    pub bound: bool,
    /// Its containers, as its node reports them.
    pub containers: &'p [ContainerStatus],
}

impl<'p> PodProgress<'p> {
    /// The facts from a pod.
    pub fn of(pod: &'p Pod) -> PodProgress<'p> {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let containers = pod.status.as_ref();
        PodProgress {
            name: pod.metadata.name.as_deref().unwrap_or_default(),
            bound: node.is_some_and(|node| !node.is_empty()),
            containers: containers
                .and_then(|status| status.container_statuses.as_deref())
                .unwrap_or_default(),
        }
    }

    /// Why a container of the pod does not run although the pod has a node.
    fn blocked(&self) -> Option<String> {
        let mut states = self.containers.iter().filter_map(|c| c.state.as_ref());
        states.find_map(|state| {
            let waiting = state.waiting.as_ref()?;
            let reason = waiting.reason.as_deref()?;
            if ["ContainerCreating", "PodInitializing"].contains(&reason) {
                return None;
            }
            let message = waiting.message.as_deref().unwrap_or_default();
            Some(match message.trim().trim_end_matches('.') {
                "" => format!("Pod {} does not run: {reason}.", self.name),
                message => format!("Pod {} does not run: {message} ({reason}).", self.name),
            })
        })
    }
}

/// The verdict on a running job that hangs, from its annotations; none if it does not.
pub fn hang_sentence<'a>(
    state: &str,
    annotation: impl Fn(&str) -> Option<&'a str>,
) -> Option<String> {
    let record = HangRecord::read(annotation).filter(|_| state == "Running");
    record.map(|record| record.sentence())
}

/// Why a job that has not ended is held up on a node, if it is.
pub fn blocked_sentence(state: &str, pods: &[PodProgress<'_>]) -> Option<String> {
    let goes_on = matches!(state, "Pending" | "Created" | "Running" | "Restarting");
    let mut blocked = pods.iter().filter(|_| goes_on);
    blocked.find_map(PodProgress::blocked)
}

/// The state of a job that the scheduler does not hold back, with its cause, in one sentence.
pub fn settled_sentence(state: &str, status: &Value, pods: &[PodProgress<'_>]) -> String {
    if let Some(blocked) = blocked_sentence(state, pods) {
        return blocked;
    }
    if let Some(sentence) = of_ray_service(status).filter(|text| !text.is_empty()) {
        return sentence;
    }
    let conditions = status["conditions"].as_array();
    let message = conditions
        .into_iter()
        .flatten()
        .rfind(|condition| condition["type"] == state)
        .and_then(|condition| condition["message"].as_str());
    // Volcano's Job has its cause beside its phase.
    let message = message.or_else(|| status["state"]["message"].as_str());
    let of_set = jobset::state(status).map(|state| jobset::message(status, state));
    let message = message.or(of_set.filter(|text| !text.is_empty()));
    let placed = !pods.is_empty() && pods.iter().all(|pod| pod.bound);
    let held = status["message"].as_str().filter(|text| !text.is_empty());
    match (state, message.or(held)) {
        // A RayJob says what it waits for.
        ("Pending", _) if held.is_some() => held.unwrap_or_default().to_string(),
        ("Pending" | "Created", _) if placed => {
            "The job's pods have nodes, and their containers are starting.".to_string()
        }
        ("Pending" | "Created", _) => "The scheduler is about to place the job.".to_string(),
        (_, Some(message)) if !message.is_empty() => message.to_string(),
        (state, _) => format!("The job is {state} and does not wait."),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_state_is_the_last_condition_that_holds() {
        let status = json!({"conditions": [
            {"type": "Created", "status": "True"},
            {"type": "Running", "status": "False"},
            {"type": "Succeeded", "status": "True", "message": "done"},
        ]});
        assert_eq!(state_of(&status), "Succeeded");
        assert_eq!(settled_sentence("Succeeded", &status, &[]), "done");
        assert_eq!(state_of(&json!({})), "Pending");
        let service = |ready: &str, upgrades: &str, suspended: &str| {
            json!({"conditions": [
                {"type": "Ready", "status": ready, "message": "A."},
                {"type": "UpgradeInProgress", "status": upgrades, "message": "B."},
                {"type": "Suspended", "status": suspended, "message": "C."},
            ]})
        };
        for (status, state, sentence) in [
            (service("True", "False", "False"), "Running", "A."),
            (service("True", "True", "False"), "Running", "A. B."),
            (service("False", "False", "False"), "Pending", "A."),
            (service("False", "False", "True"), "Suspended", "A."),
        ] {
            assert_eq!(state_of(&status), state);
            assert_eq!(settled_sentence(state, &status, &[]), sentence);
        }
        let ray = |state: &str| {
            let ready = json!({"type": "HeadPodReady", "status": "True"});
            state_of(&json!({"state": state, "conditions": [ready]}))
        };
        assert_eq!(ray("ready"), "Running");
        assert_eq!(ray("suspended"), "Suspended");
        assert_eq!(ray(""), "Pending");
        let volcano = json!({"state": {"phase": "Restarting", "message": "why"},
            "conditions": [{"status": "Running"}]});
        assert_eq!(state_of(&volcano), "Restarting");
        assert_eq!(settled_sentence("Restarting", &volcano, &[]), "why");
        assert_eq!(state_of(&json!({"active": 1, "ready": 0})), "Pending");
        assert_eq!(state_of(&json!({"active": 1, "ready": 1})), "Running");
    }

    #[test]
    fn only_a_running_job_hangs() {
        let record = r#"{"since":"2026-01-01T00:00:00Z","at":"2026-01-01T00:30:00Z","after":1800,"action":"report",
            "unused":"gpu","ranks":true,"pod":"p","uid":"u"}"#;
        let annotation = |name: &str| (name == names::HUNG).then_some(record);
        assert_eq!(
            hang_sentence("Running", annotation).as_deref(),
            Some(
                "No rank has written a log line or used its GPU since 2026-01-01T00:00:00Z, and muster.io/hang-after \
                 is 30m: the job may hang."
            )
        );
        for state in ["Restarting", "Suspended", "Failed", "Pending"] {
            assert_eq!(hang_sentence(state, annotation), None, "{state}");
        }
        assert_eq!(hang_sentence("Running", |_| None), None);
    }

    #[test]
    fn the_sentence_says_what_holds_a_job_up_after_its_pods_were_placed() {
        let pod = |node: Option<&str>, waiting: Value| -> Pod {
            serde_json::from_value(json!({
                "metadata": {"name": "p"}, "spec": {"nodeName": node, "containers": []},
                "status": {"containerStatuses": [{"name": "main", "image": "", "imageID": "",
                    "ready": false, "restartCount": 0, "state": {"waiting": waiting}}]},
            }))
            .unwrap()
        };
        let starts = json!({"reason": "ContainerCreating"});
        let bad = json!({"reason": "CreateContainerConfigError", "message": "no such secret."});
        let silent = json!({"reason": "ErrImagePull"});
        let ends = json!({"conditions": [{"type": "Failed", "status": "True", "message": "why"}]});
        let none = json!({});
        let about = "The scheduler is about to place the job.";
        let table = [
            ("Pending", &none, vec![], about),
            ("Pending", &none, vec![pod(None, starts.clone())], about),
            (
                "Created",
                &none,
                vec![pod(Some("n"), starts.clone())],
                "The job's pods have nodes, and their containers are starting.",
            ),
            (
                "Running",
                &none,
                vec![pod(Some("n"), starts), pod(Some("n"), bad.clone())],
                "Pod p does not run: no such secret (CreateContainerConfigError).",
            ),
            (
                "Pending",
                &none,
                vec![pod(Some("n"), silent)],
                "Pod p does not run: ErrImagePull.",
            ),
            ("Failed", &ends, vec![pod(Some("n"), bad)], "why"),
        ];
        for (state, status, pods, sentence) in table {
            let pods: Vec<PodProgress<'_>> = pods.iter().map(PodProgress::of).collect();
            assert_eq!(settled_sentence(state, status, &pods), sentence);
        }
    }
}
