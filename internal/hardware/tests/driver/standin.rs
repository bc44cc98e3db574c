//! The stand-in in a folder of its own, with the machine that it speaks of.

use std::path::{Path, PathBuf};

use hardware::description::{Described, Description};
use hardware::{Inventory, Machine, Source};
use nvml_wrapper::Nvml;
use tempfile::TempDir;

/// The machines that are described.
pub const MACHINES: [&str; 6] = [
    "hgx-h100.toml",
    "dgx-a100.toml",
    "4x-a40.toml",
    "8x-l4.toml",
    "8x-v100.toml",
    "gb200-tray.toml",
];

/// A folder with the library, the description beside it, and a root for sysfs.
pub struct StandIn {
    dir: TempDir,
    text: String,
}

impl StandIn {
    /// Speaks of one of the described machines.
    pub fn of(machine: &str) -> StandIn {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/examples/machines");
        StandIn::saying(&std::fs::read_to_string(dir.join(machine)).unwrap())
    }

    /// Speaks of a machine in these words. A library of its own, since what is loaded twice
    /// from one file is one library.
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

    /// Now with these tables as well, in the place of those before.
    pub fn with(&self, states: &str) {
        self.replace(&format!("{}\n{states}", self.text));
    }

    /// Now speaks of another machine.
    pub fn replace(&self, text: &str) {
        let partial = self.dir.path().join("machine.partial");
        std::fs::write(&partial, text).unwrap();
        std::fs::rename(partial, self.description()).unwrap();
    }

    pub fn description(&self) -> PathBuf {
        self.dir.path().join("machine.toml")
    }

    /// Where sysfs and proc are looked for.
    pub fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    pub fn library(&self) -> PathBuf {
        self.dir.path().join("libnvidia-ml.so.1")
    }

    /// What is described now.
    pub fn described(&self) -> Described {
        let description = Description::load(&self.description()).unwrap();
        description.machine(Inventory::default())
    }

    /// The machine as everybody asks for it.
    pub fn machine(&self) -> Machine {
        Machine::new(self.source())
    }

    /// Where everybody looks.
    pub fn source(&self) -> Source {
        Source {
            library: Some(self.library()),
            sysfs_root: self.root(),
            ..Source::default()
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
