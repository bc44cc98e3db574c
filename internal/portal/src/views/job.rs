//! One job's page and its actions.

use askama::Template;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client};
use resources::access::Caller;
use resources::report::{PlacementReport, preemptable_words};
use serde::Deserialize;
use serde_json::json;

use super::{PageCaller, PageFrame, message, page as render};
use crate::board::{JobDetail, caught_up};
use crate::problem::Problem;
use crate::rest::explain::{api_of, job_kind};
use crate::rest::history::{self, HistoryLine};
use crate::state::{LogQuery, Portal};
use crate::waiting;

/// How many lines of a log a page without scripts shows.
const SHOWN_LINES: u64 = 200;

/// The maximum number of events on the page.
const SHOWN_EVENTS: usize = 50;

/// A job's path.
#[derive(Deserialize)]
pub struct Address {
    namespace: String,
    kind: String,
    name: String,
}

/// The rank whose log is open.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct LogPane {
    rank: usize,
}

/// The maximum number of decisions on the page, the latest first.
const SHOWN_DECISIONS: usize = 20;

struct EventLine {
    at: String,
    kind: String,
    about: String,
    reason: String,
    message: String,
}

#[derive(Template)]
#[template(path = "job.html")]
struct JobPage {
    frame: PageFrame,
    job: JobDetail,
    report: Option<PlacementReport>,
    could_evict: String,
    history: Vec<HistoryLine>,
    events: Vec<EventLine>,
    rank: usize,
    log_source: String,
    log_text: String,
}

/// The page.
pub async fn page_of(
    portal: &Portal,
    caller: &Caller,
    address: &Address,
    open: &LogPane,
) -> Result<Response, Problem> {
    let Address {
        namespace, name, ..
    } = address;
    let job = find(portal, caller, address).await.ok_or_else(|| {
        Problem::new(
            StatusCode::NOT_FOUND,
            "not-found",
            format!(
                "there is no job {name:?} in namespace {namespace:?}; it may have been deleted"
            ),
        )
    })?;
    let pod = job
        .replicas
        .get(open.rank)
        .map(|replica| replica.pod.clone());
    let log_source = pod
        .as_ref()
        .map(|pod| format!("/api/v1/logs/{namespace}/{pod}?tailLines={SHOWN_LINES}"))
        .unwrap_or_default();
    let log_text = match pod {
        Some(pod) if portal.reads_log(caller, namespace, &pod) => {
            last_lines(portal, namespace, pod).await
        }
        _ => String::new(),
    };
    let report = match job.over {
        true => None,
        false => {
            let gang = waiting::report(portal, caller, namespace, name, name).await;
            gang.or_else(|| {
                let mut replicas = job.replicas.iter();
                let waiting = replicas.find(|replica| replica.node.is_empty())?;
                (portal.hooks.explain)(namespace, &waiting.pod)
            })
        }
    };
    let could_evict = match &report {
        Some(report) => {
            let victims = portal.could_evict(caller, &report.namespace, &report.group);
            preemptable_words(&victims.await)
        }
        None => String::new(),
    };
    let mut history = history::lines(portal, caller, namespace, name).await?;
    history.reverse();
    history.truncate(SHOWN_DECISIONS);
    let events = events(portal.client(caller), namespace, &job).await?;
    Ok(render(&JobPage {
        frame: PageFrame::of(caller, "jobs"),
        report,
        could_evict,
        history,
        events,
        rank: open.rank,
        log_source,
        log_text,
        job,
    }))
}

/// The job on the board; waits for the board if only the API has it yet.
async fn find(portal: &Portal, caller: &Caller, address: &Address) -> Option<JobDetail> {
    let Address {
        namespace,
        kind,
        name,
    } = address;
    let known = job_kind(kind).ok()?;
    let exists = async {
        let api = api_of(portal.client(caller), namespace, known);
        matches!(api.get_metadata_opt(name).await, Ok(Some(_)))
    };
    let sees = |group: &str, plural: &str, namespace: &str| {
        portal.may_see(caller, group, plural, namespace)
    };
    let shown = || {
        portal
            .board
            .job(sees, namespace, kind, name, Timestamp::now())
    };
    caught_up(portal.board.version(), shown, exists).await
}

