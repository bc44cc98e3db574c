//! Backups, taken while the server runs.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use resources::access::Role;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::Problem;
use crate::state::{Portal, SignedIn};

/// Where the backup goes.
#[derive(Deserialize)]
pub struct NewBackup {
    path: std::path::PathBuf,
}

/// Writes a backup to a file on the server's disk; administrators only, for it holds
/// every Secret.
pub async fn backup(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
    Json(new): Json<NewBackup>,
) -> Result<(StatusCode, Json<Value>), Problem> {
    if caller.role != Role::Admin {
        return Err(Problem::forbidden("only an administrator takes backups"));
    }
    if !new.path.is_absolute() {
        let detail = format!(
            "path: Invalid value: {:?}: use an absolute path on the server",
            new.path
        );
        return Err(Problem::invalid(detail));
    }
    (portal.hooks.backup)(new.path.clone())
        .await
        .map_err(|detail| {
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "backup-failed", detail)
        })?;
    Ok((StatusCode::CREATED, Json(json!({"path": new.path}))))
}
