//! `muster backup`.

use std::path::Path;

use anyhow::Result;
use serde_json::json;

use super::connection::absolute;
use super::{Answer, Connection, output};

/// Asks the server to write a backup to its own disk.
pub async fn backup(connection: &Connection, file: &Path) -> Result<Answer> {
    let path = absolute(file);
    connection
        .call("POST", "/api/v1/backups", &json!({"path": path}))
        .await?;
    output::put_line(&format!("backup written to {}", path.display()))?;
    Ok(Answer::Yes)
}
