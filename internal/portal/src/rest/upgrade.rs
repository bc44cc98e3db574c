//! Upgrades of the server and its agents, for administrators: the state, the finalization, and the
//! rollout of a binary to agents. Every request is in the audit log, as all requests are.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use resources::access::Caller;
use resources::upgrade::{Rollout, StoreStatus, UpgradeStatus};
use serde_json::{Value, json};

use crate::problem::Problem;
use crate::state::{Portal, RolloutRequest, SignedIn, UpgradeRefusal};

/// The most agents that may be upgraded at a time: each is sent a whole binary.
const UNAVAILABLE_MAX: u32 = 100;

fn require(portal: &Portal, caller: &Caller, verb: &str) -> Result<(), Problem> {
    if portal.permits_own(caller, verb, "upgrades") {
        return Ok(());
    }
    Err(Problem::forbidden(
        "only an administrator may see and make upgrades",
    ))
}

fn refused(refusal: UpgradeRefusal) -> Problem {
    let (status, code) = match &refusal {
        UpgradeRefusal::Conflict(_) => (StatusCode::CONFLICT, "conflict"),
        UpgradeRefusal::Failed(_) => (StatusCode::INTERNAL_SERVER_ERROR, "upgrade-failed"),
    };
    Problem::new(status, code, refusal.to_string())
}

/// The state of the upgrade.
pub async fn status(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
) -> Result<Json<UpgradeStatus>, Problem> {
    require(&portal, &caller, "get")?;
    let status = (portal.hooks.upgrade.status)().await;
    Ok(Json(status.map_err(refused)?))
}

/// Gives up that older binaries may read the store.
pub async fn finalize(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
) -> Result<Json<StoreStatus>, Problem> {
    require(&portal, &caller, "update")?;
    let finalized = (portal.hooks.upgrade.finalize)().await.map_err(refused)?;
    tracing::info!(user = caller.user, "an administrator finalized the upgrade");
    Ok(Json(finalized))
}

/// Begins a rollout of a binary to agents. A node runs all users' pods, and this replaces what runs
/// them.
pub async fn roll_out(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
    Json(request): Json<RolloutRequest>,
) -> Result<(StatusCode, Json<Rollout>), Problem> {
    require(&portal, &caller, "create")?;
    if !(1..=UNAVAILABLE_MAX).contains(&request.max_unavailable) {
        return Err(Problem::invalid(format!(
            "maxUnavailable: Invalid value: {}: use 1 to {UNAVAILABLE_MAX}",
            request.max_unavailable
        )));
    }
    if let Some(path) = request.binary.as_ref().filter(|path| !path.is_absolute()) {
        return Err(Problem::invalid(format!(
            "binary: Invalid value: {path:?}: use an absolute path on the server"
        )));
    }
    let begun = (portal.hooks.upgrade.roll_out)(request)
        .await
        .map_err(refused)?;
    tracing::info!(
        user = caller.user,
        sha256 = begun.sha256,
        "an administrator began an upgrade of the agents"
    );
    Ok((StatusCode::ACCEPTED, Json(begun)))
}

/// Stops the rollout before the next agent.
pub async fn stop(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
) -> Result<Json<Value>, Problem> {
    require(&portal, &caller, "delete")?;
    let stopped = (portal.hooks.upgrade.stop)().await.map_err(refused)?;
    Ok(Json(json!({"stopped": stopped})))
}
