//! `muster server kubernetes`: scheduler and job controllers for a cluster with its own
//! kube-apiserver. One of several such servers is active at a time.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use cli::Global;
use controllers::jobs::JobKind;
use controllers::lead::{LeaderCandidate, LeaseDurations};
use controllers::{LoopEnded, cluster};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use resources::names;
use supervisor::Supervisor;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::health::{self, HealthState, ServerState};
use super::server::local;
use super::{extender, host, notify, scheduler, signals};
use crate::arguments::{ControlledKind, KubernetesServer, NODE_GRACE};

/// The Lease that servers of one cluster contend for.
const LEASE: &str = "muster-server";
/// How long the control loops may take to finish their writes at a stop.
const PATIENCE: Duration = Duration::from_secs(10);
/// Interval of the checks of a cluster that is not ready.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// The kinds that Muster controls in a cluster unless `--kinds` names others.
const CONTROLLED: [JobKind; 1] = [JobKind::PyTorchJob];

/// Runs until `stop` is true.
///
/// # Errors
/// The server could not start, or a part of it ended unexpectedly; the error names the part.
pub async fn run(
    global: &Global,
    options: &KubernetesServer,
    stop: watch::Receiver<bool>,
) -> Result<()> {
    // Errors in files are reported before any request to the cluster.
    let config = config(options)?;
    let (client, address) = client(global).await?;
    let socket = TcpListener::bind(options.listen).await.with_context(|| {
        format!(
            "--listen: {} cannot be listened on; choose another port",
            options.listen
        )
    })?;
    let identity = identity();
    for kind in JobKind::TRAINING {
        let word = kind.as_str();
        if config.jobs.contains(&kind) {
            tracing::info!("this server controls {word}s");
        } else {
            tracing::info!("this server leaves {word}s to another operator (--kinds)");
        }
    }
    let listens = socket.local_addr()?;
    println!("muster works for {address} as {identity}; health and metrics at http://{listens}/");
    let state = Arc::new(HealthState::new(
        JobKind::TRAINING
            .map(|kind| (kind, config.jobs.contains(&kind)))
            .into(),
    ));
    let asked = match options.extender {
        Some(address) => Some(extender::listen(address).await?),
        None => None,
    };
    let candidate = LeaderCandidate::new(
        client.clone(),
        options
            .lease_namespace
            .as_deref()
            .unwrap_or(names::SYSTEM_NAMESPACE),
        LEASE,
        &identity,
        LeaseDurations::default(),
    );
    let mut components = Supervisor::new();
    components.run("health", |stop| {
        let serving = health::serve(socket, state.clone(), stop.receiver());
        async {
            serving.await;
            Ok::<(), Infallible>(())
        }
    });
    notify::answers_at(
        &format!("working for {address}"),
        local(listens),
        stop.clone(),
    );
    if let Some(socket) = asked {
        components.run("extender", |stop| {
            let serving = extender::serve(socket, state.clone(), stop.receiver());
            async {
                serving.await;
                Ok::<(), Infallible>(())
            }
        });
    }
    // Stopped first: the Lease is free for another server while the others end.
    components.run("leader", |stop| async move {
        let kinds = until_kinds_are_there(&client, &config, &state);
        if stop.run_until_requested(kinds).await.is_some() {
            lead(candidate, &config, &state, &mut stop.receiver()).await?;
        }
        state.set(ServerState::Waits("stopping".to_owned()));
        Ok::<(), LoopEnded>(())
    });
    Ok(components.supervise(signals::requested(stop)).await?)
}

/// Leads whenever this server holds the Lease, until `stop`.
///
/// # Errors
/// A control loop ended while this server led. The Lease is free for another server then.
async fn lead(
    mut candidate: LeaderCandidate,
    config: &controllers::Config,
    state: &HealthState,
    stop: &mut watch::Receiver<bool>,
) -> Result<(), LoopEnded> {
    let mut stopping = stop.clone();
    loop {
        state.set(ServerState::Follows(candidate.leader()));
        let mut term = tokio::select! {
            term = candidate.lead() => term,
            _ = stopping.wait_for(|stop| *stop) => return Ok(()),
        };
        tracing::info!("this server leads");
        let client = term.client();
        let queue = tokio::spawn(make_default_queue(client.clone()));
        let mut controllers = controllers::start(client.clone(), config.clone());
        state.set(ServerState::Leads(controllers.board.clone(), client));
        let outcome = tokio::select! {
            () = term.hold() => {
                queue.abort();
                controllers.cut_off();
                continue;
            }
            _ = stopping.wait_for(|stop| *stop) => Ok(()),
            ended = controllers.ended() => Err(ended),
        };
        queue.abort();
        // No longer ready, and no answers to a kube-scheduler from a board that is not kept up any more.
        state.set(ServerState::Waits("stopping".to_owned()));
        // Pending writes may finish as long as this server holds the Lease.
        let lost = tokio::select! {
            () = controllers.shutdown(PATIENCE) => false,
            () = term.hold() => true,
        };
        if !lost {
            term.release().await;
        }
        return outcome;
    }
}

