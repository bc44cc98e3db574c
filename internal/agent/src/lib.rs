//! The node's agent: joins the server, keeps a session with it, and runs the pods that are assigned
//! to it, also while the server is unreachable. Decides nothing about placement; the pure state
//! machine in [`lifecycle`] controls each pod.

mod accounts;
mod checks;
mod config;
mod confinement;
mod container;
mod disk;
mod engine;
mod env;
mod error;
mod eviction;
mod expand;
mod eyes;
mod fields;
mod health;
mod hosts;
mod identity;
mod kubelet;
pub mod lifecycle;
mod logs;
mod metrics;
mod node;
mod outbox;
mod own_pods;
mod pairing;
mod pod_source;
mod pods;
mod prober;
mod probes;
mod runs;
mod session;
mod shares;
mod temporary;
mod tenants;
mod trust;
mod unfit;
mod version;
mod volumes;
mod worker;

use std::sync::Arc;
use std::time::SystemTime;

use devices::{fabric, inventory, mps, nccl, over_share, rdma, vendors, xids};
use parking_lot::Mutex;
use tokio::sync::watch;

pub use accounts::Accounts;
pub use config::{AgentConfig, LOOK, MAX_PODS, POD_PROCESSES};
pub use engine::{Engine, NotStarted};
pub use error::AgentError;
pub use eviction::{LEAST_POD_DISK, PodDisk};
pub use hardware::nccl::Tell as TellTopology;
pub use identity::Trust;
pub use kubelet::{GivenBy, KUBELET_DIR, KubeletConfig, KubeletError, run_beside_kubelet};
pub use metrics::{Listen, NoPort, PORT};
pub use tenants::POD_IDS;
pub use version::VERSION;

use disk::Layout;
use fields::NodeFacts;
use identity::Identity;
use node::{Node, Shared};
use own_pods::OwnPods;
use pod_source::PodSource;
use pods::Pods;

/// The engines that run the pods' containers.
pub struct Engines {
    /// Processes of this node.
    pub process: Arc<dyn Engine>,
    /// Images, if there is a container runtime.
    pub images: Option<Arc<dyn Engine>>,
}

