//! Measurements of GPUs at one moment, as data. Owns the types, and the reading of a described
//! GPU; calls no driver. A value that a GPU does not measure is `None`, never 0.

use crate::description::{Card, GpuState};
use crate::fault_signs::NvlinkErrors;
use crate::inventory::{Ecc, Gpu};

/// One GPU's values, in the driver's own units.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuReading {
    /// Its UUID.
    pub id: String,
    /// Its place in the driver's order now.
    pub index: u32,
    /// The number in its device file's name.
    pub minor: Option<u32>,
    /// Its product name.
    pub model: String,
    /// The driver's version; empty if not known.
    pub driver: String,
    /// Its PCI address as sysfs has it, `0000:1b:00.0`.
    pub pci: String,
    /// The clock of its multiprocessors, MHz.
    pub sm_mhz: Option<u32>,
    /// Its memory's clock, MHz.
    pub memory_mhz: Option<u32>,
    /// Its temperature, degrees Celsius.
    pub celsius: Option<u32>,
    /// Its memory's temperature, degrees Celsius.
    pub memory_celsius: Option<u32>,
    /// Its power draw, milliwatts.
    pub milliwatts: Option<u32>,
    /// Its power limit, milliwatts.
    pub milliwatts_limit: Option<u32>,
    /// Its energy consumption since the driver was loaded, millijoules.
    pub energy_mj: Option<u64>,
    /// Percent of the last sampling period in which it computed.
    pub percent: Option<u32>,
    /// Percent in which its memory was read or written.
    pub memory_percent: Option<u32>,
    /// Percent in which it encoded video.
    pub encoder: Option<u32>,
    /// Percent in which it decoded video.
    pub decoder: Option<u32>,
    /// Its memory.
    pub memory: Option<DeviceMemory>,
    /// PCIe packets that were sent again.
    pub pcie_replays: Option<u32>,
    /// Data that all its NVLinks carried in both directions since the driver was loaded, KiB.
    pub nvlink_kib: Option<u64>,
    /// Errors on its NVLinks since the driver was loaded.
    pub nvlink_errors: Option<NvlinkErrors>,
    /// Why its clocks are low: NVML's bits.
    pub throttle: Option<u64>,
    /// Errors of its memory, if it has error correction.
    pub ecc: Option<Ecc>,
    /// Remapped rows of its memory, if it supports that.
    pub rows: Option<Rows>,
    /// Whether it is a virtual GPU with a licence; other GPUs need none.
    pub licensed: Option<bool>,
    /// Its performance counters since the previous reading; GPUs from Hopper on have some.
    pub counters: PerformanceCounters,
    /// Its slices, if it is in MIG mode.
    pub slices: Vec<SliceReading>,
    /// Its compute processes.
    pub processes: Vec<ProcessReading>,
}

/// A device's memory, MiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    /// In use.
    pub used: u64,
    /// Not in use.
    pub free: u64,
    /// Reserved by the driver; not part of the others.
    pub reserved: u64,
}

/// Rows of memory that were remapped in the card's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// For corrected errors.
    pub corrected: u64,
    /// For uncorrected errors.
    pub uncorrected: u64,
    /// Whether a remapping is pending until a reset.
    pub pending: bool,
    /// Whether a remapping has failed.
    pub failed: bool,
}

/// Values of performance counters (NVML's GPM).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PerformanceCounters {
    /// Percent of the time in which the multiprocessors had any work.
    pub graphics: Option<f64>,
    /// Percent in which their tensor cores had.
    pub tensor: Option<f64>,
    /// Percent of the memory's bandwidth in use.
    pub dram: Option<f64>,
    /// Sent over PCIe, MiB a second.
    pub pcie_sent: Option<f64>,
    /// Received over PCIe, MiB a second.
    pub pcie_received: Option<f64>,
}

impl PerformanceCounters {
    /// The counters by NVML's numbers (`NVML_GPM_METRIC_*`).
    pub const METRICS: [u32; 5] = [1, 5, 10, 20, 21];

