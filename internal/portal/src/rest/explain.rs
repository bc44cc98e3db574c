//! Why a job is pending: the scheduler's report of its gang, with the same texts as the CLI and the
//! UI.

use axum::Json;
use axum::extract::{Path, State};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Client};
use resources::access::Caller;
use resources::registry::{self, Kind};
use resources::report::{PlacementReport, preemptable_words};
use serde_json::{Value, json};

use crate::Problem;
use crate::state::{Portal, SignedIn};

/// Answers `GET /api/v1/jobs/{namespace}/{kind}/{name}/explain`.
pub async fn explain(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
    Path((namespace, plural, name)): Path<(String, String, String)>,
) -> Result<Json<Value>, Problem> {
    let kind = job_kind(&plural)?;
    let client = portal.client(&caller);
    let job = api_of(client.clone(), &namespace, kind).get(&name).await?;
    let state = state_of(&job.data["status"]);
    if let Some(report) = (portal.hooks.explain)(&namespace, &name) {
        return Ok(Json(waiting(&portal, &caller, &state, &report).await));
    }
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    let selector = format!("{}={name}", owner_label(kind.kind));
    let pods = pods.list(&ListParams::default().labels(&selector)).await?;
    // One of the pods may wait without a gang.
    let names = pods.iter().filter_map(|pod| pod.metadata.name.as_deref());
    for pod in names {
        if let Some(report) = (portal.hooks.explain)(&namespace, pod) {
            return Ok(Json(waiting(&portal, &caller, &state, &report).await));
        }
    }
    let pods: Vec<PodProgress<'_>> = pods.iter().map(PodProgress::of).collect();
    Ok(Json(json!({
        "state": state,
        "sentence": settled_sentence(&state, &job.data["status"], &pods),
        "blocked": blocked_sentence(&state, &pods).is_some(),
    })))
}

/// Answers `GET /api/v1/gangs/{namespace}/{name}/explain`, for gangs without a job: by the
/// PodGroup's name, or the pod's for a pod without one. A gang without a report is not pending.
pub async fn explain_gang(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
    Path((namespace, name)): Path<(String, String)>,
) -> Result<Json<Value>, Problem> {
    super::history::may(&portal, &caller, &namespace)?;
    Ok(Json(match (portal.hooks.explain)(&namespace, &name) {
        Some(report) => waiting(&portal, &caller, "Pending", &report).await,
        None => json!({ "sentence": "The job does not wait, or the server does not know it." }),
    }))
}

/// The report of a pending gang, as data and as text.
async fn waiting(portal: &Portal, caller: &Caller, state: &str, report: &PlacementReport) -> Value {
    let victims = portal
        .could_evict(caller, &report.namespace, &report.group)
        .await;
    json!({
        "state": state,
        "sentence": report.sentence(),
        "binding": report.binding,
        "would_fit": report.would_fit,
        "may_start": report.estimate.map(|estimate| estimate.message()),
        "evictions": report.evictions,
        "could_evict": preemptable_words(&victims),
        "victims": victims,
        "report": report,
    })
}

/// The API of one kind in a namespace.
pub fn api_of(client: Client, namespace: &str, kind: &Kind) -> Api<DynamicObject> {
    let gvk = kube::core::GroupVersionKind::gvk(kind.group, kind.version, kind.kind);
    let resource = ApiResource::from_gvk_with_plural(&gvk, kind.plural);
    Api::namespaced_with(client, namespace, &resource)
}

pub fn job_kind(plural: &str) -> Result<&'static Kind, Problem> {
    registry::all()
        .iter()
        .find(|kind| kind.plural == plural && matches!(kind.kind, "PyTorchJob" | "Job"))
        .ok_or_else(|| {
            Problem::invalid(format!(
                "kind: Invalid value: {plural:?}: use pytorchjobs or jobs"
            ))
        })
}

/// The label with the job's name that the pods of a kind of job have.
pub fn owner_label(kind: &str) -> &'static str {
    match kind {
        "PyTorchJob" => "training.kubeflow.org/job-name",
        _ => "batch.kubernetes.io/job-name",
    }
}

/// The last condition that is true. A Job has no condition before its end: without one, ready pods
/// make it Running, and it is Pending otherwise.
pub fn state_of(status: &Value) -> String {
    let conditions = status["conditions"].as_array();
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
    fn of(pod: &'p Pod) -> PodProgress<'p> {
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

/// Why a job that has not ended is held up on a node, if it is.
fn blocked_sentence(state: &str, pods: &[PodProgress<'_>]) -> Option<String> {
    let goes_on = matches!(state, "Pending" | "Created" | "Running" | "Restarting");
    let mut blocked = pods.iter().filter(|_| goes_on);
    blocked.find_map(PodProgress::blocked)
}

/// The state of a job that the scheduler does not hold back, with its cause, in one sentence.
pub fn settled_sentence(state: &str, status: &Value, pods: &[PodProgress<'_>]) -> String {
    if let Some(blocked) = blocked_sentence(state, pods) {
        return blocked;
    }
    let conditions = status["conditions"].as_array();
    let message = conditions
        .into_iter()
        .flatten()
        .rfind(|condition| condition["type"] == state)
        .and_then(|condition| condition["message"].as_str());
    let placed = !pods.is_empty() && pods.iter().all(|pod| pod.bound);
    match (state, message) {
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
        assert_eq!(state_of(&json!({"active": 1, "ready": 0})), "Pending");
        assert_eq!(state_of(&json!({"active": 1, "ready": 1})), "Running");
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