/// Creates the default queue if it is missing; retries without limit.
async fn make_default_queue(client: Client) {
    while let Err(error) = cluster::ensure_default_queue(&client).await {
        tracing::warn!(%error, "the default queue could not be created; trying again; gangs without a queue wait");
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

async fn until_kinds_are_there(client: &Client, config: &controllers::Config, state: &HealthState) {
    let mut logged = String::new();
    while let Err(reason) = cluster::check_kinds(client, config.jobs.iter().copied()).await {
        let reason = reason.to_string();
        if reason != logged {
            tracing::warn!("waiting: {reason}");
            logged.clone_from(&reason);
        }
        state.set(ServerState::Waits(reason));
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

fn config(options: &KubernetesServer) -> Result<controllers::Config> {
    // The cluster's own scheduler serves `default-scheduler`.
    let defaults = controllers::SchedulerConfig {
        scheduler_names: vec![names::SCHEDULER.to_owned()],
        // The cluster lists its claims.
        volumes_told: true,
        ..controllers::SchedulerConfig::default()
    };
    let file = options.scheduler.scheduler_config.as_deref();
    let mut scheduler = scheduler::config(file, defaults)?;
    if !options.scheduler_names.is_empty() {
        scheduler
            .scheduler_names
            .clone_from(&options.scheduler_names);
    }
    let jobs: BTreeSet<JobKind> = if options.kinds.is_empty() {
        CONTROLLED.into()
    } else {
        let chosen = options.kinds.iter().filter_map(|kind| match kind {
            ControlledKind::PyTorchJob => Some(JobKind::PyTorchJob),
            ControlledKind::TFJob => Some(JobKind::TFJob),
            ControlledKind::XGBoostJob => Some(JobKind::XGBoostJob),
            ControlledKind::PaddleJob => Some(JobKind::PaddleJob),
            ControlledKind::JAXJob => Some(JobKind::JAXJob),
            ControlledKind::MPIJob => Some(JobKind::MPIJob),
            ControlledKind::None => None,
        });
        chosen.collect()
    };
    Ok(controllers::Config {
        scheduler,
        jobs,
        core_controllers: false,
        // The cluster's node life cycle counts; the value is not used.
        node_grace: NODE_GRACE,
        // Each pod has its own network.
        rendezvous_ports: std::ops::RangeInclusive::new(1, 0),
        root_ca: None,
    })
}

/// A client, and the cluster's address for messages.
pub async fn client(global: &Global) -> Result<(Client, String)> {
    let mut config = match &global.kubeconfig {
        Some(file) => {
            let kubeconfig = Kubeconfig::read_from(file)
                .with_context(|| format!("--kubeconfig: {} cannot be used", file.display()))?;
            kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
                .await
                .context("--kubeconfig: the file names no usable server")?
        }
        None => kube::Config::infer().await.context(
            "no Kubernetes cluster is configured: name a kubeconfig with --kubeconfig, or run the command in a pod of the cluster",
        )?,
    };
    // The control loops retry within their own limits, and do not retry definite refusals.
    config.default_retry = false;
    let address = config.cluster_url.to_string();
    let client = Client::try_from(config).context("the client could not be made")?;
    Ok((client, address.trim_end_matches('/').to_owned()))
}

/// An identity that differs from those of other servers and of earlier starts.
fn identity() -> String {
    let host = host::name().unwrap_or_else(|| "muster".to_owned());
    let drawn = std::fs::read_to_string("/proc/sys/kernel/random/uuid");
    let drawn = drawn.map_or_else(
        |_| std::process::id().to_string(),
        |id| id.trim().to_owned(),
    );
    format!("{host}_{drawn}")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::arguments::{Arguments, Command, ServerEngine};

    fn jobs(kinds: &[&str]) -> BTreeSet<JobKind> {
        let words = ["muster", "server", "kubernetes", "--listen", "127.0.0.1:0"];
        let kinds = kinds.iter().flat_map(|kind| ["--kinds", *kind]);
        let arguments = Arguments::try_parse_from(words.into_iter().chain(kinds)).unwrap();
        let Command::Server(server) = arguments.command else {
            panic!("a server")
        };
        let Some(ServerEngine::Kubernetes(options)) = server.engine else {
            panic!("for a cluster")
        };
        let config = config(&options).unwrap();
        assert!(
            !config.core_controllers,
            "a cluster has its own controllers"
        );
        assert_eq!(config.scheduler.scheduler_names, ["muster"]);
        config.jobs
    }

    #[test]
    fn kinds_are_controlled_unless_left_out_and_plain_jobs_never() {
        assert_eq!(jobs(&[]), BTreeSet::from([JobKind::PyTorchJob]));
        assert_eq!(jobs(&["none"]), BTreeSet::new());
        let named = jobs(&["PyTorchJob"]);
        assert_eq!(named, BTreeSet::from([JobKind::PyTorchJob]));
    }
}
