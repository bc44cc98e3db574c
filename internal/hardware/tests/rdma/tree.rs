//! A machine's files in a temporary directory, and what the checks say about them.

use std::fs;
use std::path::Path;

use hardware::rdma::{self, CheckOutcome, Files, RdmaCheck};
use hardware::{Gpu, Inventory, MigDevice};

use crate::unpack;

pub const INFINIBAND: &str = include_str!("../../testing/trees/infiniband.txt");
pub const ROCE: &str = include_str!("../../testing/trees/roce.txt");

/// The directories of the first card and its port.
pub const CARD: &str = "sys/bus/pci/devices/0000:19:00.0";
pub const PORT: &str = "sys/class/infiniband/mlx5_0/ports/1";

pub struct Tree(tempfile::TempDir);

impl Tree {
    pub fn of(text: &str) -> Tree {
        let root = tempfile::tempdir().unwrap();
        unpack::unpack(text, root.path());
        Tree(root)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn write(&self, file: &str, text: &str) {
        fs::write(self.path().join(file), text).unwrap();
    }

    pub fn remove(&self, file: &str) {
        let path = self.path().join(file);
        if path.is_dir() && !path.is_symlink() {
            fs::remove_dir_all(path).unwrap();
        } else {
            fs::remove_file(path).unwrap();
        }
    }

    /// The inventory with two GPUs, which no file lists, and the files.
    pub fn observe(&self) -> (Inventory, Files) {
        let gpu = |(index, pci): (u32, &str)| Gpu {
            id: format!("GPU-{index}"),
            index,
            pci: pci.to_owned(),
            slices: (index == 1).then(|| {
                vec![MigDevice {
                    id: "MIG-1".to_owned(),
                    ..MigDevice::default()
                }]
            }),
            ..Gpu::default()
        };
        let mut found = hardware::system::look(self.path()).unwrap();
        found.gpus = [(0, "0000:18:00.0"), (1, "0000:3a:00.0")].map(gpu).into();
        hardware::sysfs::look(self.path(), &mut found);
        let files = Files::read(self.path(), &found);
        (found, files)
    }

    pub fn checks(&self, expected: Option<&Inventory>) -> Vec<RdmaCheck> {
        let (found, files) = self.observe();
        rdma::examine(&found, Some(&files), expected)
    }
}

pub fn others_than(checks: &[RdmaCheck], answer: CheckOutcome) -> Vec<(&str, &str, CheckOutcome)> {
    let other = checks.iter().filter(|check| check.answer != answer);
    other
        .map(|check| (check.name, check.place.as_str(), check.answer))
        .collect()
}
