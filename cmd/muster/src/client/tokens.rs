//! `muster token`.

use anyhow::Result;
use serde_json::json;

use super::output::{self, Table};
use super::show::escape;
use super::{Answer, Connection};
use crate::arguments::Token;

/// Issues, lists and ends tokens.
pub async fn token(connection: &Connection, command: Token) -> Result<Answer> {
    match command {
        Token::Create { label, days, user } => {
            let secret = issue(connection, &label, days, user.as_deref()).await?;
            output::put_line(&secret)?;
        }
        Token::Join { minutes } => {
            let body = json!({"minutes": minutes});
            let answer = connection
                .call("POST", "/api/v1/join-tokens", &body)
                .await?;
            output::put_line(answer["token"].as_str().unwrap_or_default())?;
            eprintln!(
                "valid for {minutes} min; on the node: muster agent --server {} --token TOKEN",
                connection.server
            );
        }
        Token::List => {
            let answer = connection.ask("/api/v1/tokens").await?;
            let mut table = Table::new(["ID", "USER", "PURPOSE", "LABEL", "EXPIRES"]);
            for token in answer["items"].as_array().into_iter().flatten() {
                let text = |field: &str| token[field].as_str().unwrap_or("").to_string();
                table.row(["id", "user", "purpose", "label", "expires"].map(text));
            }
            output::put(&table.render())?;
        }
        Token::Revoke { id } => {
            let path = format!("/api/v1/tokens/{}", escape(&id));
            connection
                .call("DELETE", &path, &serde_json::Value::Null)
                .await?;
            output::put_line(&format!("token {id} revoked"))?;
        }
    }
    Ok(Answer::Yes)
}

/// Issues an access token and hands back its secret.
pub async fn issue(
    connection: &Connection,
    label: &str,
    days: u64,
    user: Option<&str>,
) -> Result<String> {
    let body = json!({"label": label, "days": days, "user": user});
    let answer = connection.call("POST", "/api/v1/tokens", &body).await?;
    Ok(answer["secret"].as_str().unwrap_or_default().to_string())
}
