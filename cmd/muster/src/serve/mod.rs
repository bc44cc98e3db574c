//! The long-running commands: they read the configuration, wire the crates together, and run until
//! a stop signal.

mod accounting;
mod admin;
mod alerting;
mod audit;
mod backends;
mod backup;
mod certificate;
mod decisions;
mod doctor;
mod extender;
mod footprint;
mod hangs;
mod health;
mod history;
pub mod host;
mod idle_gpus;
mod kubernetes;
mod layout;
mod listener;
mod machine;
mod metrics;
mod mirror;
mod notify;
mod oidc;
mod open_port;
mod plain_http;
mod pod_pages;
mod pod_security;
mod process;
mod ready;
mod root_certificates;
mod route_layer;
mod scheduled_backups;
mod scheduler;
mod server;
mod sharing;
mod signals;
mod successor;
mod tls;
mod upgrade;

use agent::{Begin, BinaryUpgrade};
use anyhow::Result;
use cli::{CommandOutcome, Global};

use crate::arguments::{
    Agent, AgentEngine, EmbeddedAgent, KubeletAgent, KubernetesServer, LogOptions, Server,
    ServerEngine, Up,
};

pub use audit::verified as verify_audit;
pub use backup::{check_store, restore};
pub use doctor::{doctor, isolation_support, look, topology, xids};
pub use oidc::check as check_oidc;
pub use tls::{ReadTlsOptions, checked as check_certificate};
pub use upgrade::rollback;

/// Runs the server alone, with its own API or for a Kubernetes cluster. `read_tls` reads the options of the certificate
/// again at SIGHUP.
pub async fn server(
    global: &Global,
    arguments: Server,
    read_tls: ReadTlsOptions,
) -> Result<CommandOutcome> {
    match arguments.engine {
        None => embedded_server(global, &arguments, read_tls).await,
        Some(ServerEngine::Kubernetes(options)) => kubernetes_server(global, &options).await,
    }
}

async fn embedded_server(
    global: &Global,
    arguments: &Server,
    read_tls: ReadTlsOptions,
) -> Result<CommandOutcome> {
    log_to_stderr(&arguments.log)?;
    let stop = signals::stop()?;
    process::keep_files_private();
    let layout = layout::FileLayout::open(&data(global))?;
    let server = server::RunningServer::start(&layout, &arguments.server, read_tls).await?;
    ready::announce(&server, &layout);
    notify::server_started(&server, stop.clone());
    server.run_until(stop).await?;
    Ok(CommandOutcome::Yes)
}

async fn kubernetes_server(global: &Global, options: &KubernetesServer) -> Result<CommandOutcome> {
    log_to_stderr(&options.log)?;
    let stop = signals::stop()?;
    kubernetes::run(global, options, stop).await?;
    Ok(CommandOutcome::Yes)
}

/// Runs server and agent in one process, on one machine, until either ends.
pub async fn up(
    global: &Global,
    arguments: &Up,
    read_tls: ReadTlsOptions,
) -> Result<CommandOutcome> {
    log_to_stderr(&arguments.log)?;
    let stop = signals::stop()?;
    process::keep_files_private();
    let layout = layout::FileLayout::open(&data(global))?;
    let mut server =
        server::RunningServer::start(&layout, &arguments.server_options(), read_tls).await?;
    // An invalid option of the agent is reported before the server counts as up.
    let config = machine::beside(&server, &layout, &arguments.machine, &arguments.pods)?;
    ready::announce(&server, &layout);
    notify::server_started(&server, stop.clone());
    // It stops before the server's parts, so that its last reports arrive; its pods keep running under their shims.
    server
        .components
        .run("agent", |stop| agent::run(config, stop.receiver()));
    server.run_until(stop).await?;
    Ok(CommandOutcome::Yes)
}

/// Runs the agent alone, for a server or for a kubelet.
pub async fn agent(global: &Global, arguments: Agent) -> Result<CommandOutcome> {
    match arguments.engine {
        None => embedded_agent(global, &arguments.embedded).await,
        Some(AgentEngine::Kubernetes(options)) => kubelet_agent(global, &options).await,
    }
}

async fn embedded_agent(global: &Global, arguments: &EmbeddedAgent) -> Result<CommandOutcome> {
    log_to_stderr(&arguments.log)?;
    let stop = signals::stop()?;
    footprint::shrink_once_started();
    process::keep_files_private();
    let layout = layout::FileLayout::open(&data(global))?;
    let upgrade = match BinaryUpgrade::begin(&layout.agent(), arguments.allow_upgrade)? {
        Begin::Run(upgrade) => upgrade,
        Begin::HandOver(binary) => return Err(successor::become_binary(&binary)),
    };
    successor::reap_inherited()?;
    let mut config = machine::alone(&layout, arguments)?;
    config.upgrade = upgrade.clone();
    let status = format!("node {} of {}", config.node_name, config.server);
    notify::agent_started(&status, stop.clone());
    let ended = agent::run(config, stop.clone()).await;
    let next = match &ended {
        _ if *stop.borrow() => None,
        Ok(()) => upgrade.next(),
        Err(error) => upgrade.failed(error),
    };
    if let Some(binary) = next {
        return Err(successor::become_binary(&binary));
    }
    ended?;
    Ok(CommandOutcome::Yes)
}

async fn kubelet_agent(global: &Global, arguments: &KubeletAgent) -> Result<CommandOutcome> {
    log_to_stderr(&arguments.log)?;
    let stop = signals::stop()?;
    footprint::shrink_once_started();
    let config = machine::beside_kubelet(&data(global), arguments)?;
    let (client, address) = kubernetes::client(global).await?;
    tracing::info!(
        cluster = address,
        node = config.node,
        "offering GPUs to the kubelet"
    );
    notify::agent_started("offering GPUs to the kubelet", stop.clone());
    agent::run_with_kubelet(config, client, stop).await?;
    Ok(CommandOutcome::Yes)
}

fn log_to_stderr(options: &LogOptions) -> Result<()> {
    telemetry::log_to_stderr(options.log_format, &options.log_levels)?;
    Ok(())
}

fn data(global: &Global) -> std::path::PathBuf {
    global
        .data
        .clone()
        .unwrap_or_else(cli::default_data_to_make)
}
