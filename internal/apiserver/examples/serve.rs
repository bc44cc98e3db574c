//! A development aid: serves the resource API over plain HTTP to local clients, with an
//! administrator as the caller, so that a client can be tested against it:
//!
//! ```text
//! cargo run -p apiserver --example serve -- /tmp/data 8080
//! kubectl --server http://127.0.0.1:8080 get namespaces
//! ```

use std::path::PathBuf;

use apiserver::{ApiConfig, ApiServer};
use axum::Extension;
use resources::access::{Caller, MASTERS_GROUP};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(data), Some(port)) = (arguments.next(), arguments.next()) else {
        return Err("give a data directory and a port".into());
    };
    let store = store::Store::open(&PathBuf::from(data), store::Options::default())?;
    let server = ApiServer::open(store, ApiConfig::default())?;
    let everything = Caller::user("developer", [MASTERS_GROUP.to_owned()]);
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port.parse()?)).await?;
    axum::serve(listener, server.router().layer(Extension(everything))).await?;
    Ok(())
}
