//! The long-running commands: they read the configuration, wire the crates together, and run until
//! a stop signal.

mod admin;
mod audit;
mod backup;
mod certificate;
mod decisions;
mod doctor;
mod edge;
mod extender;
mod footprint;
mod health;
mod hooks;
pub mod host;
mod kubernetes;
mod layout;
mod listener;
mod machine;
mod plain_http;
mod pod_security;
mod process;
mod ready;
mod scheduler;
mod server;
mod sharing;
mod signals;

use anyhow::{Result, bail};

use crate::arguments::{Agent, Engine, Global, PodsOf, Up};
use crate::client::Answer;

pub use audit::verified as verify_audit;
pub use backup::{check_store, restore};
pub use doctor::{doctor, topology, xids};

/// Runs the server alone, with its own API or for a Kubernetes cluster.
pub async fn server(global: Global, arguments: crate::arguments::Server) -> Result<Answer> {
    let given = arguments.kubernetes.given();
    if let Some(option) = given.filter(|_| arguments.engine == Engine::Embedded) {
        bail!("{option} is an option of --engine kubernetes");
    }
    let given = arguments.server.embedded_only();
    if let Some(option) = given.filter(|_| arguments.engine == Engine::Kubernetes) {
        bail!(
            "{option}: means nothing with --engine kubernetes, whose cluster has its own API, users and nodes; leave it out"
        );
    }
    logging();
    let stop = signals::stop()?;
    if arguments.engine == Engine::Kubernetes {
        kubernetes::run(&global, &arguments.server, &arguments.kubernetes, stop).await?;
        return Ok(Answer::Yes);
    }
    process::keep_files_private();
    let layout = layout::Layout::open(&data(&global))?;
    let server = server::Server::start(&layout, &arguments.server, stop).await?;
    ready::announce(&server, &layout);
    server.run_to_end().await?;
    Ok(Answer::Yes)
}

/// Runs server and agent in one process, on one machine.
pub async fn up(global: Global, arguments: Up) -> Result<Answer> {
    logging();
    let stop = signals::stop()?;
    process::keep_files_private();
    let layout = layout::Layout::open(&data(&global))?;
    let server = server::Server::start(&layout, &arguments.server, stop.clone()).await?;
    ready::announce(&server, &layout);
    let config = machine::beside(&server, &layout, &arguments.machine)?;
    let agent = tokio::spawn(agent::run(config, stop));
    let ended = server.run_to_end().await;
    // The agent gets the stop signal too; its pods keep running under their shims.
    match agent.await {
        Ok(Ok(())) => ended.map(|()| Answer::Yes),
        Ok(Err(error)) => bail!("the agent ended: {error}"),
        Err(error) => bail!("the agent ended: {error}"),
    }
}

/// Runs the agent alone.
pub async fn agent(global: Global, arguments: Agent) -> Result<Answer> {
    logging();
    let stop = signals::stop()?;
    footprint::shrink_once_started();
    if arguments.engine == PodsOf::Kubernetes {
        let config = machine::beside_kubelet(&data(&global), &arguments)?;
        let (client, address) = kubernetes::client(&global).await?;
        tracing::info!(
            cluster = address,
            node = config.node,
            "offering GPUs to the kubelet"
        );
        agent::run_beside_kubelet(config, client, stop).await?;
        return Ok(Answer::Yes);
    }
    process::keep_files_private();
    let layout = layout::Layout::open(&data(&global))?;
    let config = machine::alone(&layout, &arguments)?;
    agent::run(config, stop).await?;
    Ok(Answer::Yes)
}

fn data(global: &Global) -> std::path::PathBuf {
    global
        .data
        .clone()
        .unwrap_or_else(crate::client::default_data_to_make)
}

/// Logs to standard error; MUSTER_LOG sets the level, in tracing's filter syntax.
fn logging() {
    use std::io::IsTerminal;
    let filter = tracing_subscriber::EnvFilter::try_from_env("MUSTER_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info,kube_client=warn"));
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .try_init();
}
