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
            let secret = answer["token"].as_str().unwrap_or_default();
            output::put_line(secret)?;
            let grant = match (&node, uses) {
                (Some(node), 1) => format!("for node {node:?}, once"),
                (Some(node), _) => format!("for node {node:?}, {uses} times"),
                (None, 1) => "for one node, once".to_string(),
                (None, _) => format!("for {uses} joins"),
            };
            let server = reachable(answer["server"].as_str(), &connection.server);
            eprintln!("valid for {minutes} min, {grant}");
            eprintln!("{}", join_commands(server, secret));
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

/// The address by which nodes reach the server: the one that the server knows for itself, unless only its own machine
/// can use that or it named none; else the one that this command used.
fn reachable<'a>(own: Option<&'a str>, used: &'a str) -> &'a str {
    own.filter(|url| !loopback(url)).unwrap_or(used)
}

/// Whether only the machine itself reaches an address.
fn loopback(url: &str) -> bool {
    let host = url.split_once("://").map_or(url, |(_, rest)| rest);
    host.starts_with("127.") || host.starts_with("[::1]") || host.starts_with("localhost")
}

/// The commands that join a node, to be pasted as they are.
fn join_commands(server: &str, token: &str) -> String {
    let mut text = format!(
        "on the node, as root:\n  muster setup agent --yes --server {server} --token {token} && systemctl enable --now muster-agent\nor, without the package's service:\n  muster agent --server {server} --token {token}"
    );
    if loopback(server) {
        text += "\nonly this machine can join at this address; for others, set the server up again with\n  muster setup server --listen 0.0.0.0:8443 --advertise \"$(hostname -f)\" && systemctl restart muster-server";
    }
    text
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_join_commands_have_an_address_that_other_machines_reach_and_the_token() {
        for (own, used, expected) in [
            (
                Some("https://head:8443"),
                "https://127.0.0.1:8443",
                "https://head:8443",
            ),
            (
                Some("https://127.0.0.1:1"),
                "https://head:2",
                "https://head:2",
            ),
            (Some("https://[::1]:1"), "https://head:2", "https://head:2"),
            (None, "https://head:2", "https://head:2"),
        ] {
            assert_eq!(reachable(own, used), expected, "{own:?} {used}");
        }
        let text = join_commands("https://head:8443", "id.secret@sha256:00");
        let line = "\n  muster setup agent --yes --server https://head:8443 --token id.secret@sha256:00 && systemctl enable --now muster-agent\n";
        assert!(text.contains(line), "{text}");
        assert!(!text.contains("setup server"), "{text}");
        let own = join_commands("https://127.0.0.1:8443", "id.secret@sha256:00");
        assert!(own.contains("\n  muster setup server --listen"), "{own}");
    }
}
