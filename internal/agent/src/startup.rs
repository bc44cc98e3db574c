//! What an agent opens before its components run, and in which order: the settings and the metrics'
//! port first, because they can be wrong; then the hardware, in which each part judges the reading
//! of those before it; then the state that all pods share.

use std::sync::Arc;

use devices::fabric::FabricWatch;
use devices::inventory::NodeHardware;
use devices::mps::{self, MpsDaemonStates, MpsPlan};
use devices::nccl::TopologyFile;
use devices::rdma::NodeRdmaCards;
use devices::vendors::DeviceStock;
use devices::xids::{XidMonitor, XidSources};
use parking_lot::Mutex;
use runtime::capabilities::UNFIT_REMEDY;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::cluster_services::ClusterServices;
use crate::config::AgentConfig;
use crate::device_monitor::DeviceMonitor;
use crate::disk::DataLayout;
use crate::engine::Engines;
use crate::error::AgentError;
use crate::fields::{ApiAddress, NodeFieldValues};
use crate::logs::LogStore;
use crate::network_policies::NodeNetworkPolicies;
use crate::node::{AgentNode, GpuSharing};
use crate::node_fault::NodeFault;
use crate::outbox::Outbox;
use crate::pod_network::NodePodNetworks;
use crate::tenants::Tenants;
use crate::{accounts, eviction, metrics};

/// What the components of an agent work with.
pub(crate) struct Opened {
    /// The node.
    pub node: Arc<AgentNode>,
    /// The metrics' port, if they are served.
    pub port: Option<TcpListener>,
    /// The GPUs that need an MPS daemon.
    pub wanted_daemons: watch::Receiver<MpsPlan>,
    /// Where the state of the daemons is written.
    pub daemons_state: watch::Sender<MpsDaemonStates>,
}

/// Opens all of it. Starts no pod and no daemon.
///
/// # Errors
///
/// When a setting can't be used, or a file, the port or the hardware can't be opened.
pub(crate) async fn open(config: &AgentConfig, engines: Engines) -> Result<Opened, AgentError> {
    config.check()?;
    let port = metrics::open(config.metrics).await?;
    let layout = DataLayout::open(&config.data)?;
    let networks = NodePodNetworks::open(&layout, config.pod_network)?;
    let services = ClusterServices::open(networks.gives())?;
    let policies = NodeNetworkPolicies::open(&networks)?;
    let source = config.hardware();
    let xids = XidMonitor::listen(xid_settings(config), source.clone());
    let mut device_monitor = DeviceMonitor::new(source.clone());
    let mut found = config.take_in(device_monitor.observe().await?);
    xids.lock().assess(&mut found, tokio::time::Instant::now());
    let expected = config.expected.as_deref();
    let fabric = FabricWatch::watch(&source, expected, &found).await?;
    fabric.assess(&mut found, tokio::time::Instant::now());
    for warning in &found.warnings {
        tracing::warn!("{warning}");
    }
    let fault = NodeFault::new(engines.process.unfit(config.read_only_host));
    let begin = tokio::time::Instant::now();
    if let Some(why) = fault.why(begin) {
        tracing::error!(
            "this node starts no pods without images: {why}; to fix it: {UNFIT_REMEDY}"
        );
    }
    fault.notify(&mut found, begin);
    let tenants = Tenants::open(
        layout.pod_ids(),
        config.accounts.clone(),
        config.pod_ids.clone(),
        Box::new(accounts::NodeDirectory),
        engines.process.changes_users(),
    )?;
    let started = jiff::Timestamp::now().as_second();
    let mut machine = NodeHardware::labelled(&found, &config.sharing, started);
    machine.rdma = fabric.proposal(&found);
    let cards = NodeRdmaCards::watch(config.rdma.clone(), source.sysfs_root.clone()).await;
    machine.share(&cards);
    let described = DeviceStock::watch(&config.vendors, &source.sysfs_root).await;
    machine.describe(&described);
    let expected = fabric.expected().cloned();
    let root = source.sysfs_root.clone();
    let topology = TopologyFile::new(layout.topology(), config.topology, expected, root);
    machine.topology = topology.renew(&found).await;
    fault.assess(&mut machine, begin);
    let disk_bytes = durable::disk_space(&layout.pods())
        .inspect_err(
            |error| tracing::warn!(%error, "the agent cannot read the size of the node's disk"),
        )
        .ok()
        .map(|space| eviction::allocatable(&space));
    machine.inventory.disk_bytes = disk_bytes;
    let (cpus, memory) = (machine.inventory.cpus, machine.inventory.memory_bytes);
    config.reserved.check(u64::from(cpus), memory)?;
    let bounds = config.bounds(memory);
    let (want, wanted_daemons) = watch::channel(mps::wanted(&machine.inventory, &config.sharing));
    let (daemons_state, stands) = watch::channel(MpsDaemonStates::new());
    let node = AgentNode {
        facts: NodeFieldValues {
            name: config.node_name.clone(),
            ip: config.node_ip.to_string(),
            pod_ip: None,
            cpus: machine.inventory.cpus,
            memory_bytes: machine.inventory.memory_bytes,
            api: ApiAddress::of(&config.server),
        },
        logs: LogStore::new(layout.logs()),
        layout,
        machine: Mutex::new(machine),
        shared: GpuSharing {
            sharing: config.sharing.clone(),
            mps: config.mps.clone(),
            want,
            stands,
        },
        loads: Mutex::default(),
        started,
        alerts: Mutex::default(),
        xids,
        fabric,
        cards,
        described,
        topology,
        device_monitor: tokio::sync::Mutex::new(device_monitor),
        outbox: Outbox::default(),
        dev: "/dev".into(),
        tenants,
        bounds,
        fault,
        disk_bytes,
        pressure: eviction::Pressure::default(),
        networks,
        policies,
        services,
        process: engines.process,
        images: engines.images,
        host_images: config.host_images,
        pairing: Arc::new(tokio::sync::Semaphore::new(1)),
        running: Mutex::default(),
    };
    Ok(Opened {
        node: Arc::new(node),
        port,
        wanted_daemons,
        daemons_state,
    })
}

/// Where XIDs are read; their state is kept below the data directory unless a file was given.
fn xid_settings(config: &AgentConfig) -> XidSources {
    let mut hearing = config.xids.clone();
    let kept = || config.data.join("xids.json");
    hearing.state.get_or_insert_with(kept);
    hearing
}
