//! `muster token`.

use anyhow::{Result, bail};
use serde_json::{Value, json};

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
        TokenCommand::Create {
            label,
            days,
            user,
            from,
        } => {
            let secret = issue(connection, &label, days, user.as_deref(), &from).await?;
            output::put_line(&secret)?;
        }
        TokenCommand::Rotate { name, overlap } => rotate(connection, &name, overlap).await?,
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
            let mut table = Table::new([
                "ID",
                "USER",
                "PURPOSE",
                "LABEL",
                "EXPIRES",
                "LAST USED",
                "FROM",
                "REPLACED BY",
            ]);
            for token in answer["items"].as_array().into_iter().flatten() {
                table.row(access_token(token));
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

/// The cells of an access token in the list.
fn access_token(token: &Value) -> [String; 8] {
    let text = |field: &str| token[field].as_str().unwrap_or("").to_string();
    let ranges = token["from"].as_array().into_iter().flatten();
    let ranges: Vec<&str> = ranges.filter_map(Value::as_str).collect();
    let used = match token["lastUsed"].as_str() {
        Some(used) => used.to_string(),
        None => "never".to_string(),
    };
    [
        text("id"),
        text("user"),
        text("purpose"),
        text("label"),
        text("expires"),
        used,
        ranges.join(","),
        text("replacedBy"),
    ]
}

/// The id of the access token with this id or label. A token that was replaced has no label here, so that a label
/// names the token that replaced it. A name that no token has is taken for an id, which the server refuses.
fn id_named(tokens: &[Value], name: &str) -> Result<String> {
    if tokens.iter().any(|token| token["id"] == name) {
        return Ok(name.to_string());
    }
    let labelled = |token: &&Value| token["label"] == name && token["replacedBy"].is_null();
    let found: Vec<&Value> = tokens.iter().filter(labelled).collect();
    let text = |token: &Value, field: &str| token[field].as_str().unwrap_or("").to_string();
    match found.as_slice() {
        [] => Ok(name.to_string()),
        [one] => Ok(text(one, "id")),
        several => {
            let of = |token: &&Value| format!("{} of {}", text(token, "id"), text(token, "user"));
            let all: Vec<String> = several.iter().map(of).collect();
            bail!(
                "{} tokens have the label {name:?} ({}); name one by its id",
                several.len(),
                all.join(", ")
            )
        }
    }
}

/// Rotates an access token and prints the new one.
async fn rotate(connection: &ServerConnection, name: &str, overlap: i64) -> Result<()> {
    let listed = connection.ask("/api/v1/tokens").await?;
    let tokens = listed["items"].as_array().cloned().unwrap_or_default();
    let id = id_named(&tokens, name)?;
    let path = format!("/api/v1/tokens/{}/rotation", escape(&id));
    let body = json!({"overlapSeconds": overlap});
    let answer = connection.call("POST", &path, &body).await?;
    output::put_line(answer["secret"].as_str().unwrap_or_default())?;
    let text = |of: &str, field: &str| answer[of][field].as_str().unwrap_or_default().to_string();
    output::tell(&format!(
        "token {} of user {} is valid until {}; it replaces token {id}, which is valid until {}",
        text("token", "id"),
        text("token", "user"),
        text("token", "expires"),
        text("old", "expires")
    ))
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
    from: &[String],
) -> Result<String> {
    let body = json!({"label": label, "days": days, "user": user, "from": from});
    let answer = connection.call("POST", "/api/v1/tokens", &body).await?;
    Ok(answer["secret"].as_str().unwrap_or_default().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_named_by_its_id_or_by_a_label_that_no_other_has() {
        let token = |id: &str, label: &str| json!({"id": id, "user": "ann", "label": label});
        let mut old = token("111111111111", "ci");
        old["replacedBy"] = json!("222222222222");
        let tokens = [
            old,
            token("222222222222", "ci"),
            token("333333333333", "robot"),
            token("444444444444", "robot"),
            token("555555555555", "111111111111"),
        ];
        for (name, id) in [
            ("111111111111", "111111111111"),
            ("ci", "222222222222"),
            ("444444444444", "444444444444"),
            ("nothing", "nothing"),
            ("", ""),
        ] {
            assert_eq!(id_named(&tokens, name).unwrap(), id);
        }
        let several = id_named(&tokens, "robot").unwrap_err().to_string();
        assert!(
            several.contains("333333333333 of ann, 444444444444 of ann"),
            "{several}"
        );
    }

    #[test]
    fn a_row_has_the_last_use_the_ranges_and_the_replacement() {
        let used = json!({
            "id": "1", "user": "ann", "purpose": "access", "label": "ci", "expires": "E",
            "lastUsed": "U", "from": ["10.0.0.0/8", "::1/128"], "replacedBy": "2",
        });
        let cells = [
            "1",
            "ann",
            "access",
            "ci",
            "E",
            "U",
            "10.0.0.0/8,::1/128",
            "2",
        ];
        assert_eq!(access_token(&used), cells);
        let unused =
            json!({"id": "1", "user": "ann", "purpose": "access", "label": "ci", "expires": "E"});
        assert_eq!(access_token(&unused)[5..], ["never", "", ""]);
    }

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
