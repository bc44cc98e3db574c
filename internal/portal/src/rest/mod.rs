//! REST under `/api/v1`. The names used here differ from the core API's, so that both share one
//! prefix.

pub mod alerts;
mod backup;
mod defragmentation;
pub mod explain;
pub mod history;
mod idle_gpus;
mod logs;
pub mod measured;
mod metrics;
mod oauth;
mod queues;
mod rdma;
mod tokens;
mod upgrade;
mod usage;
mod users;

pub use oauth::notes as oauth_notes;
pub use queues::{QueueAnswer, answer as queue_answer};
pub use tokens::{may_issue_token, removed as remove_node};
pub use usage::answer as usage_answer;

use axum::extract::State;
use axum::{Extension, Json};
use identity::TokenInfo;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::board::ClusterTotals;
use crate::routes::Routes;
use crate::state::{Portal, SignedIn};

/// Adds the routes.
pub fn routes(routes: Routes) -> Routes {
    routes
        .get("/metrics", metrics::page)
        .post_small(
            "/oauth2/device_authorization",
            oauth::OAUTH_FORM_MAX,
            oauth::device_authorization,
        )
        .post_small("/oauth2/token", oauth::OAUTH_FORM_MAX, oauth::token)
        .get("/api/v1/whoami", whoami)
        .get("/api/v1/overview", overview)
        .get("/api/v1/alerts", alerts::list)
        .get("/api/v1/alert-receivers", alerts::receivers)
        .post("/api/v1/alert-receivers/{name}/test", alerts::test)
        .get("/api/v1/alert-silences", alerts::silences)
        .post("/api/v1/alert-silences", alerts::silence)
        .delete("/api/v1/alert-silences/{id}", alerts::end_silence)
        .get("/api/v1/idle-gpus", idle_gpus::list)
        .get("/api/v1/jobs", jobs)
        .get("/api/v1/users", users::list)
        .post("/api/v1/users", users::create)
        .get("/api/v1/users/{name}", users::one)
        .patch("/api/v1/users/{name}", users::change)
        .delete("/api/v1/users/{name}", users::delete)
        .post("/api/v1/users/{name}/reset-link", users::reset_link)
        .post("/api/v1/users/{name}/password", users::password)
        .delete(
            "/api/v1/users/{name}/second-factor",
            users::reset_second_factor,
        )
        .get("/api/v1/users/{name}/sessions", users::sessions)
        .delete("/api/v1/users/{name}/sessions", users::end_sessions)
        .delete("/api/v1/users/{name}/sessions/{id}", users::end_session)
        .get("/api/v1/tokens", tokens::list)
        .post("/api/v1/tokens", tokens::create)
        .delete("/api/v1/tokens/{id}", tokens::revoke)
        .post("/api/v1/tokens/{id}/rotation", tokens::rotate)
        .get("/api/v1/join-tokens", tokens::list_joins)
        .post("/api/v1/join-tokens", tokens::join)
        .delete("/api/v1/join-tokens/{id}", tokens::revoke_join)
        .delete("/api/v1/joined-nodes/{name}", tokens::remove_node)
        .post("/api/v1/backups", backup::backup)
        .get("/api/v1/upgrade", upgrade::status)
        .post("/api/v1/upgrade/finalization", upgrade::finalize)
        .post("/api/v1/upgrade/agents", upgrade::roll_out)
        .delete("/api/v1/upgrade/agents", upgrade::stop)
        .post("/api/v1/rdma/{node}", rdma::ask)
        .get("/api/v1/logs/{namespace}/{pod}", logs::read)
        .get(
            "/api/v1/jobs/{namespace}/{kind}/{name}/explain",
            explain::explain,
        )
        .get(
            "/api/v1/jobs/{namespace}/{kind}/{name}/history",
            history::of_job,
        )
        .get("/api/v1/gangs/{namespace}/{name}/history", history::of_gang)
        .get(
            "/api/v1/gangs/{namespace}/{name}/explain",
            explain::explain_gang,
        )
        .get("/api/v1/queues", queues::list)
        .get("/api/v1/queues/{name}", queues::one)
        .get("/api/v1/history", measured::history)
        .get("/api/v1/usage", usage::usage)
        .get("/api/v1/allocations", usage::allocations)
        .get("/api/v1/defragmentation", defragmentation::proposal)
}

/// Who the caller is, and the token of the request if it carries one.
async fn whoami(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
    credential: Option<Extension<TokenInfo>>,
) -> Json<Value> {
    let record = portal.identity.user(&caller.user);
    let (role, namespaces) = record.map_or((None, None), |user| (Some(user.role), user.namespaces));
    let token = credential.map(|Extension(token)| {
        json!({
            "id": token.id, "purpose": token.purpose, "label": token.label,
            "created": token.created, "expires": token.expires,
        })
    });
    Json(json!({
        "user": caller.user, "groups": caller.groups, "role": role, "namespaces": namespaces,
        "token": token,
    }))
}

/// The parts of the cluster, its nodes, queues and jobs that the caller may see.
async fn overview(State(portal): State<Portal>, SignedIn(caller): SignedIn) -> Json<Value> {
    let nodes = portal.nodes(&caller).unwrap_or_default();
    let jobs = portal.jobs(&caller, Timestamp::now());
    let count = |state: &str| jobs.iter().filter(|job| job.state == state).count();
    Json(json!({
        "cluster": ClusterTotals::of(&nodes),
        "nodes": nodes,
        "queues": portal.queues(&caller).unwrap_or_default(),
        "jobs": {"total": jobs.len(), "running": count("Running"), "failed": count("Failed")},
    }))
}

async fn jobs(State(portal): State<Portal>, SignedIn(caller): SignedIn) -> Json<Value> {
    Json(json!({"items": portal.jobs(&caller, Timestamp::now())}))
}
