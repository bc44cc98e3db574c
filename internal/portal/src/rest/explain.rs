//! Why a job is pending: the scheduler's report of its gang, with the same texts as the CLI and the
//! UI.

use std::collections::BTreeSet;

use administration::cancellation;
use axum::Json;
use axum::extract::{Path, State};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Client};
use resources::access::Caller;
use resources::failure::{FailureAction, FailureRecord};
use resources::leader_worker_set;
use resources::names::GROUP_NAME;
use resources::registry::{self, Kind};
use resources::report::{PlacementReport, preemptable_words};
use resources::training;
use serde_json::{Value, json};

use crate::board::{Tone, tone_of};
use crate::failure;
use crate::job_state::{
    PodProgress, blocked_sentence, hang_sentence, owner_label, settled_sentence, state_of,
};
use crate::other_kinds::OtherKind;
use crate::problem::Problem;
use crate::state::{Portal, SignedIn};
use crate::waiting;

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
    if let Some(sentence) = cancelled(&job) {
        return Ok(Json(json!({
            "state": "Cancelled", "sentence": sentence, "blocked": false, "lastFailure": last_failure(&job),
        })));
    }
    let is_set = kind.is_leader_worker_set();
    // A RayJob or RayService waits with the gang of its cluster, a RayService with that of the one that takes over.
    let status = &job.data["status"];
    let clusters = [
        &status["rayClusterName"],
        &status["pendingServiceStatus"]["rayClusterName"],
        &status["activeServiceStatus"]["rayClusterName"],
    ];
    let cluster = clusters.into_iter().find_map(Value::as_str);
    let gang = cluster.unwrap_or(&name);
    // Each group of a LeaderWorkerSet is a gang of its own.
    if !is_set && let Some(report) = waiting::report(&portal, &caller, &namespace, gang, gang).await
    {
        let mut answer = answer(&portal, &caller, &state, &report).await;
        answer["lastFailure"] = json!(last_failure(&job));
        return Ok(Json(answer));
    }
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    let selector = format!("{}={name}", owner_label(kind));
    let pods = pods.list(&ListParams::default().labels(&selector)).await?;
    // The Jobs of a JobSet wait with its gang, and the groups of a LeaderWorkerSet with one each.
    let group = |pod: &Pod| pod.metadata.annotations.as_ref()?.get(GROUP_NAME).cloned();
    let waits = |pod: &&Pod| !is_set || !PodProgress::of(pod).bound;
    let gangs: BTreeSet<String> = pods.iter().filter(waits).filter_map(group).collect();
    for gang in gangs {
        let owner = if is_set { &name } else { &gang };
        let report = waiting::report(&portal, &caller, &namespace, &gang, owner).await;
        if let Some(report) = report {
            let mut answer = answer(&portal, &caller, &state, &report).await;
            let of_group = report.sentence();
            if let Some(text) = leader_worker_set::waiting_sentence(&job.data, &of_group) {
                answer["sentence"] = text.into();
            }
            return Ok(Json(answer));
        }
    }
    // One of the pods may wait without a gang.
    let names = pods.iter().filter_map(|pod| pod.metadata.name.as_deref());
    for pod in names {
        if let Some(report) = (portal.hooks.explain)(&namespace, pod) {
            return Ok(Json(answer(&portal, &caller, &state, &report).await));
        }
    }
    let ends_badly = ["Failed", "FailureTarget", "Terminated"].contains(&state.as_str());
    if ends_badly
        && let Some(failure) = failure::of_object(&portal, &caller, kind.training(), &job).await
    {
        let record = failure.pod.record.as_ref();
        return Ok(Json(json!({
            "state": state, "sentence": failure.sentence, "blocked": false,
            "pod": failure.pod.pod, "rank": failure.pod.rank,
            "exitCode": failure.pod.exit_code, "attempts": failure.pod.attempts,
            "class": record.map(|record| record.class.as_str()),
            "node": record.map(|record| record.node.as_str()),
            "action": record.and_then(|record| record.action).map(FailureAction::as_str),
        })));
    }
    let pods: Vec<PodProgress<'_>> = pods.iter().map(PodProgress::of).collect();
    let blocked = blocked_sentence(&state, &pods);
    let annotations = job.metadata.annotations.as_ref();
    let hangs = hang_sentence(&state, |name| annotations?.get(name).map(String::as_str));
    let hangs = hangs.filter(|_| blocked.is_none());
    let is_hung = hangs.is_some();
    let groups = leader_worker_set::sentence(&job.data).filter(|_| blocked.is_none());
    let sentence = hangs.or(groups);
    let sentence = sentence.unwrap_or_else(|| settled_sentence(&state, status, &pods));
    Ok(Json(json!({
        "state": state,
        "hangs": is_hung,
        "sentence": sentence,
        "blocked": blocked.is_some(),
        "lastFailure": last_failure(&job),
    })))
}

