//! Jobs whose GPUs do nothing, with their limits.

use administration::idle_jobs::IdleJob;
use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use crate::state::{Portal, SignedIn};

/// Answers `GET /api/v1/idle-gpus`: of the namespaces whose pods the caller may see, those that are idle for longest first.
/// `judgedAt` is null until the server has judged them for the first time, in the first seconds after its start.
pub async fn list(State(portal): State<Portal>, SignedIn(caller): SignedIn) -> Json<Value> {
    let Some(judged) = portal.hooks.idle_jobs.lock().clone() else {
        return Json(json!({"judgedAt": null, "items": []}));
    };
    let sees = |job: &&IdleJob| portal.may_see(&caller, "", "pods", &job.namespace);
    let items: Vec<&IdleJob> = judged.jobs.iter().filter(sees).collect();
    Json(json!({"judgedAt": judged.at, "items": items}))
}
