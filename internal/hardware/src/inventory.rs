//! The inventory as data. Owns the types; detects nothing.

use serde::{Deserialize, Serialize};

use crate::fault_signs::Signs;
use crate::wiring::{Bandwidth, Nic, PcieLink, PcieSwitch};

/// A machine's hardware.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// Its host name.
    pub hostname: String,
    /// Its kernel's release, for instance `6.1.0-31-amd64`.
    pub kernel: String,
    /// Its operating system as it names itself, for instance `Debian GNU/Linux 12 (bookworm)`.
    pub os: String,
    /// The machine's product name, from its firmware; empty if not known.
    #[serde(default)]
    pub product: String,
    /// CPUs online (hardware threads).
    pub cpus: u32,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// NUMA nodes, by number; one on machines without.
    pub numa_nodes: Vec<NumaNode>,
    /// Its processors' model as they name it; empty if not known.
    #[serde(default)]
    pub cpu_model: String,
    /// The bandwidth between two of its sockets; `None` if not known.
    #[serde(default)]
    pub between_sockets: Option<Bandwidth>,
    /// PCIe switches on the paths to GPUs and network cards, by address.
    #[serde(default)]
    pub switches: Vec<PcieSwitch>,
    /// GPUs, by index.
    pub gpus: Vec<Gpu>,
    /// Network cards that do RDMA, by name.
    #[serde(default)]
    pub nics: Vec<Nic>,
    /// The newest CUDA version that the driver supports, `12.4`; empty if not known.
    #[serde(default)]
    pub cuda: String,
    /// The strategy for offering MIG slices: `none`, `single`, `mixed`, or empty if not configured.
    #[serde(default)]
    pub mig_strategy: String,
    /// The source of the GPU data.
    pub origin: Origin,
    /// Data that could not be read although the hardware seems to exist; in sentences.
    pub warnings: Vec<String>,
    /// Faults other than those of its GPUs that do not stop it; in sentences.
    #[serde(default)]
    pub concerns: Vec<String>,
    /// Why work that spans machines is not expected to run here; empty without a known reason.
    #[serde(default)]
    pub fabric: String,
}

/// The source of the GPU data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// There are no GPUs.
    #[default]
    None,
    /// The driver's library.
    Nvml,
    /// A machine description: the GPUs may not exist.
    Described,
}

impl Origin {
    /// The source as one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Origin::None => "none",
            Origin::Nvml => "nvml",
            Origin::Described => "described",
        }
    }
}

/// A NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumaNode {
    /// Its number.
    pub id: u32,
    /// Its CPUs' numbers, ascending.
    pub cpus: Vec<u32>,
    /// Its memory, bytes.
    pub memory_bytes: u64,
}

/// A GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// Its UUID, `GPU-...`: constant for the life of the card.
    pub id: String,
    /// Its place in the driver's order now.
    pub index: u32,
    /// The number in its device file's name, `/dev/nvidiaN`; absent for described ones.
    pub minor: Option<u32>,
    /// Its product name, for instance `NVIDIA H100 80GB HBM3`.
    pub model: String,
    /// Its memory, MiB.
    pub memory_mib: u64,
    /// Its CUDA compute capability, for instance `9.0`; empty if not known.
    pub compute_capability: String,
    /// The driver's version; empty if not known.
    pub driver: String,
    /// Its PCI address, `0000:1b:00.0`.
    pub pci: String,
    /// The PCIe switch or host bridge above it; empty if not known.
    #[serde(default)]
    pub under: String,
    /// Its PCIe link.
    #[serde(default)]
    pub pcie: PcieLink,
    /// The NUMA node of its PCI slot, if the machine reports it.
    pub numa: Option<u32>,
    /// Its memory's error correction; `None` if it has none.
    #[serde(default)]
    pub ecc: Option<Ecc>,
    /// Its state in a fabric of NVLink switches.
    #[serde(default)]
    pub fabric: FabricState,
    /// Its NVLink domain's UUID and its clique in that domain, `UUID.N`, once it has joined a domain that spans
    /// machines; empty otherwise.
    #[serde(default)]
    pub clique: String,
    /// The purpose of its PCI class: `compute` or `graphics`; empty if not known.
    #[serde(default)]
    pub mode: String,
    /// Whether it answers and may be allocated.
    pub healthy: bool,
    /// Why it is not healthy; empty if it is.
    pub problem: String,
    /// Whether running work on it cannot continue; always false if it is healthy.
    #[serde(default)]
    pub failed: bool,
    /// A fault that does not stop it.
    #[serde(default)]
    pub concerns: Vec<String>,
    /// Its signs of faults.
    #[serde(default)]
    pub signs: Signs,
    /// Its load; values that the driver does not report are unknown.
    pub load: DriverLoad,
    /// Its slices, if it is in MIG mode.
    #[serde(default)]
    pub slices: Option<Vec<MigDevice>>,
    /// Its links to the machine's other GPUs, each of the best kind only.
    pub links: Vec<GpuPath>,
}

/// The error correction of a GPU's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ecc {
    /// Whether it is on.
    pub enabled: bool,
    /// Corrected errors in the card's life.
    pub corrected: u64,
    /// Uncorrected errors in the card's life.
    pub uncorrected: u64,
}

/// Whether a GPU has joined its NVLink fabric; before that, its links to switches carry no data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FabricState {
    /// It does not need to: it has no switches, or switches without registration.
    #[default]
    None,
    /// It needs to, and has not joined.
    Starting,
    /// It has joined.
    Completed,
}

/// A GPU's current load, in the driver's own units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverLoad {
    /// Percent of the last sampling period in which it computed.
    pub percent: Option<u32>,
    /// Memory in use, MiB.
    pub memory_mib: Option<u64>,
    /// Its temperature, degrees Celsius.
    pub celsius: Option<u32>,
    /// Its power draw, milliwatts.
    pub milliwatts: Option<u32>,
    /// Its power limit, milliwatts.
    pub milliwatts_limit: Option<u32>,
}

/// A MIG slice of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigDevice {
    /// Its UUID, `MIG-...`.
    pub id: String,
    /// Its profile: `1g.10gb`.
    pub profile: String,
    /// Its memory, MiB.
    pub memory_mib: u64,
    /// The numbers in the names of the device files that it needs besides its GPU's, `/dev/nvidia-caps/nvidia-capN`;
    /// none if the driver does not list them, and for described slices.
    #[serde(default)]
    pub capabilities: Vec<u32>,
}

/// A GPU's path to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuPath {
    /// The other's id.
    pub to: String,
    /// Its kind.
    pub kind: LinkKind,
    /// Number of its NVLinks: direct ones, or to the switch; 0 for other kinds.
    pub count: u32,
}

/// Kinds of path, best first; the names are those `nvidia-smi topo` uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum LinkKind {
    /// NVLinks directly between the GPUs.
    Nvl,
    /// NVLinks to a switch that connects both.
    Nvs,
    /// One PCIe switch.
    Pix,
    /// Several PCIe switches.
    Pxb,
    /// The host's PCIe bridge.
    Phb,
    /// Several bridges of one NUMA node.
    Node,
    /// The link between sockets.
    Sys,
}

impl LinkKind {
    /// The name in `nvidia-smi topo`, except for the two kinds of NVLink.
    pub fn as_str(self) -> &'static str {
        match self {
            LinkKind::Nvl => "NVL",
            LinkKind::Nvs => "NVS",
            LinkKind::Pix => "PIX",
            LinkKind::Pxb => "PXB",
            LinkKind::Phb => "PHB",
            LinkKind::Node => "NODE",
            LinkKind::Sys => "SYS",
        }
    }
}
