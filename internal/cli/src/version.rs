//! `muster version`: the version of this binary, and the server's if one answers.

use anyhow::Result;

use super::connection::ServerConnection;
use super::outcome::CommandOutcome;
use super::{error_message, output};
use crate::arguments::Global;

/// Prints both versions. An unreachable server is reported, and is no error.
pub async fn version(global: &Global) -> Result<CommandOutcome> {
    output::put_line(concat!("muster ", env!("CARGO_PKG_VERSION")))?;
    let server = async {
        let connection = ServerConnection::open(global).await?;
        let answer = connection.ask("/version").await;
        answer.map_err(|error| error_message::in_words(error, &connection))
    };
    match server.await {
        Ok(info) => {
            let version = info["gitVersion"].as_str().unwrap_or("unknown");
            output::put_line(&format!("server {version}"))?;
        }
        Err(error) => {
            // The remedy is on the lines after the first.
            let text = format!("{error:#}");
            let first = text.lines().next().unwrap_or_default();
            output::put_line(&format!("server none ({first})"))?;
        }
    }
    Ok(CommandOutcome::Yes)
}
