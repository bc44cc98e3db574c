//! `muster node`.

use anyhow::Result;

use super::show::escape;
use super::{Answer, Connection, output};
use crate::arguments::Node;

/// Removes a node.
pub async fn node(connection: &Connection, command: Node) -> Result<Answer> {
    match command {
        Node::Remove { name } => {
            let path = format!("/api/v1/joined-nodes/{}", escape(&name));
            connection
                .call("DELETE", &path, &serde_json::Value::Null)
                .await?;
            output::put_line(&format!(
                "node {name:?} removed; its certificates are revoked"
            ))?;
        }
    }
    Ok(Answer::Yes)
}
