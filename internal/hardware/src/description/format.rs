//! The tables of a machine description, as written in the file. Owns their names and defaults;
//! `check` validates their values.

use serde::{Deserialize, Serialize};
use toml::Spanned;

use crate::inventory::FabricState;

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DescriptionFile {
    pub machine: MachineTable,
    pub numa: Vec<Spanned<NumaTable>>,
    pub switch: Vec<Spanned<SwitchTable>>,
    pub gpu: Vec<Spanned<GpuTable>>,
    pub nvlink: Vec<Spanned<NvlinkTable>>,
    pub nic: Vec<Spanned<NicTable>>,
    pub state: Vec<Spanned<GpuState>>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MachineTable {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub os: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub between_sockets_gbs: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub driver: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cuda: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mig_strategy: String,
    #[serde(skip_serializing_if = "is_false")]
    pub driver_gone: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NumaTable {
    pub id: u32,
    pub cpus: String,
    #[serde(default)]
    pub memory_mib: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchTable {
    pub address: String,
    pub under: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa: Option<u32>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pcie_generation: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pcie_width: u32,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuTable {
    pub model: String,
    pub memory_mib: u64,
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub count: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa: Option<u32>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub compute_capability: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub id: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub minor: Vec<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pci: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub under: Vec<String>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pcie_generation: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pcie_width: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecc: Option<bool>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub nvlinks: u32,
    #[serde(default, skip_serializing_if = "is_false")]
    pub nvswitch: bool,
    #[serde(default, skip_serializing_if = "is_unmanaged")]
    pub fabric: FabricState,
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub healthy: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub utilisation: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_used_mib: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub celsius: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watts_limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig: Option<Vec<String>>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvlinkTable {
    pub gpus: [usize; 2],
    pub links: u32,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicTable {
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub model: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub firmware: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pci: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub under: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa: Option<u32>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pcie_generation: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pcie_width: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub netdevs: Vec<String>,
    #[serde(default)]
    pub ports: Vec<PortTable>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortTable {
    pub gbits: u32,
    pub layer: String,
    #[serde(default = "active")]
    pub state: String,
    #[serde(default = "link_up")]
    pub physical: String,
}

/// The current load and faults of one GPU; absent fields are as in its `[[gpu]]` table, or those
/// of an idle card.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuState {
    /// The GPU's place in the file, from 0.
    pub gpu: usize,
    /// Whether it has fallen off the bus.
    #[serde(default)]
    pub lost: bool,
    /// The XIDs that the driver has reported for it, in order.
    #[serde(default)]
    pub xids: Vec<u64>,
    /// The recovery action that `nvidia-smi` shows: 0 none, 1 reset, 2 reboot, 3 drain, 4 drain
    /// and reset.
    #[serde(default)]
    pub recovery: u32,
    /// Whether its driver does not report a recovery action.
    #[serde(default)]
    pub old_driver: bool,
    /// Percent of the time in which it computed.
    pub utilisation: Option<u32>,
    /// Percent of the time in which its memory was read or written.
    pub memory_utilisation: Option<u32>,
    /// Percent in which it encoded video.
    pub encoder: Option<u32>,
    /// Percent in which it decoded video.
    pub decoder: Option<u32>,
    /// Memory in use, MiB.
    pub memory_used_mib: Option<u64>,
    /// Its temperature, degrees Celsius.
    pub celsius: Option<u32>,
    /// Its memory's temperature, degrees Celsius.
    pub memory_celsius: Option<u32>,
    /// Its power draw, watts.
    pub watts: Option<u32>,
    /// Its power limit, watts.
    pub watts_limit: Option<u32>,
    /// Its energy consumption since the driver was loaded, millijoules.
    pub energy_mj: Option<u64>,
    /// The clock of its multiprocessors, MHz.
    pub sm_mhz: Option<u32>,
    /// Its memory's clock, MHz.
    pub memory_mhz: Option<u32>,
    /// Why its clocks are low: NVML's bits.
    #[serde(default)]
    pub throttle: u64,
    /// Memory errors corrected in the card's life.
    #[serde(default)]
    pub corrected: u64,
    /// Memory errors not corrected in the card's life.
    #[serde(default)]
    pub uncorrected: u64,
    /// Rows remapped for corrected and for uncorrected errors.
    #[serde(default)]
    pub remapped: [u32; 2],
    /// Whether a row remapping is pending until a reset.
    #[serde(default)]
    pub remap_pending: bool,
    /// Whether a row remapping has failed.
    #[serde(default)]
    pub remap_failed: bool,
    /// Whether it is a virtual GPU with a licence.
    #[serde(default)]
    pub licensed: bool,
    /// Data that its NVLinks carried in both directions since the driver was loaded, KiB.
    pub nvlink_kib: Option<u64>,
    /// PCIe packets that were sent again.
    #[serde(default)]
    pub pcie_replays: u32,
    /// The generation that its PCIe link runs at.
    pub pcie_generation: Option<u32>,
    /// The lanes that its PCIe link has.
    pub pcie_width: Option<u32>,
    /// Errors on its NVLinks since the driver was loaded: flow control CRC errors, data CRC
    /// errors, replays, recoveries.
    pub nvlink_errors: Option<[u64; 4]>,
    /// The numbers of its NVLinks that are down.
    #[serde(default)]
    pub nvlinks_down: Vec<usize>,
    /// Its state in its fabric.
    pub fabric: Option<FabricState>,
    /// Its slices, instead of those of its `[[gpu]]` table; an empty list is a GPU in MIG mode
    /// without slices.
    pub mig: Option<Vec<String>>,
    /// Whether a change of its MIG mode is pending until this is false again, as until a reset.
    #[serde(default)]
    pub mig_waits: bool,
    /// The profiles whose instances its driver refuses to create.
    #[serde(default)]
    pub mig_refused: Vec<String>,
    /// Its compute processes.
    #[serde(default)]
    pub processes: Vec<Process>,
    /// The values of its performance counters.
    #[serde(default)]
    pub gpm: Vec<Metric>,
}

/// A value of NVML's performance monitoring (GPM), which GPUs from Hopper on have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metric {
    /// Its number, `NVML_GPM_METRIC_*`.
    pub metric: u32,
    /// Its value: percent, or MiB a second.
    pub value: f64,
}

/// A process that uses a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its name; empty if not known.
    #[serde(default)]
    pub name: String,
    /// Its memory on the GPU.
    pub memory_mib: u64,
    /// Percent of the time in which it computed.
    #[serde(default)]
    pub utilisation: u32,
    /// Whether it uses the GPU through the MPS server.
    #[serde(default)]
    pub mps: bool,
}

fn one() -> usize {
    1
}

fn yes() -> bool {
    true
}

fn active() -> String {
    "ACTIVE".into()
}

fn link_up() -> String {
    "LinkUp".into()
}

fn is_one(count: &usize) -> bool {
    *count == 1
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_true(it: &bool) -> bool {
    *it
}

fn is_false(it: &bool) -> bool {
    !*it
}

fn is_unmanaged(fabric: &FabricState) -> bool {
    *fabric == FabricState::None
}
