//! `muster node`: removes a node, and hands the other commands to [`drain`].

use anyhow::Result;

use super::connection::ServerConnection;
use super::drain;
use super::outcome::CommandOutcome;
use super::output;
use super::platform::escape;
use crate::arguments::NodeCommand;

/// Runs a command on a node.
pub async fn node(connection: &ServerConnection, command: NodeCommand) -> Result<CommandOutcome> {
    match command {
        NodeCommand::Cordon { name } => return drain::mark(connection, &name, true).await,
        NodeCommand::Uncordon { name } => return drain::mark(connection, &name, false).await,
        NodeCommand::Drain(arguments) => return drain::empty_node(connection, arguments).await,
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
