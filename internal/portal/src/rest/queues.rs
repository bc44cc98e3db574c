//! The status of queues: shares, entitlements, borrowed resources, limits by resource and by user.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use resources::access::Caller;
use resources::queue_status::QueueUsageStatus;
use serde::Serialize;
use serde_json::{Value, json};

use crate::board::QueueRow;
use crate::problem::Problem;
use crate::state::{Portal, SignedIn};

/// A queue with its object's and the scheduler's status.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueAnswer {
    /// Open, Closing or Closed.
    pub state: String,
    /// The number of pending gangs.
    pub pending: i64,
    /// The number of running gangs.
    pub running: i64,
    /// The scheduler's status. Of the pending gangs it contains those that the caller may see.
    #[serde(flatten)]
    pub usage: QueueUsageStatus,
}

/// Answers `GET /api/v1/queues`.
pub async fn list(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
) -> Result<Json<Value>, Problem> {
    let rows = portal.queues(&caller)?.into_iter();
    let mut usages = (portal.hooks.queues)().await;
    let items = rows.map(|row| {
        let usage = usages.remove(&row.name);
        with(&portal, row, usage, &caller)
    });
    Ok(Json(json!({ "items": items.collect::<Vec<_>>() })))
}

/// Answers `GET /api/v1/queues/{name}`.
pub async fn one(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
    Path(name): Path<String>,
) -> Result<Json<QueueAnswer>, Problem> {
    answer(&portal, &caller, &name).await.map(Json)
}

/// The status of one queue.
pub async fn answer(portal: &Portal, caller: &Caller, name: &str) -> Result<QueueAnswer, Problem> {
    let row = portal.queue(caller, name)?;
    let row = row.ok_or_else(|| {
        let detail = format!("there is no queue {name:?}; `muster queue` lists the queues");
        Problem::new(StatusCode::NOT_FOUND, "not-found", detail)
    })?;
    let usage = (portal.hooks.queues)().await.remove(name);
    Ok(with(portal, row, usage, caller))
}

fn with(
    portal: &Portal,
    row: QueueRow,
    usage: Option<QueueUsageStatus>,
    caller: &Caller,
) -> QueueAnswer {
    let mut usage = usage.unwrap_or_else(|| QueueUsageStatus {
        name: row.name.clone(),
        weight: row.weight as f64,
        ..QueueUsageStatus::default()
    });
    usage.waiting.retain(|(namespace, _)| {
        portal.may_see(caller, "scheduling.volcano.sh", "podgroups", namespace)
    });
    QueueAnswer {
        state: row.state,
        pending: row.pending,
        running: row.running,
        usage,
    }
}
