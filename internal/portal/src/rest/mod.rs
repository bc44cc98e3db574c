//! REST under `/api/v1`. The names used here are none of the core API's own, so both
//! live under one prefix.

mod backup;
mod defragmentation;
pub mod explain;
pub mod history;
mod logs;
mod queues;
mod rdma;
mod tokens;

pub use explain::state_of;
pub use queues::{QueueAnswer, answer as queue_answer};

use axum::extract::State;
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use crate::board::{Cluster, Standing};
use crate::state::{Portal, SignedIn};

/// The routes.
pub fn routes() -> Router<Portal> {
    Router::new()
        .route("/api/v1/whoami", get(whoami))
        .route("/api/v1/overview", get(overview))
        .route("/api/v1/alerts", get(alerts))
        .route("/api/v1/jobs", get(jobs))
        .route("/api/v1/tokens", get(tokens::list).post(tokens::create))
        .route("/api/v1/tokens/{id}", delete(tokens::revoke))
        .route("/api/v1/join-tokens", post(tokens::join))
        .route("/api/v1/backups", post(backup::backup))
        .route("/api/v1/rdma/{node}", post(rdma::ask))
        .route("/api/v1/logs/{namespace}/{pod}", get(logs::read))
        .route(
            "/api/v1/jobs/{namespace}/{kind}/{name}/explain",
            get(explain::explain),
        )
        .route(
            "/api/v1/jobs/{namespace}/{kind}/{name}/history",
            get(history::of_job),
        )
        .route(
            "/api/v1/gangs/{namespace}/{name}/history",
            get(history::of_gang),
        )
        .route(
            "/api/v1/gangs/{namespace}/{name}/explain",
            get(explain::explain_gang),
        )
        .route("/api/v1/queues", get(queues::list))
        .route("/api/v1/queues/{name}", get(queues::one))
        .route("/api/v1/defragmentation", get(defragmentation::proposal))
}

async fn whoami(SignedIn(caller): SignedIn) -> Json<Value> {
    Json(json!({"user": caller.user, "role": caller.role, "namespaces": caller.namespaces}))
}

async fn overview(State(portal): State<Portal>, SignedIn(caller): SignedIn) -> Json<Value> {
    let nodes = portal.board.nodes();
    let jobs = portal.board.jobs(&caller, Timestamp::now());
    let count = |state: &str| jobs.iter().filter(|job| job.state == state).count();
    Json(json!({
        "cluster": Cluster::of(&nodes),
        "nodes": nodes,
        "queues": portal.board.queues(),
        "jobs": {"total": jobs.len(), "running": count("Running"), "failed": count("Failed")},
    }))
}

#[derive(Serialize)]
struct OnNode<'a> {
    node: &'a str,
    #[serde(flatten)]
    alert: &'a Standing,
}

/// The alerts that stand on nodes' GPUs, by node.
async fn alerts(State(portal): State<Portal>, SignedIn(_): SignedIn) -> Json<Value> {
    let cards = portal.board.nodes();
    let items: Vec<OnNode> = (cards.iter())
        .flat_map(|card| {
            (card.alerts.iter()).map(|alert| OnNode {
                node: &card.name,
                alert,
            })
        })
        .collect();
    Json(json!({"items": items}))
}

async fn jobs(State(portal): State<Portal>, SignedIn(caller): SignedIn) -> Json<Value> {
    Json(json!({"items": portal.board.jobs(&caller, Timestamp::now())}))
}
