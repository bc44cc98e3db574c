//! The configuration of an agent beside a kubelet, and the checks of it that need no hardware.

use std::path::PathBuf;

use devices::dra::Specs;
use devices::mig::MigSettings;
use devices::mps::MpsConfig;
use devices::over_share::OverShare;
use devices::rdma::RdmaSettings;
use devices::settings::PluginSettings;
use devices::vendors::Vendor;
use devices::xids::XidSources;
use hardware::InventorySources;

use super::KubeletError;
use crate::metrics::Listen;

/// How a kubelet's pods get the machine's devices: one way only, because neither knows the
/// allocations of the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceDelivery {
    /// As extended resources that containers request by count.
    #[default]
    Plugin,
    /// By resource claims, which kube-scheduler allocates.
    Claims,
}

/// The configuration of an agent beside a kubelet.
#[derive(Clone, Debug)]
pub struct KubeletConfig {
    /// The kubelet's directory; [`super::KUBELET_DIR`] unless it was started with another.
    pub directory: PathBuf,
    /// The node's name in the cluster.
    pub node: String,
    /// Where GPUs are read from.
    pub source: InventorySources,
    /// A file that describes the expected network cards; by default, what most cards of a kind
    /// have.
    pub expected: Option<PathBuf>,
    /// Where device files are.
    pub dev: PathBuf,
    /// How pods get devices.
    pub given_by: DeviceDelivery,
    /// The directory in which container runtimes look for CDI specifications;
    /// [`devices::cdi::DIRECTORY`] unless they are configured otherwise.
    pub cdi: PathBuf,
    /// The device plugin's configuration. Without a MIG strategy: as a machine description says,
    /// else slices are offered by their profile.
    pub settings: PluginSettings,
    /// Other vendors' devices, each kind offered as its own resource.
    pub vendors: Vec<Vendor>,
    /// RDMA cards that containers share, each set of them offered as its own resource.
    pub rdma: RdmaSettings,
    /// Where the machine's root is mounted; other vendors' devices and RDMA cards' files are looked
    /// up below it.
    pub host_root: PathBuf,
    /// How GPUs are partitioned when the node's label requests it; not at all if absent.
    pub mig: Option<MigSettings>,
    /// Whether GPUs are offered to claims also in every slice into which they can be partitioned,
    /// and partitioned when a slice is allocated.
    pub partitions: bool,
    /// Whether the node takes part in RDMA tests between two nodes.
    pub pair: bool,
    /// Where XIDs of GPUs are read, and the action for each.
    pub xids: XidSources,
    /// How MPS daemons are started, for the GPUs that are shared through MPS.
    pub mps: MpsConfig,
    /// The action for containers that use more of a GPU than their share.
    pub over_share: OverShare,
    /// Where metrics are served; not served if absent.
    pub metrics: Option<Listen>,
}

impl KubeletConfig {
    /// The kubelet's pod resources socket.
    pub(crate) fn pod_resources(&self) -> PathBuf {
        self.directory.join("pod-resources/kubelet.sock")
    }

    /// Refuses to offer devices by count while claims hold some: after a change of this setting,
    /// running pods keep their claims' devices.
    pub(super) fn check_claims(&self) -> Result<(), KubeletError> {
        if self.given_by == DeviceDelivery::Claims {
            return Ok(());
        }
        let specs = Specs::new(&self.cdi).all();
        let prepared = specs.map_err(|source| KubeletError::Specs {
            path: self.cdi.clone(),
            source,
        })?;
        if prepared.is_empty() {
            return Ok(());
        }
        let names = prepared
            .iter()
            .map(|it| format!("{}/{}", it.namespace, it.name));
        Err(KubeletError::Claimed {
            claims: names.collect::<Vec<_>>().join(", "),
        })
    }
}
