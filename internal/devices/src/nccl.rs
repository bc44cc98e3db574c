//! The file with the machine's PCIe tree for NCCL (`NCCL_TOPO_FILE`), kept up to date with the
//! machine. `hardware::nccl` decides on its content and whether there is one.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use hardware::nccl::{self, TreeDelivery};
use hardware::{Inventory, sysfs};
use parking_lot::Mutex;

/// The variable with the file's path.
pub const VARIABLE: &str = "NCCL_TOPO_FILE";
/// The file's path in containers: beside the termination message, where processes of the node
/// already have a private view, and users other than the agent's may read.
pub const SEEN_AT: &str = "/dev/nccl-topology.xml";

/// The file, and when it exists.
pub struct TopologyFile {
    path: PathBuf,
    delivery: TreeDelivery,
    described: Option<Inventory>,
    root: PathBuf,
    /// The last tree, and the file with it.
    last: Mutex<Option<(String, Option<PathBuf>)>>,
}

impl TopologyFile {
    /// The file at `path`, for a machine whose sysfs is below `root`; `described`: the
    /// administrator's description of the machine.
    pub fn new(
        path: PathBuf,
        delivery: TreeDelivery,
        described: Option<Inventory>,
        root: PathBuf,
    ) -> TopologyFile {
        TopologyFile {
            path,
            delivery,
            described,
            root,
            last: Mutex::default(),
        }
    }

    /// Updates and returns the file of a machine with these devices, if NCCL needs its tree. Reads
    /// the kernel's files only after a change.
    pub async fn renew(&self, found: &Inventory) -> Option<PathBuf> {
        let now = nccl::xml(found);
        if let Some((before, file)) = &*self.last.lock()
            && *before == now
        {
            return file.clone();
        }
        let addresses: Vec<String> = found.gpus.iter().map(|gpu| gpu.pci.clone()).collect();
        let root = self.root.clone();
        let shown = tokio::task::spawn_blocking(move || sysfs::shown(&root, &addresses)).await;
        let tree = match shown {
            Ok(shown) => nccl::tree(self.delivery, found, &shown, self.described.as_ref())
                .map_err(|lacking| lacking.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let tree = tree.unwrap_or_else(|why| {
            tracing::warn!("{why}");
            None
        });
        let file = match self.put(tree.as_ref()) {
            Ok(file) => file,
            Err(error) => {
                let path = self.path.display();
                tracing::warn!(
                    "containers get no PCIe tree for NCCL: {path} cannot be written: {error}"
                );
                return None;
            }
        };
        if file.is_some() {
            tracing::info!(file = %self.path.display(), "containers get the PCIe tree for NCCL");
        }
        *self.last.lock() = Some((now, file.clone()));
        file
    }

    /// Writes the file, or removes it if there is no tree.
    fn put(&self, tree: Option<&Inventory>) -> io::Result<Option<PathBuf>> {
        let Some(tree) = tree else {
            return match fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(None),
            };
        };
        // Replaces the previous file; running processes keep the old one.
        let partial = self.path.with_extension("xml.new");
        fs::write(&partial, nccl::xml(tree))?;
        // Containers run as any user.
        fs::set_permissions(&partial, fs::Permissions::from_mode(0o644))?;
        fs::rename(&partial, &self.path)?;
        Ok(Some(self.path.clone()))
    }
}

#[cfg(test)]
mod tests {
    use hardware::{Gpu, Origin};

    use super::*;

    fn machine(address: &str) -> Inventory {
        Inventory {
            gpus: vec![Gpu {
                pci: address.to_owned(),
                under: "pci0000:00".to_owned(),
                ..Gpu::default()
            }],
            origin: Origin::Nvml,
            ..Inventory::default()
        }
    }

    #[tokio::test]
    async fn the_file_follows_the_machine_and_is_removed_without_a_tree() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("tree.xml");
        let root = dir.path().join("root");
        let file = |delivery| TopologyFile::new(path.clone(), delivery, None, root.clone());
        let text = || fs::read_to_string(&path).ok();

        let always = file(TreeDelivery::Always);
        for address in ["0000:01:00.0", "0000:02:00.0"] {
            let machine = machine(address);
            assert_eq!(always.renew(&machine).await.as_ref(), Some(&path));
            assert_eq!(text(), Some(nccl::xml(&machine)));
        }
        let mode = fs::metadata(&path).expect("the file").permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
        // Without GPUs, and by another agent that does not provide the file.
        assert_eq!(always.renew(&Inventory::default()).await, None);
        assert_eq!(text(), None);
        assert_eq!(
            always.renew(&machine("0000:01:00.0")).await,
            Some(path.clone())
        );
        let hidden = file(TreeDelivery::Hidden);
        assert_eq!(hidden.renew(&machine("0000:01:00.0")).await, None);
        assert_eq!(text(), None);
        // If it can't be written there is no file, and the next call retries.
        let nowhere = dir.path().join("nowhere");
        let lost = TopologyFile::new(
            nowhere.join("tree.xml"),
            TreeDelivery::Always,
            None,
            root.clone(),
        );
        assert_eq!(lost.renew(&machine("0000:01:00.0")).await, None);
        fs::create_dir(&nowhere).expect("a directory");
        assert!(lost.renew(&machine("0000:01:00.0")).await.is_some());
    }
}
