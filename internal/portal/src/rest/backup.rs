//! Backups, taken while the server runs.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::problem::Problem;
use crate::state::{BackupRequest, Portal, SignedIn};

/// The minimum length of a passphrase in characters, and its maximum in bytes: deriving a key from
/// it costs the server time.
const PASSPHRASE: std::ops::RangeInclusive<usize> = 8..=1024;

/// Writes a backup to a file on the server's disk. Administrators only, because it contains every
/// Secret and the server's keys.
pub async fn backup(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
    Json(new): Json<BackupRequest>,
) -> Result<(StatusCode, Json<Value>), Problem> {
    if !portal.permits_own(&caller, "create", "backups") {
        return Err(Problem::forbidden("only an administrator may take backups"));
    }
    if !new.path.is_absolute() {
        let detail = format!(
            "path: Invalid value: {:?}: use an absolute path on the server",
            new.path
        );
        return Err(Problem::invalid(detail));
    }
    let fits = |text: &String| PASSPHRASE.contains(&text.len());
    if !new.passphrase.as_ref().is_none_or(fits) {
        let detail = format!(
            "passphrase: Invalid value: must have {} to {} bytes",
            PASSPHRASE.start(),
            PASSPHRASE.end()
        );
        return Err(Problem::invalid(detail));
    }
    let path = new.path.clone();
    (portal.hooks.backup)(new).await.map_err(|failed| {
        let detail = failed.to_string();
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "backup-failed", detail)
    })?;
    Ok((StatusCode::CREATED, Json(json!({"path": path}))))
}
