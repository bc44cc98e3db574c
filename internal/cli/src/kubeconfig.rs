//! `muster kubeconfig`: a file for kubectl and SDKs, with its own token.

use anyhow::Result;

use super::connection::ServerConnection;
use super::connection::kubeconfig_text;
use super::outcome::CommandOutcome;
use super::{output, tokens};
use crate::arguments::Kubeconfig;

/// Prints a kubeconfig to standard output.
pub async fn print(connection: &ServerConnection, arguments: Kubeconfig) -> Result<CommandOutcome> {
    let me = connection.ask("/api/v1/whoami").await?;
    let user = match &arguments.user {
        Some(user) => user.clone(),
        None => me["user"].as_str().unwrap_or("admin").to_string(),
    };
    let token = tokens::issue(
        connection,
        "kubeconfig",
        arguments.days,
        arguments.user.as_deref(),
    )
    .await?;
    let server = arguments
        .server
        .unwrap_or_else(|| connection.server.clone());
    let text = kubeconfig_text(&server, &connection.authority()?, &user, &token);
    output::put(&text)?;
    Ok(CommandOutcome::Yes)
}