    /// The counters with the given value of each of [`PerformanceCounters::METRICS`].
    pub fn of(value: impl Fn(u32) -> Option<f64>) -> PerformanceCounters {
        let [graphics, tensor, dram, pcie_sent, pcie_received] =
            PerformanceCounters::METRICS.map(value);
        PerformanceCounters {
            graphics,
            tensor,
            dram,
            pcie_sent,
            pcie_received,
        }
    }
}

/// A slice's values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SliceReading {
    /// Its UUID.
    pub id: String,
    /// Its profile: `1g.10gb`.
    pub profile: String,
    /// The number of its GPU instance; not known of described slices.
    pub instance: Option<u32>,
    /// Its memory.
    pub memory: Option<DeviceMemory>,
}

/// A process that computes on a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessReading {
    /// Its number on the machine.
    pub pid: u32,
    /// Its memory on the GPU, MiB.
    pub memory_mib: Option<u64>,
    /// Percent of the time since the previous reading in which it computed.
    pub percent: Option<u32>,
}

impl GpuReading {
    /// A described GPU's reading; none for a lost GPU.
    pub(crate) fn described(gpu: &Gpu, card: &Card) -> Option<GpuReading> {
        let state = &card.state;
        if state.lost {
            return None;
        }
        let corrects = gpu.ecc.filter(|ecc| ecc.enabled);
        let used = gpu.load.memory_mib.unwrap_or(0);
        Some(GpuReading {
            id: gpu.id.clone(),
            index: gpu.index,
            minor: gpu.minor.or(Some(gpu.index)),
            model: gpu.model.clone(),
            driver: gpu.driver.clone(),
            pci: gpu.pci.clone(),
            sm_mhz: state.sm_mhz,
            memory_mhz: state.memory_mhz,
            celsius: gpu.load.celsius,
            memory_celsius: state.memory_celsius,
            milliwatts: gpu.load.milliwatts,
            milliwatts_limit: gpu.load.milliwatts_limit,
            energy_mj: state.energy_mj,
            percent: gpu.load.percent,
            memory_percent: (gpu.load.percent).map(|_| state.memory_utilisation.unwrap_or(0)),
            encoder: state.encoder,
            decoder: state.decoder,
            memory: Some(DeviceMemory {
                used,
                free: gpu.memory_mib.saturating_sub(used),
                reserved: 0,
            }),
            pcie_replays: Some(state.pcie_replays),
            nvlink_kib: state.nvlink_kib,
            nvlink_errors: gpu.signs.nvlink_errors,
            throttle: Some(state.throttle),
            ecc: corrects,
            rows: corrects.map(|_| Rows {
                corrected: state.remapped[0].into(),
                uncorrected: state.remapped[1].into(),
                pending: state.remap_pending,
                failed: state.remap_failed,
            }),
            licensed: Some(state.licensed),
            counters: shown(gpu, state),
            slices: slices(gpu),
            processes: processes(state),
        })
    }
}

fn shown(gpu: &Gpu, state: &GpuState) -> PerformanceCounters {
    let major = gpu.compute_capability.split('.').next();
    let hopper = major.and_then(|major| major.parse::<u32>().ok());
    if hopper.is_none_or(|major| major < 9) {
        return PerformanceCounters::default();
    }
    PerformanceCounters::of(|number| {
        let metric = state.gpm.iter().find(|metric| metric.metric == number);
        metric.map(|metric| metric.value)
    })
}

fn slices(gpu: &Gpu) -> Vec<SliceReading> {
    let all = gpu.slices.iter().flatten();
    all.map(|slice| SliceReading {
        id: slice.id.clone(),
        profile: slice.profile.clone(),
        instance: None,
        memory: Some(DeviceMemory {
            free: slice.memory_mib,
            ..DeviceMemory::default()
        }),
    })
    .collect()
}

fn processes(state: &GpuState) -> Vec<ProcessReading> {
    let all = state.processes.iter().map(|process| ProcessReading {
        pid: process.pid,
        memory_mib: Some(process.memory_mib),
        percent: Some(process.utilisation),
    });
    let mut all: Vec<ProcessReading> = all.collect();
    all.sort_by_key(|process| process.pid);
    all
}
