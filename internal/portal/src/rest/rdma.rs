//! A node's part in a check of RDMA between two nodes, for `muster doctor --pair`.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde_json::Value;

use crate::problem::Problem;
use crate::state::{Portal, SignedIn};

/// Asks a node for its RDMA devices, or to take part in a test. Administrators only, because a test
/// takes bandwidth from running workloads.
pub async fn ask(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
    Path(node): Path<String>,
    Json(ask): Json<Value>,
) -> Result<Json<Value>, Problem> {
    if !portal.permits_own(&caller, "create", "rdmachecks") {
        return Err(Problem::forbidden(
            "only an administrator may check RDMA between nodes",
        ));
    }
    let answer = (portal.hooks.ask_rdma)(node, ask).await;
    answer.map(Json).map_err(|problem| {
        let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::BAD_GATEWAY);
        Problem::new(status, "node-did-not-answer", problem.detail)
    })
}
