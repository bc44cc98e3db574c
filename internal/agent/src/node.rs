//! State that all pods of a node share: directories, engines, hardware, and messages to the server.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use devices::fabric::FabricWatch;
use devices::inventory::NodeHardware;
use devices::mps::{self, MpsConfig, MpsDaemonStates, MpsPlan};
use devices::nccl::TopologyFile;
use devices::rdma::NodeRdmaCards;
use devices::sharing::Sharing;
use devices::vendors::DeviceStock;
use devices::xids::XidMonitor;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use resources::alerts::AlertWatcher;
use tokio::sync::watch;

use crate::cluster_services::ClusterServices;
use crate::container::PodLimits;
use crate::device_monitor::DeviceMonitor;
use crate::disk::DataLayout;
use crate::engine::ContainerEngine;
use crate::eviction::Pressure;
use crate::fields::NodeFieldValues;
use crate::gpu_loads::LatestLoads;
use crate::lifecycle::StartBlock;
use crate::logs::LogStore;
use crate::network_policies::NodeNetworkPolicies;
use crate::node_fault::NodeFault;
use crate::outbox::Outbox;
use crate::pod_network::NodePodNetworks;
use crate::tenants::Tenants;

/// The node.
pub struct AgentNode {
    /// The agent's directories.
    pub layout: DataLayout,
    /// The node's facts that its pods can read.
    pub facts: NodeFieldValues,
    /// The hardware at the last inventory.
    pub machine: Mutex<NodeHardware>,
    /// How its GPUs are shared.
    pub shared: GpuSharing,
    /// The XIDs of its GPUs.
    pub xids: Arc<Mutex<XidMonitor>>,
    /// The state of its RDMA network.
    pub fabric: Arc<FabricWatch>,
    /// The RDMA cards that containers share.
    pub cards: NodeRdmaCards,
    /// The devices of other vendors.
    pub described: DeviceStock,
    /// The file with the PCIe tree for NCCL.
    pub topology: TopologyFile,
    /// Reads the hardware; one session at a time.
    pub device_monitor: tokio::sync::Mutex<DeviceMonitor>,
    /// The alerts that are active on its GPUs.
    pub alerts: Mutex<AlertWatcher>,
    /// The load of its GPUs at the last look.
    pub loads: Mutex<LatestLoads>,
    /// When this agent started, seconds since 1970.
    pub started: i64,
    /// Messages for the server.
    pub outbox: Outbox,
    /// Its pods' logs.
    pub logs: LogStore,
    /// The directory of device files.
    pub dev: PathBuf,
    /// The accounts that its pods run as.
    pub tenants: Tenants,
    /// The limits of every pod.
    pub bounds: PodLimits,
    /// Why the node can't start processes, if it can't.
    pub fault: NodeFault,
    /// The disk bytes that pods may request, if known.
    pub disk_bytes: Option<u64>,
    /// Whether its disk is too full.
    pub pressure: Pressure,
    /// The networks of its pods.
    pub networks: NodePodNetworks,
    /// The NetworkPolicies' rules for its pods.
    pub policies: NodeNetworkPolicies,
    /// The cluster's Services.
    pub services: ClusterServices,
    /// Runs processes.
    pub process: Arc<dyn ContainerEngine>,
    /// Runs images.
    pub images: Option<Arc<dyn ContainerEngine>>,
    /// Whether the administrator lets commands of pods with images run on the host.
    pub host_images: bool,
    /// Held while this node takes part in a test between two nodes.
    pub pairing: Arc<tokio::sync::Semaphore>,
    /// The pods with running processes, by uid.
    pub running: Mutex<BTreeMap<String, bool>>,
}

impl AgentNode {
    /// The engine that runs a pod's containers, or why there is none.
    pub fn engine_for(&self, pod: &Pod) -> Result<Arc<dyn ContainerEngine>, StartBlock> {
        let Some(image) = first_image(pod) else {
            return Ok(self.process.clone());
        };
        if let Some(images) = &self.images {
            return Ok(images.clone());
        }
        if self.host_images {
            return Ok(self.process.clone());
        }
        Err(StartBlock {
            reason: "NoContainerRuntime".to_owned(),
            message: format!(
                "node {:?} has no container runtime for image {image:?}; start its agent with a \
                 CRI socket, allow the commands of images on the host there, or leave out the \
                 image to run the command as a process",
                self.facts.name
            ),
        })
    }

    /// The hardware at the last inventory, and how its GPUs are shared now.
    pub fn machine_now(&self) -> NodeHardware {
        let mut machine = self.machine.lock().clone();
        machine.mps = self.shared.mps_states(&machine);
        machine
    }

    /// All engines of the node.
    pub fn engines(&self) -> Vec<Arc<dyn ContainerEngine>> {
        let mut engines = vec![self.process.clone()];
        engines.extend(self.images.clone());
        engines
    }

    /// Records whether a pod still has running processes.
    pub fn note_running(&self, uid: &str, running: bool) {
        self.running.lock().insert(uid.to_owned(), running);
    }
}

/// How a node's GPUs are shared.
pub struct GpuSharing {
    /// Which GPUs are shared, and how.
    pub sharing: Sharing,
    /// How MPS daemons are started.
    pub mps: MpsConfig,
    /// The GPUs that need a daemon.
    pub want: watch::Sender<MpsPlan>,
    /// The state of the daemons.
    pub stands: watch::Receiver<MpsDaemonStates>,
}

impl GpuSharing {
    /// Requests MPS for the GPUs of a machine that are configured for it.
    pub fn observe(&self, machine: &NodeHardware) {
        let now = mps::wanted(&machine.inventory, &self.sharing);
        self.want.send_if_modified(|before| {
            let changed = *before != now;
            *before = now;
            changed
        });
    }

    /// The state of a machine's GPUs that are shared by MPS.
    fn mps_states(&self, machine: &NodeHardware) -> MpsDaemonStates {
        let wanted = mps::wanted(&machine.inventory, &self.sharing);
        mps::known_or_waiting(&wanted, &self.stands.borrow(), &self.mps)
    }
}

/// The first image that a pod names; `None` for a pod of processes.
pub fn first_image(pod: &Pod) -> Option<&str> {
    let spec = pod.spec.as_ref()?;
    let init = spec.init_containers.iter().flatten();
    init.chain(&spec.containers)
        .filter_map(|container| container.image.as_deref())
        .find(|image| !image.is_empty())
}
