//! `muster server --engine kubernetes`: scheduler and job controllers for a cluster with its own
//! kube-apiserver. One of several such servers is active at a time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use controllers::cluster;
use controllers::jobs::JobKind;
use controllers::lead::{Candidate, Times};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use resources::names;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::health::{self, Standing, State};
use super::{extender, host, scheduler};
use crate::arguments::{ControlledKind, Global, KubernetesOptions, ServerOptions};

/// The Lease that servers of one cluster contend for.
const LEASE: &str = "muster-server";
/// How long the control loops may take to finish their writes at a stop.
const PATIENCE: Duration = Duration::from_secs(10);
/// Interval of the checks of a cluster that is not ready.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// The kinds that Muster can control in a cluster; kube-controller-manager controls plain Jobs.
const CONTROLLABLE: [JobKind; 1] = [JobKind::PyTorchJob];

/// Runs until a stop signal.
pub async fn run(
    global: &Global,
    server: &ServerOptions,
    options: &KubernetesOptions,
    mut stop: watch::Receiver<bool>,
) -> Result<()> {
    // Errors in files are reported before any request to the cluster.
    let config = config(server, options)?;
    let (client, address) = client(global).await?;
    let socket = TcpListener::bind(server.listen).await.with_context(|| {
        format!(
            "--listen: {} can't be listened on; choose another port",
            server.listen
        )
    })?;
    let identity = identity();
    for kind in CONTROLLABLE {
        let word = kind.as_str();
        if config.jobs.contains(&kind) {
            tracing::info!("{word}s are controlled");
        } else {
            tracing::info!("{word}s are another operator's and left alone (--kinds)");
        }
    }
    println!(
        "muster works for {address} as {identity}; health and metrics at http://{}/",
        socket.local_addr()?
    );
    let state = Arc::new(State::new(
        CONTROLLABLE
            .map(|kind| (kind, config.jobs.contains(&kind)))
            .into(),
    ));
    let asked = match options.extender {
        Some(address) => Some(extender::listen(address).await?),
        None => None,
    };
    let serving = tokio::spawn(health::serve(socket, state.clone(), stop.clone()));
    let extending = asked.map(|socket| {
        let serve = extender::serve(socket, state.clone(), stop.clone());
        tokio::spawn(serve)
    });
    let namespace = options.lease_namespace.as_deref();
    let candidate = Candidate::new(
        client.clone(),
        namespace.unwrap_or(names::SYSTEM_NAMESPACE),
        LEASE,
        &identity,
        Times::default(),
    );
    let mut stopping = stop.clone();
    tokio::select! {
        () = until_kinds_are_there(&client, &config, &state) => {}
        _ = stopping.wait_for(|stop| *stop) => return serving.await?,
    }
    lead(candidate, &config, &state, &mut stop).await;
    if let Some(extending) = extending {
        extending.await??;
    }
    serving.await?
}

/// Leads whenever this server holds the Lease, until `stop`.
async fn lead(
    mut candidate: Candidate,
    config: &controllers::Config,
    state: &State,
    stop: &mut watch::Receiver<bool>,
) {
    let mut stopping = stop.clone();
    loop {
        state.set(Standing::Follows(candidate.leader()));
        let mut term = tokio::select! {
            term = candidate.lead() => term,
            _ = stopping.wait_for(|stop| *stop) => return,
        };
        tracing::info!("this server leads");
        let client = term.client();
        let queue = tokio::spawn(make_default_queue(client.clone()));
        let controllers = controllers::start(client.clone(), config.clone());
        state.set(Standing::Leads(controllers.board.clone(), client));
        tokio::select! {
            () = term.hold() => {
                queue.abort();
                controllers.cut_off();
                continue;
            }
            _ = stopping.wait_for(|stop| *stop) => {}
        }
        queue.abort();
        // Pending writes may finish as long as this server holds the Lease.
        let lost = tokio::select! {
            () = controllers.shutdown(PATIENCE) => false,
            () = term.hold() => true,
        };
        if !lost {
            term.release().await;
        }
        return;
    }
}

/// Creates the default queue if it is missing; retries without limit.
async fn make_default_queue(client: Client) {
    while let Err(error) = cluster::ensure_default_queue(&client).await {
        tracing::warn!(%error, "the default queue could not be made and is tried again; gangs without a queue wait");
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

async fn until_kinds_are_there(client: &Client, config: &controllers::Config, state: &State) {
    let mut said = String::new();
    while let Err(reason) = cluster::check_kinds(client, config.jobs.iter().copied()).await {
        let reason = reason.to_string();
        if reason != said {
            tracing::warn!("waiting: {reason}");
            said.clone_from(&reason);
        }
        state.set(Standing::Waits(reason));
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

fn config(server: &ServerOptions, options: &KubernetesOptions) -> Result<controllers::Config> {
    // The cluster's own scheduler serves `default-scheduler`.
    let defaults = controllers::SchedulerConfig {
        scheduler_names: vec![names::SCHEDULER.to_owned()],
        // The cluster lists its claims.
        volumes_told: true,
        ..controllers::SchedulerConfig::default()
    };
    let mut scheduler = scheduler::config(server, defaults)?;
    if !options.scheduler_names.is_empty() {
        scheduler
            .scheduler_names
            .clone_from(&options.scheduler_names);
    }
    let jobs: BTreeSet<JobKind> = if options.kinds.is_empty() {
        CONTROLLABLE.into()
    } else {
        let chosen = options.kinds.iter().filter_map(|kind| match kind {
            ControlledKind::PyTorchJob => Some(JobKind::PyTorchJob),
            ControlledKind::None => None,
        });
        chosen.collect()
    };
    Ok(controllers::Config {
        scheduler,
        jobs,
        upkeep: false,
        node_grace: server.node_grace(),
        // Each pod has its own network.
        rendezvous_ports: std::ops::RangeInclusive::new(1, 0),
    })
}

/// A client, and the cluster's address for messages.
pub async fn client(global: &Global) -> Result<(Client, String)> {
    let mut config = match &global.kubeconfig {
        Some(file) => {
            let kubeconfig = Kubeconfig::read_from(file)
                .with_context(|| format!("--kubeconfig: {} can't be used", file.display()))?;
            kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
                .await
                .context("--kubeconfig: it names no usable server")?
        }
        None => kube::Config::infer().await.context(
            "no cluster is known: name a kubeconfig with --kubeconfig, or run this in a cluster",
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
    use crate::arguments::{Arguments, Command};

    fn jobs(kinds: &[ControlledKind]) -> BTreeSet<JobKind> {
        let words = ["muster", "server", "--listen", "127.0.0.1:0"];
        let Command::Server(server) = Arguments::try_parse_from(words).unwrap().command else {
            panic!("a server")
        };
        let options = KubernetesOptions {
            kinds: kinds.to_vec(),
            ..KubernetesOptions::default()
        };
        let config = config(&server.server, &options).unwrap();
        assert!(!config.upkeep, "a cluster has its own controllers");
        assert_eq!(config.scheduler.scheduler_names, ["muster"]);
        config.jobs
    }

    #[test]
    fn kinds_are_controlled_unless_left_out_and_plain_jobs_never() {
        assert_eq!(jobs(&[]), BTreeSet::from([JobKind::PyTorchJob]));
        assert_eq!(jobs(&[ControlledKind::None]), BTreeSet::new());
        let named = jobs(&[ControlledKind::PyTorchJob]);
        assert_eq!(named, BTreeSet::from([JobKind::PyTorchJob]));
    }
}
