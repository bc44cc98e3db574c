//! `muster version`: this binary's, and the server's when one answers.

use anyhow::Result;

use super::{Answer, Connection};
use crate::arguments::Global;

/// Prints both versions; a server that does not answer is said, and is no error.
pub async fn version(global: &Global) -> Result<Answer> {
    println!("muster {}", env!("CARGO_PKG_VERSION"));
    let server = async {
        let connection = Connection::open(global).await?;
        connection.ask("/version").await
    };
    match server.await {
        Ok(info) => println!(
            "server {}",
            info["gitVersion"].as_str().unwrap_or("unknown")
        ),
        Err(error) => println!("server: none ({error:#})"),
    }
    Ok(Answer::Yes)
}
