//! Suspends, resumes, cancels and deletes jobs. A cancelled job keeps its record; a deletion is confirmed by the name.

use administration::cancellation::{Canceller, send_command, suspension};
use axum::Form;
use axum::extract::{FromRequest, Path, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use kube::api::{DeleteParams, Patch, PatchParams};
use resources::access::Caller;
use resources::volcano;
use serde::Deserialize;
use serde_json::Value;

use super::super::{PageCaller, message};
use super::page_kind;
use crate::board::PODS;
use crate::problem::Problem;
use crate::rest::explain::api_of;
use crate::state::Portal;

/// The path of an action.
#[derive(Deserialize)]
pub struct JobActions {
    namespace: String,
    kind: String,
    name: String,
    action: String,
}

/// What the reader typed to confirm.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct Confirmation {
    confirm: String,
}

/// Answers `POST`.
pub async fn act(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    Path(path): Path<JobActions>,
    request: Request,
) -> Response {
    // A button without fields sends no form.
    let form = Form::<Confirmation>::from_request(request, &()).await;
    let confirmation = form.map(|Form(form)| form).unwrap_or_default();
    let JobActions {
        namespace,
        kind,
        name,
        action,
    } = &path;
    if action == "delete" && confirmation.confirm != *name {
        let detail = format!(
            "confirm: Invalid value: {:?}: type the job's name, {name:?}, to delete it",
            confirmation.confirm
        );
        return message(&caller, "jobs", &Problem::invalid(detail));
    }
    match carry_out(&portal, &caller, namespace, kind, name, action).await {
        Ok(done) => {
            let page = match action.as_str() {
                "delete" => "/ui/jobs".to_owned(),
                _ => format!("/ui/jobs/{namespace}/{kind}/{name}"),
            };
            Redirect::to(&format!("{page}?flash={done}")).into_response()
        }
        Err(problem) => message(&caller, "jobs", &problem),
    }
}

/// Carries out one action as the caller; the answer names the message that tells of it.
pub async fn carry_out(
    portal: &Portal,
    caller: &Caller,
    namespace: &str,
    plural: &str,
    name: &str,
    action: &str,
) -> Result<&'static str, Problem> {
    let kind = page_kind(plural)?;
    let api = api_of(portal.client(caller), namespace, kind);
    if action == "delete" {
        api.delete(name, &DeleteParams::background()).await?;
        return Ok("deleted");
    }
    let (on, by, done) = match action {
        "suspend" => (true, None, "suspended"),
        "resume" => (false, None, "resumed"),
        "cancel" => (true, Some(Canceller::User(&caller.user)), "cancelled"),
        other => {
            return Err(Problem::invalid(format!(
                "action: Invalid value: {other:?}: use suspend, resume, cancel or delete"
            )));
        }
    };
    if plural == PODS {
        let detail = format!("pod {name:?} has no job that could {action} it; delete the pod");
        return Err(Problem::new(StatusCode::CONFLICT, "conflict", detail));
    }
    if kind.is_leader_worker_set() && action != "cancel" {
        let detail = format!(
            "a {} cannot be suspended or resumed; change its replicas, for example by \
             `kubectl scale {}/{name} --replicas=1 -n {namespace}`",
            kind.kind, kind.singular
        );
        return Err(Problem::new(StatusCode::CONFLICT, "conflict", detail));
    }
    let job = api.get(name).await?;
    if ended(&job.data["status"]) {
        let detail = format!("job {name:?} has ended; there is nothing to {action}");
        return Err(Problem::new(StatusCode::CONFLICT, "conflict", detail));
    }
    if kind.is_volcano_job() {
        let order = match action {
            "suspend" => "AbortJob",
            "resume" => "ResumeJob",
            _ => "TerminateJob",
        };
        let uid = job.metadata.uid.as_deref().unwrap_or_default();
        let message = format!("user {} {done} the job", caller.user);
        let command = volcano::command(name, uid, order, &message);
        send_command(portal.client(caller), namespace, command).await?;
        return Ok(done);
    }
    let change = Patch::Merge(suspension(kind, on, by));
    api.patch(name, &PatchParams::default(), &change).await?;
    // A set is not resumed, so that its message offers nothing to take it back.
    Ok(match kind.is_leader_worker_set() {
        true => "scaled-to-zero",
        false => done,
    })
}

fn ended(status: &Value) -> bool {
    if let Some(phase) = volcano::phase(status) {
        return volcano::FINAL_PHASES.contains(&phase);
    }
    let conditions = status["conditions"].as_array();
    let mut all = conditions.into_iter().flatten();
    all.any(|condition| {
        let kind = condition["type"].as_str().unwrap_or("");
        condition["status"] == "True"
            && ["Succeeded", "Complete", "Completed", "Failed"].contains(&kind)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_job_that_has_ended_has_nothing_to_cancel() {
        let with =
            |kind: &str, status: &str| json!({"conditions": [{"type": kind, "status": status}]});
        assert!(ended(&with("Complete", "True")) && ended(&with("Failed", "True")));
        assert!(!ended(&with("Running", "True")) && !ended(&json!({})));
        let volcano = |phase: &str| json!({"state": {"phase": phase}});
        assert!(ended(&volcano("Terminated")) && !ended(&volcano("Aborted")));
    }
}
