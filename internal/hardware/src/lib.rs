//! A machine's hardware: CPUs, memory, NUMA nodes, GPUs and their links, as one [`Inventory`].
//!
//! Owns the detection: CPUs and memory from sysfs and proc ([`system`]), the PCIe tree and network
//! cards from sysfs ([`sysfs`]), GPUs from NVML ([`gpus`]); or everything from a machine
//! description in a file ([`description`]), which replaces GPUs in tests and demos; and the checks
//! of RDMA ([`rdma`]). Also the pure evaluation of the result: paths and their bandwidths
//! ([`graph`]), as a table ([`matrix`]) and in NCCL's format ([`nccl`]).
//!
//! Must not: decide what runs where, or what a GPU's state means for a pod.

mod capabilities;
pub mod choice;
pub mod compute_mode;
pub mod description;
pub mod error;
pub mod events;
pub mod fault_signs;
pub mod gpus;
pub mod graph;
pub mod inventory;
pub mod kmsg;
pub mod matrix;
pub mod meter;
pub mod mig;
pub mod mig_partitioner;
pub mod nccl;
pub mod partition;
pub mod pcie;
pub mod ports;
pub mod rdma;
pub mod reading;
pub mod ring;
mod sources;
pub mod sysfs;
pub mod system;
pub mod wiring;

pub use choice::GpuChooser;
pub use error::HardwareError;
pub use events::GpuEvents;
pub use fault_signs::{GpuFault, NvlinkErrors, Recovery, Signs};
pub use graph::PathGraph;
pub use inventory::{
    DriverLoad, Ecc, FabricState, Gpu, GpuPath, Inventory, LinkKind, MigDevice, NumaNode, Origin,
};
pub use meter::Meter;
pub use mig_partitioner::MigPartitioner;
pub use reading::GpuReading;
pub use sources::InventorySources;
pub use wiring::{Bandwidth, CardPort, Nic, PcieLink, PcieSwitch};

/// Detects the hardware once. For repeated detection, keep a [`MachineProbe`].
pub fn discover(source: InventorySources) -> Result<Inventory, HardwareError> {
    MachineProbe::new(source).observe()
}

/// Detects the hardware repeatedly without opening the GPU driver's library each time.
pub struct MachineProbe {
    source: InventorySources,
    driver: gpus::NvmlDriver,
}

impl MachineProbe {
    /// Opens nothing yet.
    pub fn new(source: InventorySources) -> MachineProbe {
        let driver = match &source.library {
            Some(library) => gpus::NvmlDriver::with_library(library.clone()),
            None => gpus::NvmlDriver::default(),
        };
        MachineProbe { source, driver }
    }

    /// The current hardware. A description is read again each time, so that an edit of the file (a
    /// GPU that becomes unhealthy) takes effect.
    pub fn observe(&mut self) -> Result<Inventory, HardwareError> {
        let mut inventory = system::look(&self.source.sysfs_root)?;
        if let Some(path) = &self.source.description {
            description::MachineDescription::load(path)?.apply(&mut inventory);
        } else if self.source.nvml {
            self.driver.observe(&self.source.sysfs_root, &mut inventory);
        }
        if self.source.description.is_none() {
            sysfs::look(&self.source.sysfs_root, &mut inventory);
        }
        Ok(inventory)
    }
}