/// Who or what cancelled a job that has not run again since.
fn cancelled(job: &DynamicObject) -> Option<String> {
    let suspended = ["/spec/runPolicy/suspend", "/spec/suspend"].iter();
    let mut suspended = suspended.filter_map(|pointer| job.data.pointer(pointer));
    let suspended =
        suspended.any(|suspend| suspend == true) || leader_worker_set::is_scaled_to_zero(&job.data);
    let over = matches!(
        tone_of(&state_of(&job.data["status"])),
        Tone::Good | Tone::Bad
    );
    let sentence = cancellation::sentence(job.metadata.annotations.as_ref());
    sentence.filter(|_| suspended && !over)
}

/// The last failure of a job that went on after it.
fn last_failure(job: &DynamicObject) -> Option<Value> {
    let annotations = job.metadata.annotations.as_ref()?;
    let record = FailureRecord::read(|name| annotations.get(name).map(String::as_str))?;
    Some(json!({
        "sentence": record.sentence(), "class": record.class.as_str(), "pod": record.pod,
        "rank": record.rank, "node": record.node, "at": record.at, "charged": record.charged,
        "action": record.action.map(FailureAction::as_str),
    }))
}

/// Answers `GET /api/v1/gangs/{namespace}/{name}/explain`, for gangs without a job: by the
/// PodGroup's name, or the pod's for a pod without one. A gang without a report is not pending.
pub async fn explain_gang(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
    Path((namespace, name)): Path<(String, String)>,
) -> Result<Json<Value>, Problem> {
    super::history::may(&portal, &caller, &namespace)?;
    let report = waiting::report(&portal, &caller, &namespace, &name, &name).await;
    Ok(Json(match report {
        Some(report) => answer(&portal, &caller, "Pending", &report).await,
        None => json!({ "sentence": "The job does not wait, or the server does not know it." }),
    }))
}

/// The report of a pending gang, as data and as text.
async fn answer(portal: &Portal, caller: &Caller, state: &str, report: &PlacementReport) -> Value {
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

/// The refusal of a plural name that is no kind of jobs.
pub fn unknown_job_kind(plural: &str) -> String {
    let known: Vec<&str> = training::ALL.iter().map(|kind| kind.plural).collect();
    format!(
        "kind: Invalid value: {plural:?}: use {}, rayclusters, rayjobs, rayservices, trainjobs, jobsets, leaderworkersets, vcjobs (Volcano's) or jobs",
        known.join(", ")
    )
}

/// The kind of jobs with this plural name.
pub fn job_kind(plural: &str) -> Result<&'static Kind, Problem> {
    if let Some(other) = OtherKind::by_plural(plural).and_then(OtherKind::registered) {
        return Ok(other);
    }
    registry::all()
        .iter()
        .find(|kind| kind.plural == plural && (kind.group == "batch" || kind.training().is_some()))
        .filter(|kind| kind.kind != "CronJob")
        .ok_or_else(|| Problem::invalid(unknown_job_kind(plural)))
}
