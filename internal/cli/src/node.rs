//! `muster node`.

use anyhow::Result;

use super::connection::ServerConnection;
use super::outcome::CommandOutcome;
use super::output;
use super::platform::escape;
use crate::arguments::NodeCommand;

/// Removes a node.
pub async fn node(connection: &ServerConnection, command: NodeCommand) -> Result<CommandOutcome> {
    match command {
        NodeCommand::Remove { name } => {
            let path = format!("/api/v1/joined-nodes/{}", escape(&name));
            connection
                .call("DELETE", &path, &serde_json::Value::Null)
                .await?;
            output::put_line(&format!(
                "node {name:?} removed; its certificates are revoked"
            ))?;
        }
    }
    Ok(CommandOutcome::Yes)
}
