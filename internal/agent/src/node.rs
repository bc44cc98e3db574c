//! What all pods of a node share: where things lie, what runs containers, what is to be told.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use resources::alerts::Watcher;
use tokio::sync::watch;

use crate::container::Bounds;
use crate::disk::Layout;
use crate::engine::Engine;
use crate::eviction::Pressure;
use crate::eyes::Eyes;
use crate::fabric::Fabric;
use crate::fields::NodeFacts;
use crate::inventory::Machine;
use crate::kubelet::Sharing;
use crate::lifecycle::Hold;
use crate::logs::LogStore;
use crate::mps::{self, MpsConfig, Stands, Wanted};
use crate::nccl::TopologyFile;
use crate::outbox::Outbox;
use crate::rdma::Cards;
use crate::tenants::Tenants;
use crate::unfit::Unfit;
use crate::vendors::Described;
use crate::xids::Xids;

/// The node.
pub struct Node {
    /// Where things lie.
    pub layout: Layout,
    /// What its pods may know of it.
    pub facts: NodeFacts,
    /// Its hardware, as last looked at.
    pub machine: Mutex<Machine>,
    /// How its GPUs are shared.
    pub shared: Shared,
    /// What the driver reported of its GPUs.
    pub xids: Arc<Mutex<Xids>>,
    /// How its RDMA stands.
    pub fabric: Arc<Fabric>,
    /// Its RDMA cards that containers share.
    pub cards: Cards,
    /// Its devices of other vendors.
    pub described: Described,
    /// What NCCL is told of its PCIe tree.
    pub topology: TopologyFile,
    /// Who looks at its hardware; one session at a time.
    pub eyes: tokio::sync::Mutex<Eyes>,
    /// Which alerts stand on its GPUs.
    pub alerts: Mutex<Watcher>,
    /// When this agent started, seconds since 1970.
    pub started: i64,
    /// What is to be told to the server.
    pub outbox: Outbox,
    /// Its pods' logs.
    pub logs: LogStore,
    /// Where device files are.
    pub dev: PathBuf,
    /// Whom its pods run as.
    pub tenants: Tenants,
    /// What holds every pod.
    pub bounds: Bounds,
    /// Why it can't start processes, where it can't.
    pub unfit: Unfit,
    /// What pods may request of its disk, in bytes, where that could be found out.
    pub disk_bytes: Option<u64>,
    /// Whether its disk is too full.
    pub pressure: Pressure,
    /// Runs processes.
    pub process: Arc<dyn Engine>,
    /// Runs images.
    pub images: Option<Arc<dyn Engine>>,
    /// The administrator lets commands of pods with images run on the host.
    pub host_images: bool,
    /// Held by the test between two nodes that this one takes part in.
    pub pairing: Arc<tokio::sync::Semaphore>,
    /// Which pods still have something running, by uid.
    pub running: Mutex<BTreeMap<String, bool>>,
}

impl Node {
    /// What runs a pod's containers here, or why nothing does.
    pub fn engine_for(&self, pod: &Pod) -> Result<Arc<dyn Engine>, Hold> {
        let Some(image) = first_image(pod) else {
            return Ok(self.process.clone());
        };
        if let Some(images) = &self.images {
            return Ok(images.clone());
        }
        if self.host_images {
            return Ok(self.process.clone());
        }
        Err(Hold {
            reason: "NoContainerRuntime".to_owned(),
            message: format!(
                "node {:?} has no container runtime for image {image:?}; start its agent with a \
                 CRI socket, allow the commands of images on the host there, or leave out the \
                 image to run the command as a process",
                self.facts.name
            ),
        })
    }

    /// Its hardware, as last looked at, and how its GPUs are shared now.
    pub fn machine_now(&self) -> Machine {
        let mut machine = self.machine.lock().clone();
        machine.mps = self.shared.standing(&machine);
        machine
    }

    /// Every engine there is.
    pub fn engines(&self) -> Vec<Arc<dyn Engine>> {
        let mut engines = vec![self.process.clone()];
        engines.extend(self.images.clone());
        engines
    }

    /// Notes whether something of a pod still runs.
    pub fn note_running(&self, uid: &str, running: bool) {
        self.running.lock().insert(uid.to_owned(), running);
    }
}

/// How a node's GPUs are shared.
pub struct Shared {
    /// Which, and by what.
    pub sharing: Sharing,
    /// Where MPS daemons come from.
    pub mps: MpsConfig,
    /// Which GPUs are to have one.
    pub want: watch::Sender<Wanted>,
    /// How these stand.
    pub stands: watch::Receiver<Stands>,
    /// Whether nobody wants any more.
    pub ended: watch::Sender<bool>,
}

impl Shared {
    /// Wants MPS on those GPUs of a machine that are to be shared so.
    pub fn look(&self, machine: &Machine) {
        let now = mps::wanted(&machine.inventory, &self.sharing);
        self.want.send_if_modified(|before| {
            let changed = *before != now;
            *before = now;
            changed
        });
    }

    /// Asks for no daemon any more, so that those end that nobody uses.
    pub fn stop(&self) {
        self.ended.send_replace(true);
    }

    /// How a machine's GPUs that are shared by MPS stand.
    fn standing(&self, machine: &Machine) -> Stands {
        let wanted = mps::wanted(&machine.inventory, &self.sharing);
        mps::standing(&wanted, &self.stands.borrow(), &self.mps)
    }
}

/// The first image that a pod names; none for a pod of processes.
pub fn first_image(pod: &Pod) -> Option<&str> {
    let spec = pod.spec.as_ref()?;
    let init = spec.init_containers.iter().flatten();
    init.chain(&spec.containers)
        .filter_map(|container| container.image.as_deref())
        .find(|image| !image.is_empty())
}
