//! `muster token`.

use anyhow::Result;
use serde_json::json;

use super::connection::ServerConnection;
use super::outcome::CommandOutcome;
use super::output::{self, Table};
use super::platform::escape;
use crate::arguments::TokenCommand;

/// Length of a join token's id in characters; an access token's is twice as long.
const JOIN_ID_LENGTH: usize = 6;

/// Issues, lists and revokes tokens.
pub async fn token(connection: &ServerConnection, command: TokenCommand) -> Result<CommandOutcome> {
    match command {
        TokenCommand::Create { label, days, user } => {
            let secret = issue(connection, &label, days, user.as_deref()).await?;
            output::put_line(&secret)?;
        }
        TokenCommand::Join {
            node,
            uses,
            minutes,
        } => {
            let body = json!({"minutes": minutes, "node": node, "uses": uses});
            let answer = connection
                .call("POST", "/api/v1/join-tokens", &body)
                .await?;
            output::put_line(answer["token"].as_str().unwrap_or_default())?;
            let whom = match (&node, uses) {
                (Some(node), 1) => format!("for node {node:?}, once"),
                (Some(node), _) => format!("for node {node:?}, {uses} times"),
                (None, 1) => "for one node, once".to_string(),
                (None, _) => format!("for {uses} joins"),
            };
            eprintln!(
                "valid for {minutes} min, {whom}; on the node: muster setup agent --server {server} --token TOKEN, or, without the package's service: muster agent --server {server} --token TOKEN",
                server = connection.server
            );
        }
        TokenCommand::List => {
            let answer = connection.ask("/api/v1/tokens").await?;
            let mut table = Table::new(["ID", "USER", "PURPOSE", "LABEL", "EXPIRES"]);
            for token in answer["items"].as_array().into_iter().flatten() {
                let text = |field: &str| token[field].as_str().unwrap_or("").to_string();
                table.row(["id", "user", "purpose", "label", "expires"].map(text));
            }
            // The server refuses join tokens to users other than administrators, who see none.
            let joins = connection.ask("/api/v1/join-tokens").await;
            let joins = joins.unwrap_or_default();
            for token in joins["items"].as_array().into_iter().flatten() {
                let text = |field: &str| token[field].as_str().unwrap_or("").to_string();
                let node = token["node"].as_str().unwrap_or("any node");
                let uses = token["uses"].as_u64().unwrap_or_default();
                table.row([
                    text("id"),
                    String::new(),
                    "join".to_string(),
                    format!("{node}, {uses} left"),
                    text("expires"),
                ]);
            }
            output::put(&table.render())?;
        }
        TokenCommand::Revoke { id } => {
            let kind = if id.len() == JOIN_ID_LENGTH {
                "join-tokens"
            } else {
                "tokens"
            };
            let path = format!("/api/v1/{kind}/{}", escape(&id));
            connection
                .call("DELETE", &path, &serde_json::Value::Null)
                .await?;
            output::put_line(&format!("token {id} revoked"))?;
        }
    }
    Ok(CommandOutcome::Yes)
}

/// Issues an access token and returns its secret.
pub async fn issue(
    connection: &ServerConnection,
    label: &str,
    days: u64,
    user: Option<&str>,
) -> Result<String> {
    let body = json!({"label": label, "days": days, "user": user});
    let answer = connection.call("POST", "/api/v1/tokens", &body).await?;
    Ok(answer["secret"].as_str().unwrap_or_default().to_string())
}
