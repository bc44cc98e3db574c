//! The current plan of defragmentation with its benefits and costs, without executing it.

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use crate::problem::Problem;
use crate::state::{Portal, SignedIn};

/// Answers `GET /api/v1/defragmentation`. Administrators only, because it contains the names of all
/// users' pods.
pub async fn proposal(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
) -> Result<Json<Value>, Problem> {
    if !portal.permits_own(&caller, "get", "defragmentation") {
        return Err(Problem::forbidden(
            "only an administrator may see what defragmentation would move, because the answer names the pods of all users",
        ));
    }
    let report = (portal.hooks.defragmentation)().await;
    Ok(Json(
        json!({"sentence": report.sentence(), "report": report}),
    ))
}