/// Answers `GET`.
pub async fn page(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    Path(address): Path<Address>,
    Query(open): Query<LogPane>,
) -> Response {
    match page_of(&portal, &caller, &address, &open).await {
        Ok(response) => response,
        Err(problem) => message(&caller, "jobs", &problem),
    }
}

async fn last_lines(portal: &Portal, namespace: &str, pod: String) -> String {
    let query = LogQuery {
        namespace: namespace.to_string(),
        pod,
        tail_lines: Some(SHOWN_LINES),
        ..LogQuery::default()
    };
    let mut stream = match (portal.hooks.open_log)(query).await {
        Ok(stream) => stream,
        Err(problem) => return problem.detail,
    };
    let mut bytes = Vec::new();
    while let Some(Ok(chunk)) = stream.next().await {
        bytes.extend_from_slice(&chunk);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

async fn events(
    client: Client,
    namespace: &str,
    job: &JobDetail,
) -> Result<Vec<EventLine>, Problem> {
    let api: Api<Event> = Api::namespaced(client, namespace);
    let name = &job.row.name;
    let about_job = |event: &Event| {
        let about = event.involved_object.name.as_deref().unwrap_or("");
        about == name || job.replicas.iter().any(|replica| replica.pod == about)
    };
    let mut events: Vec<Event> = api
        .list(&ListParams::default())
        .await?
        .into_iter()
        .filter(about_job)
        .collect();
    events.sort_by_key(|event| std::cmp::Reverse(event.last_timestamp.clone()));
    let line = |event: Event| EventLine {
        at: event
            .last_timestamp
            .map(|at| at.0.to_string())
            .unwrap_or_default(),
        kind: event.type_.unwrap_or_default(),
        about: event.involved_object.name.unwrap_or_default(),
        reason: event.reason.unwrap_or_default(),
        message: event.message.unwrap_or_default(),
    };
    Ok(events.into_iter().take(SHOWN_EVENTS).map(line).collect())
}

/// The fields of the buttons.
#[derive(Deserialize)]
pub struct JobActions {
    namespace: String,
    kind: String,
    name: String,
    action: String,
}

/// Suspends, resumes or deletes.
pub async fn act(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    Path(action): Path<JobActions>,
) -> Response {
    match carry_out(&portal, &caller, &action).await {
        Ok(next) => Redirect::to(&next).into_response(),
        Err(problem) => message(&caller, "jobs", &problem),
    }
}

async fn carry_out(
    portal: &Portal,
    caller: &Caller,
    action: &JobActions,
) -> Result<String, Problem> {
    let JobActions {
        namespace,
        kind,
        name,
        action,
    } = action;
    let kind = job_kind(kind)?;
    let suspend_at = match kind.training() {
        Some(_) => "/spec/runPolicy/suspend",
        None => "/spec/suspend",
    };
    let api = api_of(portal.client(caller), namespace, kind);
    let suspend = |on: bool| {
        if suspend_at.contains("runPolicy") {
            json!({"spec": {"runPolicy": {"suspend": on}}})
        } else {
            json!({"spec": {"suspend": on}})
        }
    };
    let parameters = PatchParams::default();
    match action.as_str() {
        "suspend" => api
            .patch(name, &parameters, &Patch::Merge(suspend(true)))
            .await
            .map(|_| ())?,
        "resume" => api
            .patch(name, &parameters, &Patch::Merge(suspend(false)))
            .await
            .map(|_| ())?,
        "cancel" => {
            api.delete(name, &DeleteParams::background()).await?;
            return Ok("/ui/jobs".to_string());
        }
        other => {
            return Err(Problem::invalid(format!(
                "action: Invalid value: {other:?}: use suspend, resume or cancel"
            )));
        }
    }
    Ok(format!("/ui/jobs/{namespace}/{}/{name}", kind.plural))
}
