//! The node's agent: joins the server, keeps a session with it, and runs the pods that are assigned
//! to it, also while the server is unreachable. Decides nothing about placement; the pure state
//! machine in [`lifecycle`] controls each pod.

mod accounts;
mod checks;
mod cluster_services;
mod config;
mod confinement;
mod container;
mod device_monitor;
mod disk;
mod disk_watch;
mod engine;
mod env;
mod error;
mod eviction;
mod exec;
mod expand;
mod fields;
mod gpu_loads;
mod health;
mod hosts;
mod identity;
mod inventory_loop;
mod kubelet;
pub mod lifecycle;
mod log_sweeper;
mod logs;
mod measure;
mod metrics;
mod network_policies;
mod node;
mod node_fault;
mod outbox;
mod own_pods;
mod pairing;
mod pod_network;
mod pod_source;
mod pods;
mod prober;
mod probes;
mod reprogram;
mod runs;
mod session;
mod shares;
mod startup;
mod temporary;
mod tenants;
mod trust;
mod upgrade;
mod version;
mod volumes;
mod worker;
mod worker_message;

use std::convert::Infallible;
use std::sync::Arc;

use devices::{mps, over_share};
use supervisor::Supervisor;
use tokio::sync::watch;

pub use accounts::{Accounts, AccountsError};
pub use config::{AgentConfig, LOOK, MAX_PODS, POD_PROCESSES, Reserved};
pub use engine::{ContainerEngine, EngineError, Engines, NotStarted};
pub use error::AgentError;
pub use eviction::{LEAST_POD_DISK, PodDisk};
pub use hardware::nccl::TreeDelivery as TellTopology;
pub use identity::Trust;
pub use kubelet::{DeviceDelivery, KUBELET_DIR, KubeletConfig, KubeletError, run_with_kubelet};
pub use metrics::{Listen, NoPort, PORT};
pub use pod_network::PodNetworkMode;
pub use tenants::POD_IDS;
pub use trust::{PinnedAuthority, parse_fingerprint};
pub use upgrade::{Begin, BinaryUpgrade, UpgradeError};
pub use version::VERSION;

use disk::DataLayout;
use own_pods::OwnPods;
use pod_source::PodSource;
use pods::Pods;
use startup::Opened;

/// Runs the agent with the node's process runtime until `stop` says true. The pods' processes
/// continue after that; the next agent takes them over.
pub async fn run(config: AgentConfig, stop: watch::Receiver<bool>) -> Result<(), AgentError> {
    let layout = DataLayout::open(&config.data)?;
    let process = runtime::ProcessRuntime::new(runtime::Config::new(
        layout.containers(),
        config.shim_command.clone(),
    ))
    .await?;
    for missing in process.capabilities().missing() {
        tracing::warn!("this machine lacks {missing}");
    }
    let images: Option<Arc<dyn ContainerEngine>> = match &config.cri_socket {
        Some(socket) => {
            let cri = runtime::CriConfig {
                socket: socket.clone(),
                owner: config.node_name.clone(),
                runtime_handler: String::new(),
                sub_paths: layout.sub_paths(),
            };
            Some(Arc::new(runtime::CriRuntime::connect(cri).await?))
        }
        None => None,
    };
    let engines = Engines {
        process: Arc::new(process),
        images,
    };
    run_with(config, engines, stop).await
}

/// Runs the agent with the given engines; see [`run`].
///
/// # Errors
///
/// When something that the agent needs can't be opened, the node can't join, or a component of the
/// agent ends before `stop` says true.
pub async fn run_with(
    config: AgentConfig,
    engines: Engines,
    mut stop: watch::Receiver<bool>,
) -> Result<(), AgentError> {
    let config = Arc::new(config);
    let upgrade = config.upgrade.clone();
    let opened = startup::open(&config, engines).await?;
    let Opened {
        node,
        port,
        wanted_daemons,
        daemons_state,
    } = opened;
    let mut components = Supervisor::new();
    // Stopped last: unused daemons end when no pod can get one any more.
    let (daemons, source) = (config.mps.clone(), config.hardware());
    components.run("mps-daemons", |stop| async move {
        mps::keep(
            daemons,
            source,
            wanted_daemons,
            daemons_state,
            stop.receiver(),
        )
        .await;
        Ok::<(), Infallible>(())
    });
    let pods = Pods::new(node.clone());
    // Before the first session: pods of an earlier agent are handled even without a server.
    pods.recover().await?;
    node.networks.retain(pods.uids()).await;
    node.machine.lock().withhold(&pods.held_as());
    let whose: Arc<dyn PodSource> = Arc::new(OwnPods {
        node: node.clone(),
        pods: pods.clone(),
    });
    let board = over_share::LatestShares::default();
    let here = node.clone();
    let shares = shares::ShareWatch::new(
        config.over_share,
        config.hardware(),
        whose.clone(),
        move || here.machine_now(),
        board.clone(),
    );
    let disk = disk_watch::DiskWatch::new(node.clone(), pods.clone(), config.pod_disk);
    let (source, xids) = (config.hardware(), node.xids.clone());
    let exporter = metrics::Exporter::new(source, &config.node_name, whose, xids, board);
    components
        .run_loop("log-sweeper", log_sweeper::run(node.clone(), pods.clone()))
        .run_loop("gpu-shares", shares.run())
        .run_loop("disk", disk.run())
        .run_loop("services", node.services.clone().program())
        .run_loop("network-policies", node.policies.clone().keep())
        .run_loop("dns", node.services.clone().answer())
        .run_loop("metrics", metrics::serve(port, exporter))
        .run("session", |stop| async move {
            session::run(&config, &node, &pods, stop.receiver()).await
        });
    let asked = async move {
        tokio::select! {
            // An error: no process that could ask for the stop is left.
            _ = stop.wait_for(|stop| *stop) => {}
            () = upgrade.must_change() => {}
        }
    };
    let ended = components.supervise(asked).await;
    ended.map_err(AgentError::from)
}