/// Runs the agent with the node's process runtime until `stop` says true. The pods' processes
/// continue after that; the next agent takes them over.
pub async fn run(config: AgentConfig, stop: watch::Receiver<bool>) -> Result<(), AgentError> {
    let layout = Layout::open(&config.data)?;
    let process = runtime::ProcessRuntime::new(runtime::Config::new(
        layout.containers(),
        config.shim_command.clone(),
    ))
    .await?;
    for missing in process.capabilities().missing() {
        tracing::warn!("this machine lacks {missing}");
    }
    let images: Option<Arc<dyn Engine>> = match &config.cri_socket {
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
pub async fn run_with(
    config: AgentConfig,
    engines: Engines,
    mut stop: watch::Receiver<bool>,
) -> Result<(), AgentError> {
    config.check()?;
    let port = metrics::open(config.metrics).await?;
    let layout = Layout::open(&config.data)?;
    let source = config.hardware();
    let mut hearing = config.xids.clone();
    let kept = || config.data.join("xids.json");
    hearing.state.get_or_insert_with(kept);
    let xids = xids::Xids::listen(hearing, source.clone());
    let mut eyes = eyes::Eyes::new(source.clone());
    let mut found = config.take_in(eyes.look().await?);
    xids.lock().judge(&mut found, tokio::time::Instant::now());
    let expected = config.expected.as_deref();
    let fabric = fabric::Fabric::watch(&source, expected, &found).await?;
    fabric.judge(&mut found, tokio::time::Instant::now());
    for warning in &found.warnings {
        tracing::warn!("{warning}");
    }
    let unfit = unfit::Unfit::new(engines.process.unfit(config.read_only_host));
    let begin = tokio::time::Instant::now();
    if let Some(why) = unfit.why(begin) {
        tracing::error!("this node starts no pods without images: {why}");
    }
    unfit.tell(&mut found, begin);
    let tenants = tenants::Tenants::open(
        layout.pod_ids(),
        config.accounts.clone(),
        config.pod_ids.clone(),
        Box::new(accounts::NodeDirectory),
        engines.process.changes_users(),
    )?;
    let started = jiff::Timestamp::now().as_second();
    let mut machine = inventory::Machine::labelled(&found, &config.sharing, started);
    machine.rdma = fabric.proposal(&found);
    let cards = rdma::Cards::watch(config.rdma.clone(), source.sysfs_root.clone()).await;
    machine.share(&cards);
    let described = vendors::Described::watch(&config.vendors, &source.sysfs_root).await;
    machine.describe(&described);
    let expected = fabric.expected().cloned();
    let root = source.sysfs_root.clone();
    let topology = nccl::TopologyFile::new(layout.topology(), config.topology, expected, root);
    machine.topology = topology.renew(&found).await;
    unfit.judge(&mut machine, begin);
    let disk_bytes = durable::room(&layout.pods())
        .inspect_err(|error| tracing::warn!(%error, "the size of the node's disk is not known"))
        .ok()
        .map(|room| eviction::allocatable(&room));
    machine.inventory.disk_bytes = disk_bytes;
    let bounds = config.bounds(machine.inventory.memory_bytes);
    let (want, wanted) = watch::channel(mps::wanted(&machine.inventory, &config.sharing));
    let (tell_stands, stands) = watch::channel(mps::Stands::new());
    let (ended, end) = watch::channel(false);
    let sharing_by_mps = tokio::spawn(mps::keep(
        config.mps.clone(),
        source.clone(),
        wanted,
        tell_stands,
        end,
    ));
    let node = Arc::new(Node {
        facts: NodeFacts {
            name: config.node_name.clone(),
            ip: config.node_ip.to_string(),
            cpus: machine.inventory.cpus,
            memory_bytes: machine.inventory.memory_bytes,
        },
        logs: logs::LogStore::new(layout.logs()),
        layout,
        machine: Mutex::new(machine),
        shared: Shared {
            sharing: config.sharing.clone(),
            mps: config.mps.clone(),
            want,
            stands,
            ended,
        },
        started,
        alerts: Mutex::default(),
        xids: xids.clone(),
        fabric,
        cards,
        described,
        topology,
        eyes: tokio::sync::Mutex::new(eyes),
        outbox: outbox::Outbox::default(),
        dev: "/dev".into(),
        tenants,
        bounds,
        unfit,
        disk_bytes,
        pressure: eviction::Pressure::default(),
        process: engines.process,
        images: engines.images,
        host_images: config.host_images,
        pairing: Arc::new(tokio::sync::Semaphore::new(1)),
        running: Mutex::default(),
    });
    let pods = Pods::new(node.clone());
    // Before the first session: pods of an earlier agent are handled even without a server.
    pods.recover().await?;
    node.machine.lock().withhold(&pods.held_as());
    let sweeper = tokio::spawn(sweep(node.clone(), pods.clone()));
    let whose: Arc<dyn PodSource> = Arc::new(OwnPods {
        node: node.clone(),
        pods: pods.clone(),
    });
    let board = over_share::Board::default();
    let here = node.clone();
    let shares = shares::Watch::new(
        config.over_share,
        config.hardware(),
        whose.clone(),
        move || here.machine_now(),
        board.clone(),
    );
    let watching = tokio::spawn(shares.run());
    let disk = eviction::Watch::new(node.clone(), pods.clone(), config.pod_disk);
    let watching_disk = tokio::spawn(disk.run());
    let exporter = metrics::Exporter::new(config.hardware(), &config.node_name, whose, xids, board);
    let exporting = tokio::spawn(metrics::serve(port, exporter));
    let outcome = match join(&config, &node, &mut stop).await {
        Ok(Some(identity)) => {
            session::keep(&config, &node, &pods, identity, stop).await;
            Ok(())
        }
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    sweeper.abort();
    exporting.abort();
    watching.abort();
    watching_disk.abort();
    node.shared.stop();
    if sharing_by_mps.await.is_err() {
        tracing::warn!("the MPS control daemons were left as they are");
    }
    outcome
}

/// The node's identity; joins if there is none yet. `None` if stopped meanwhile.
async fn join(
    config: &AgentConfig,
    node: &Node,
    stop: &mut watch::Receiver<bool>,
) -> Result<Option<Identity>, AgentError> {
    let dir = node.layout.identity();
    if let Some(identity) = Identity::load(&dir, &config.node_name)? {
        // An expired identity is only used if there is no token for a new one.
        if config.token.is_none() || !identity.has_expired(jiff::Timestamp::now()) {
            return Ok(Some(identity));
        }
        tracing::info!("the node's certificate has expired; joining again");
    }
    let (Some(token), Some(trust)) = (&config.token, config.trust()) else {
        return Err(AgentError::NotJoined { path: dir });
    };
    let mut tries = 0;
    loop {
        let joined = Identity::join(&dir, &config.server, &trust, token, &config.node_name);
        match joined.await {
            Ok(identity) => {
                tracing::info!(server = config.server, node = config.node_name, "joined");
                return Ok(Some(identity));
            }
            Err(error @ AgentError::Connection { .. }) => {
                tracing::warn!(%error, "not joined yet; trying again");
            }
            Err(error) => return Err(error),
        }
        tokio::select! {
            () = tokio::time::sleep(session::pause(tries)) => tries += 1,
            _ = stop.wait_for(|stop| *stop) => return Ok(None),
        }
    }
}

/// Removes logs beyond their limits periodically.
async fn sweep(node: Arc<Node>, pods: Arc<Pods>) {
    let mut tick = tokio::time::interval(logs::SWEEP);
    loop {
        tick.tick().await;
        let (store, live) = (node.logs.clone(), pods.uids());
        let swept =
            tokio::task::spawn_blocking(move || store.sweep(&live, SystemTime::now())).await;
        if let Ok(count) = swept
            && count > 0
        {
            tracing::info!(pods = count, "old logs were removed");
        }
    }
}
