//! RDMA cards as programs use them: their identity and their device files. Owns the reading;
//! missing files are left out.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::rdma::files::verbs;
use crate::sysfs::{self, entries};
use crate::system::line;
use crate::wiring::CardPort;

/// The cards that a machine offers to programs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RdmaDevices {
    /// The cards, by name; virtual functions are not among them.
    pub cards: Vec<RdmaDevice>,
    /// Whether `/dev/infiniband/rdma_cm` exists, through which programs make connections.
    pub rdma_cm: bool,
}

/// A card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RdmaDevice {
    /// Its RDMA device, `mlx5_0`.
    pub name: String,
    /// Its vendor's PCI id in four hexadecimal digits, `15b3`; empty if it is no card.
    pub vendor: String,
    /// Its device's PCI id, `101b`.
    pub model: String,
    /// The driver of the PCI device, `mlx5_core`; empty if it is no card.
    pub driver: String,
    /// Its network interfaces.
    pub netdevs: Vec<String>,
    /// The NUMA node it is on, if the machine reports it.
    pub numa: Option<u32>,
    /// Its ports, by number.
    pub ports: Vec<CardPort>,
    /// Its existing files below `/dev/infiniband`: `uverbs0` and, for subnet management, `umad0`
    /// and `issm0`.
    pub files: Vec<String>,
}

impl RdmaDevice {
    /// Whether programs can open it.
    pub fn opens(&self) -> bool {
        self.files.iter().any(|file| file.starts_with("uverbs"))
    }
}

/// The cards below `root`.
pub fn devices(root: &Path) -> RdmaDevices {
    let verbs = verbs(root);
    let managers = managers(root);
    let dev = root.join("dev/infiniband");
    let device = |nic: crate::Nic| {
        let dir = root.join("sys/bus/pci/devices").join(&nic.pci);
        let number = |file: &str| match nic.pci.as_str() {
            "" => String::new(),
            _ => hexadecimal(&line(&dir.join(file)).unwrap_or_default()),
        };
        let driver = (!nic.pci.is_empty()).then(|| fs::read_link(dir.join("driver")).ok());
        let driver = driver.flatten();
        let driver = driver.as_deref().and_then(Path::file_name);
        let managers = managers.get(&nic.name).into_iter().flatten();
        let files = verbs.get(&nic.name).into_iter().chain(managers);
        RdmaDevice {
            vendor: number("vendor"),
            model: number("device"),
            driver: driver.map_or_else(String::new, |it| it.to_string_lossy().into_owned()),
            files: files
                .filter(|file| dev.join(file).exists())
                .cloned()
                .collect(),
            netdevs: nic.netdevs,
            numa: nic.numa,
            ports: nic.ports,
            name: nic.name,
        }
    };
    RdmaDevices {
        cards: sysfs::nics(root, &mut BTreeMap::new())
            .into_iter()
            .map(device)
            .collect(),
        rdma_cm: dev.join("rdma_cm").exists(),
    }
}

/// `0x15b3` in its usual form.
fn hexadecimal(number: &str) -> String {
    number.trim_start_matches("0x").to_ascii_lowercase()
}

/// The device files for subnet management, by card.
fn managers(root: &Path) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, dir) in entries(&root.join("sys/class/infiniband_mad")) {
        if let Some(card) = line(&dir.join("ibdev")) {
            found.entry(card).or_default().push(name);
        }
    }
    found
}
