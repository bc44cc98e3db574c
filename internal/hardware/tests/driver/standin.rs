//! The stand-in in its own directory, with its machine description.

use std::path::{Path, PathBuf};

use hardware::description::{Described, MachineDescription};
use hardware::{Inventory, InventorySources, MachineProbe};
use nvml_wrapper::Nvml;
use tempfile::TempDir;

/// The described machines.
pub const MACHINES: [&str; 6] = [
    "hgx-h100.toml",
    "dgx-a100.toml",
    "4x-a40.toml",
    "8x-l4.toml",
    "8x-v100.toml",
    "gb200-tray.toml",
];

/// A directory with the library, the description beside it, and a root for sysfs.
pub struct StandIn {
    dir: TempDir,
    text: String,
}

impl StandIn {
    /// A stand-in for one of the described machines.
    pub fn of(machine: &str) -> StandIn {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/examples/machines");
        StandIn::saying(&std::fs::read_to_string(dir.join(machine)).unwrap())
    }

    /// A stand-in for a machine with this description. It has its own copy of the library, because
    /// the loader loads one file only once.
    pub fn saying(text: &str) -> StandIn {
        let dir = tempfile::tempdir().unwrap();
        let beside = std::env::current_exe().unwrap();
        let built = beside.parent().unwrap().join("libnvml_standin.so");
        let library = dir.path().join("libnvidia-ml.so.1");
        std::fs::copy(&built, library).unwrap_or_else(|error| {
            panic!(
                "{}: {error}; cargo builds it for these tests",
                built.display()
            )
        });
        let standin = StandIn {
            dir,
            text: text.to_owned(),
        };
        standin.with("");
        standin
    }

    /// Replaces the additional tables by these.
    pub fn with(&self, states: &str) {
        self.replace(&format!("{}\n{states}", self.text));
    }

    /// Replaces the machine by another one.
    pub fn replace(&self, text: &str) {
        let partial = self.dir.path().join("machine.partial");
        std::fs::write(&partial, text).unwrap();
        std::fs::rename(partial, self.description()).unwrap();
    }

    pub fn description(&self) -> PathBuf {
        self.dir.path().join("machine.toml")
    }

    /// The root of sysfs and proc.
    pub fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    pub fn library(&self) -> PathBuf {
        self.dir.path().join("libnvidia-ml.so.1")
    }

    /// The current description.
    pub fn described(&self) -> Described {
        let description = MachineDescription::load(&self.description()).unwrap();
        description.machine(Inventory::default())
    }

    /// The machine as product code reads it.
    pub fn machine(&self) -> MachineProbe {
        MachineProbe::new(self.source())
    }

    /// The source that product code uses.
    pub fn source(&self) -> InventorySources {
        InventorySources {
            library: Some(self.library()),
            sysfs_root: self.root(),
            ..InventorySources::default()
        }
    }

    /// The wrapper, opened on the library.
    pub fn nvml(&self) -> Nvml {
        let library = self.library();
        Nvml::builder()
            .lib_path(library.as_os_str())
            .init()
            .unwrap()
    }
}
