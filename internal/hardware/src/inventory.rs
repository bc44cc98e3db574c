//! The inventory as data. Owns the types; finds out nothing.

use serde::{Deserialize, Serialize};

use crate::signs::Signs;
use crate::wiring::{Bandwidth, Nic, PcieLink, PcieSwitch};

/// What a machine has.
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
    /// What goes between two of its sockets; `None` if not known.
    #[serde(default)]
    pub between_sockets: Option<Bandwidth>,
    /// PCIe switches on the ways to GPUs and network cards, by address.
    #[serde(default)]
    pub switches: Vec<PcieSwitch>,
    /// GPUs, by index.
    pub gpus: Vec<Gpu>,
    /// Network cards that do RDMA, by name.
    #[serde(default)]
    pub nics: Vec<Nic>,
    /// The newest CUDA version that the driver can, `12.4`; empty if not known.
    #[serde(default)]
    pub cuda: String,
    /// How slices of GPUs are to be given out: `none`, `single`, `mixed`, or empty where nobody says.
    #[serde(default)]
    pub mig_strategy: String,
    /// Where the GPUs were learned of.
    pub origin: Origin,
    /// What could not be found out though it seems to be there; in sentences.
    pub warnings: Vec<String>,
    /// What is wrong with it beside its GPUs, and does not stop it; in sentences.
    #[serde(default)]
    pub concerns: Vec<String>,
    /// Why work that spans machines can't be expected to go on here; empty if nothing says so.
    #[serde(default)]
    pub fabric: String,
}

/// Where GPUs were learned of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// There are none.
    #[default]
    None,
    /// The driver's library.
    Nvml,
    /// A machine description: they may not exist.
    Described,
}

impl Origin {
    /// In one word.
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
    /// Its UUID, `GPU-...`: the same as long as the card is.
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
    /// The PCIe switch or the host's bridge that it hangs on; empty if not known.
    #[serde(default)]
    pub under: String,
    /// Its PCIe link.
    #[serde(default)]
    pub pcie: PcieLink,
    /// The NUMA node of its PCI slot, where the machine says so.
    pub numa: Option<u32>,
    /// Its memory's error correction; `None` where it has none.
    #[serde(default)]
    pub ecc: Option<Ecc>,
    /// How far it is part of a fabric of NVLink switches.
    #[serde(default)]
    pub fabric: Fabric,
    /// Its NVLink domain's UUID and its clique in that, `UUID.N`, once it has joined one that spans
    /// machines; empty otherwise.
    #[serde(default)]
    pub clique: String,
    /// What its PCI class is for: `compute` or `graphics`; empty if not known.
    #[serde(default)]
    pub mode: String,
    /// Whether it answers and may be given out.
    pub healthy: bool,
    /// Why it is not healthy; empty if it is.
    pub problem: String,
    /// Whether what runs on it can't go on; never of one that is healthy.
    #[serde(default)]
    pub failed: bool,
    /// What is wrong with it and does not stop it.
    #[serde(default)]
    pub concerns: Vec<String>,
    /// What it shows of faults.
    #[serde(default)]
    pub signs: Signs,
    /// What it is doing; what the driver does not say is not known.
    pub load: Load,
    /// Its slices, where it is in MIG mode.
    #[serde(default)]
    pub slices: Option<Vec<Slice>>,
    /// Its links to the machine's other GPUs, best kind only.
    pub links: Vec<Link>,
}

/// The error correction of a GPU's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ecc {
    /// Whether it is on.
    pub enabled: bool,
    /// Errors corrected in the card's life.
    pub corrected: u64,
    /// Errors that could not be corrected in the card's life.
    pub uncorrected: u64,
}

/// Whether a GPU has joined its NVLink fabric; before that its switched links carry nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fabric {
    /// It need not: it has no switches, or such as need no registration.
    #[default]
    None,
    /// It must, and has not.
    Starting,
    /// It has.
    Completed,
}

/// What a GPU is doing now, in the driver's own units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Percent of the last sampling period in which it computed.
    pub percent: Option<u32>,
    /// Memory in use, MiB.
    pub memory_mib: Option<u64>,
    /// Its temperature, degrees Celsius.
    pub celsius: Option<u32>,
    /// What it draws, thousandths of watts.
    pub milliwatts: Option<u32>,
    /// What it may draw, thousandths of watts.
    pub milliwatts_limit: Option<u32>,
}

/// A slice of a GPU that the driver cut (MIG).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    /// Its UUID, `MIG-...`.
    pub id: String,
    /// How much of the GPU it is: `1g.10gb`.
    pub profile: String,
    /// Its memory, MiB.
    pub memory_mib: u64,
    /// The numbers in the names of the device files by which it is reached beside its GPU's,
    /// `/dev/nvidia-caps/nvidia-capN`; none where the driver doesn't say, and of described ones.
    #[serde(default)]
    pub capabilities: Vec<u32>,
}

/// A GPU's path to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// The other's id.
    pub to: String,
    /// What the path is.
    pub kind: LinkKind,
    /// How many NVLinks it has: direct ones, or to the switch; 0 for other kinds.
    pub count: u32,
}

/// Kinds of path, best first; the names are those `nvidia-smi topo` uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum LinkKind {
    /// NVLinks straight to the other.
    Nvl,
    /// NVLinks to a switch that joins both.
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
    /// As `nvidia-smi topo` writes it, but for the two kinds of NVLink.
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
