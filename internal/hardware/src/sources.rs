//! Where the inventory is read from.

use std::path::PathBuf;

/// The sources of the inventory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InventorySources {
    /// Whether to read GPUs from NVML.
    pub nvml: bool,
    /// The driver's library, if it is not on the system's search path.
    pub library: Option<PathBuf>,
    /// A machine description that replaces NVML; see [`crate::description`].
    pub description: Option<PathBuf>,
    /// The directory of `sys`, `proc` and `etc`: `/`, or a fixture tree.
    pub sysfs_root: PathBuf,
}

impl Default for InventorySources {
    fn default() -> InventorySources {
        InventorySources {
            nvml: true,
            library: None,
            description: None,
            sysfs_root: "/".into(),
        }
    }
}
