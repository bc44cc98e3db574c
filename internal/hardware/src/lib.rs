//! What a machine has: CPUs, memory, NUMA nodes, GPUs and how these are linked, as one
//! [`Inventory`].
//!
//! Owns the finding out: CPUs and memory from sysfs and proc ([`system`]), the PCIe tree and
//! network cards from sysfs ([`sysfs`]), GPUs from NVML ([`gpus`]); or all from a description of
//! a machine in a file ([`description`]), which stands in where there are no GPUs to test or
//! show things with; whether its RDMA works ([`rdma`]). And the pure knowledge of what was found:
//! paths and what they carry ([`graph`]), as a table ([`matrix`]), as NCCL reads it ([`nccl`]).
//!
//! Must not: decide what runs where, or what a GPU's state means for a pod.

mod capabilities;
pub mod choice;
pub mod compute_mode;
pub mod cutter;
pub mod description;
pub mod error;
pub mod events;
pub mod gpus;
pub mod graph;
pub mod inventory;
pub mod kmsg;
pub mod matrix;
pub mod meter;
pub mod mig;
pub mod nccl;
pub mod partition;
pub mod pcie;
pub mod ports;
pub mod rdma;
pub mod reading;
pub mod ring;
pub mod signs;
pub mod sysfs;
pub mod system;
pub mod wiring;

use std::path::PathBuf;

pub use choice::Chooser;
pub use cutter::Cutter;
pub use error::HardwareError;
pub use events::Events;
pub use graph::Graph;
pub use inventory::{Ecc, Fabric, Gpu, Inventory, Link, LinkKind, Load, NumaNode, Origin, Slice};
pub use meter::Meter;
pub use reading::Reading;
pub use signs::{Fault, NvlinkErrors, Recovery, Signs};
pub use wiring::{Bandwidth, Nic, PcieLink, PcieSwitch, Port};

/// Where to look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Whether to ask NVML for GPUs.
    pub nvml: bool,
    /// The driver's library, where it is not where the system looks for it.
    pub library: Option<PathBuf>,
    /// A machine description to use in place of NVML; see [`description`].
    pub description: Option<PathBuf>,
    /// Where `sys`, `proc` and `etc` are found: `/`, or a fixture tree.
    pub sysfs_root: PathBuf,
}

impl Default for Source {
    fn default() -> Source {
        Source {
            nvml: true,
            library: None,
            description: None,
            sysfs_root: "/".into(),
        }
    }
}

/// Finds out what there is, once. To ask again and again, keep a [`Machine`].
pub fn discover(source: Source) -> Result<Inventory, HardwareError> {
    Machine::new(source).look()
}

/// Asks repeatedly without opening the GPU driver's library each time.
pub struct Machine {
    source: Source,
    driver: gpus::Driver,
}

impl Machine {
    /// Opens nothing yet.
    pub fn new(source: Source) -> Machine {
        let driver = match &source.library {
            Some(library) => gpus::Driver::with_library(library.clone()),
            None => gpus::Driver::default(),
        };
        Machine { source, driver }
    }

    /// What there is now. A description is read again each time, so that an edit of the
    /// file (a GPU that turns unhealthy) shows.
    pub fn look(&mut self) -> Result<Inventory, HardwareError> {
        let mut inventory = system::look(&self.source.sysfs_root)?;
        if let Some(path) = &self.source.description {
            description::Description::load(path)?.apply(&mut inventory);
        } else if self.source.nvml {
            self.driver.look(&self.source.sysfs_root, &mut inventory);
        }
        if self.source.description.is_none() {
            sysfs::look(&self.source.sysfs_root, &mut inventory);
        }
        Ok(inventory)
    }
}
