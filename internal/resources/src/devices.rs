//! What a node has, as its agent reports it, and which devices a pod was given. Data only: both travel as JSON in
//! annotations ([`crate::names::INVENTORY`], [`crate::names::DEVICES`]).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Container name to resource name to the ids of the devices chosen for it.
pub type ChosenDevices = BTreeMap<String, BTreeMap<String, Vec<String>>>;

/// Annotation that carries [`ChosenDevices`].
pub const DEVICES_ANNOTATION: &str = crate::names::DEVICES;
/// Annotation that carries [`NodeInventory`].
pub const INVENTORY_ANNOTATION: &str = crate::names::INVENTORY;

/// What a machine has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeInventory {
    /// The GPUs, by index.
    pub gpus: Vec<GpuDevice>,
    /// Logical CPUs.
    pub cpus: u32,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// NUMA nodes.
    pub numa_nodes: Vec<NumaNode>,
    /// The machine's host name.
    pub hostname: String,
    /// Kernel release.
    pub kernel: String,
    /// The operating system's name.
    pub os: String,
    /// Where the GPUs were learned from: `nvml`, `described` or `none`.
    pub source: String,
}

/// One GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuDevice {
    /// The id that never changes (`GPU-...`).
    pub id: String,
    /// The driver's index.
    pub index: u32,
    /// Product name.
    pub model: String,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// The NUMA node it hangs on, where known.
    pub numa: Option<u32>,
    /// May it be given out?
    pub healthy: bool,
    /// PCI address.
    pub pci: String,
    /// CUDA compute capability, like `9.0`; empty if not known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub compute_capability: String,
    /// The driver's version; empty if not known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub driver: String,
    /// Its best path to each other GPU of the machine; empty if not known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<GpuLink>,
}

/// A GPU's path to another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuLink {
    /// The other's id.
    pub to: String,
    /// The path's kind as `nvidia-smi topo` writes it: `NVL` (NVLinks straight to it), `NVS` (NVLinks to a switch that
    /// joins both), `PIX` (one PCIe switch), `PXB` (several), `PHB` (the host's bridge), `NODE` (several bridges of one
    /// NUMA node), `SYS` (between sockets).
    pub kind: String,
    /// How many NVLinks it has; 0 for other kinds.
    pub count: u32,
}

/// One NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NumaNode {
    /// Its number.
    pub id: u32,
    /// Its logical CPUs.
    pub cpus: Vec<u32>,
    /// Its memory in bytes.
    pub memory_bytes: u64,
}

/// Reads the devices chosen for a pod from its annotations; none when absent or unreadable.
pub fn chosen(annotations: Option<&BTreeMap<String, String>>) -> ChosenDevices {
    annotations
        .and_then(|all| all.get(crate::names::DEVICES))
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default()
}

/// Reads a node's inventory from its annotations; none when absent or unreadable.
pub fn inventory(annotations: Option<&BTreeMap<String, String>>) -> Option<NodeInventory> {
    annotations
        .and_then(|all| all.get(crate::names::INVENTORY))
        .and_then(|text| serde_json::from_str(text).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_devices_are_read_from_the_annotation_and_nonsense_is_none() {
        let mut annotations = BTreeMap::new();
        assert!(chosen(None).is_empty());
        annotations.insert(
            crate::names::DEVICES.to_owned(),
            r#"{"main":{"nvidia.com/gpu":["GPU-1"]}}"#.to_owned(),
        );
        assert_eq!(
            chosen(Some(&annotations))["main"]["nvidia.com/gpu"],
            ["GPU-1"]
        );
        annotations.insert(crate::names::DEVICES.to_owned(), "[".to_owned());
        assert!(chosen(Some(&annotations)).is_empty());
    }

    #[test]
    fn an_inventory_survives_its_json() {
        let inventory = NodeInventory {
            gpus: vec![GpuDevice {
                id: "GPU-1".into(),
                healthy: true,
                numa: Some(1),
                ..GpuDevice::default()
            }],
            cpus: 4,
            ..NodeInventory::default()
        };
        let text = serde_json::to_string(&inventory).unwrap();
        assert!(text.contains("memoryBytes"));
        assert_eq!(
            serde_json::from_str::<NodeInventory>(&text).unwrap(),
            inventory
        );
    }
}
