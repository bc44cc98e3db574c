//! The devices of a node, as its agent reports them, and the devices chosen for a pod. Data only: both are JSON in
//! annotations ([`crate::names::INVENTORY`], [`crate::names::DEVICES`]).

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Container name to resource name to the ids of the devices chosen for it.
pub type ChosenDevices = BTreeMap<String, BTreeMap<String, Vec<String>>>;

/// Annotation that carries [`ChosenDevices`].
pub const DEVICES_ANNOTATION: &str = crate::names::DEVICES;

/// The hardware of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeInventory {
    /// The GPUs, by index.
    pub gpus: Vec<GpuDevice>,
    /// Logical CPUs.
    pub cpus: u32,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// The bytes of the node's disk that pods may use for volumes and logs; absent if another component reports them or
    /// the size is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
    /// NUMA nodes.
    pub numa_nodes: Vec<ReportedNumaNode>,
    /// Network cards with RDMA.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<NicDevice>,
    /// The machine's host name.
    pub hostname: String,
    /// Kernel release.
    pub kernel: String,
    /// The operating system's name.
    pub os: String,
    /// The source of the GPU data: `nvml`, `described` or `none`.
    pub source: String,
    /// Shared devices, by resource, as `rdma/hca_shared_devices_a`: how many containers may share all devices of the
    /// resource. Empty if another device plugin counts them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub shared: BTreeMap<String, Shares>,
    /// Other vendors' devices, by resource, as `amd.com/gpu`; each device is allocated to one container. Empty if
    /// another device plugin allocates them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub described: BTreeMap<String, Vec<DescribedDevice>>,
    /// Resources of which a container may request at most one, because their devices are shared. For `nvidia.com/gpu`,
    /// each GPU's `alone` says so instead.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub one_at_most: BTreeSet<String>,
    /// The MIG strategy for slices: [`MIG_SINGLE`], [`MIG_NONE`], or by profile for any other value.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mig_strategy: String,
    /// The node's labels with the same facts (GPU Feature Discovery's); empty if another component writes them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// The strategy that offers a slice as a GPU, if all slices of the machine have one profile.
pub const MIG_SINGLE: &str = "single";
/// The strategy that ignores slices: each GPU is offered whole, even if it is partitioned.
pub const MIG_NONE: &str = "none";
/// The strategy that offers slices by their profile; also the default.
pub const MIG_MIXED: &str = "mixed";

/// The allocatable GPUs and slices of a machine, by resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offered {
    /// Under `nvidia.com/gpu`: GPUs without MIG, and slices under the single strategy.
    pub gpus: Vec<GpuDevice>,
    /// Slices by their resource, `nvidia.com/mig-1g.10gb`; each with the index of its GPU.
    pub slices: BTreeMap<String, Vec<(u32, MigSlice)>>,
}

impl NodeInventory {
    /// The profiles of the GPUs' slices.
    fn profiles(&self) -> BTreeSet<&str> {
        let slices = self.gpus.iter().filter_map(|gpu| gpu.slices.as_ref());
        slices
            .flatten()
            .map(|slice| slice.profile.as_str())
            .collect()
    }

    /// Why [`MIG_SINGLE`] can't be applied: the slices have several profiles but would be one resource. They are then
    /// offered by profile. `None` if the strategy applies or another one is set.
    pub fn not_uniform(&self) -> Option<String> {
        let profiles = self.profiles();
        (self.mig_strategy == MIG_SINGLE && profiles.len() > 1).then(|| {
            format!(
                "the MIG strategy is single, but the GPUs are partitioned into {}: the node offers the slices by \
                 profile (nvidia.com/mig-...); partition all GPUs into slices of one profile, or set the strategy to \
                 mixed",
                profiles.into_iter().collect::<Vec<_>>().join(", ")
            )
        })
    }

    /// The ids of the GPUs, with their slices, on which running work cannot continue.
    pub fn failed(&self) -> impl Iterator<Item = &str> {
        let failed = self.gpus.iter().filter(|gpu| gpu.failed);
        failed.flat_map(|gpu| {
            let slices = gpu.slices.iter().flatten();
            std::iter::once(&*gpu.id).chain(slices.map(|slice| &*slice.id))
        })
    }

    /// The memory of the GPU or slice of this id, in MiB.
    pub fn memory_of(&self, id: &str) -> Option<u64> {
        self.gpus.iter().find_map(|gpu| {
            if gpu.id == id {
                return Some(gpu.memory_mib);
            }
            let mut slices = gpu.slices.iter().flatten();
            Some(slices.find(|slice| slice.id == id)?.memory_mib)
        })
    }

    /// The resources that the node offers besides CPUs, memory and GPUs by count.
    pub fn resources(&self) -> BTreeSet<String> {
        let shared = self.shared.keys().chain(self.described.keys());
        let slices = self.offered().slices.into_keys();
        shared.cloned().chain(slices).collect()
    }

    /// Why some of the described devices are not allocatable, in a sentence; `None` if all are.
    pub fn unhealthy_devices(&self) -> Option<String> {
        let all = self.described.iter();
        let devices = all
            .flat_map(|(resource, devices)| devices.iter().map(move |device| (resource, device)));
        let problems: Vec<String> = devices
            .filter(|(_, device)| !device.healthy)
            .map(|(resource, device)| {
                format!(
                    "{} ({resource}) is not allocatable: {}",
                    device.id, device.why
                )
            })
            .collect();
        (!problems.is_empty()).then(|| problems.join("; "))
    }

    /// The allocatable GPUs and slices. A GPU in MIG mode is offered whole only under [`MIG_NONE`].
    pub fn offered(&self) -> Offered {
        let single = self.mig_strategy == MIG_SINGLE && self.profiles().len() <= 1;
        let whole = self.mig_strategy == MIG_NONE;
        let mut offered = Offered::default();
        for gpu in &self.gpus {
            let Some(slices) = gpu.slices.as_ref().filter(|_| !whole) else {
                offered.gpus.push(gpu.clone());
                continue;
            };
            for slice in slices {
                let healthy = slice.healthy && gpu.healthy;
                if single {
                    offered.gpus.push(GpuDevice {
                        id: slice.id.clone(),
                        model: format!("{} MIG {}", gpu.model, slice.profile),
                        memory_mib: slice.memory_mib,
                        healthy,
                        alone: slice.alone,
                        slices: None,
                        links: Vec::new(),
                        ..gpu.clone()
                    });
                } else {
                    // Resource names can't contain the `+` of `1g.10gb+me`.
                    let profile = slice.profile.replace('+', ".");
                    let resource = format!("{}{profile}", crate::names::NVIDIA_MIG);
                    let slice = MigSlice {
                        healthy,
                        ..slice.clone()
                    };
                    offered
                        .slices
                        .entry(resource)
                        .or_default()
                        .push((gpu.index, slice));
                }
            }
        }
        offered
    }
}

/// The number of containers that may share devices at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Shares {
    /// The number of containers.
    pub count: u32,
    /// True if they are allocatable.
    pub healthy: bool,
}

/// A device that an administrator's description lists.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DescribedDevice {
    /// Its id: the device file on the node, as `/dev/dri/renderD128`.
    pub id: String,
    /// Its NUMA node, if known.
    pub numa: Option<u32>,
    /// True if it is allocatable.
    pub healthy: bool,
    /// Why it is not allocatable; empty if it is.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
}

/// A MIG slice of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MigSlice {
    /// The id that containers see (`MIG-...`).
    pub id: String,
    /// Its profile: `1g.10gb`.
    pub profile: String,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// True if the slice itself is healthy; the GPU's health counts as well.
    pub healthy: bool,
    /// As for a GPU.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub alone: bool,
}

/// One GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuDevice {
    /// The stable id (`GPU-...`).
    pub id: String,
    /// The driver's index.
    pub index: u32,
    /// Product name.
    pub model: String,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Its NUMA node, if known.
    pub numa: Option<u32>,
    /// True if it is allocatable.
    pub healthy: bool,
    /// True if running work cannot continue on it. Never true of a healthy GPU.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
    /// True if a container with this GPU cannot have another one: the GPU is shared by MPS, where one daemon serves one
    /// GPU, or by time slicing that refuses requests for several.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub alone: bool,
    /// PCI address.
    pub pci: String,
    /// The PCI address of its PCIe switch; empty if it has none or it is unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub switch: String,
    /// CUDA compute capability, like `9.0`; empty if unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub compute_capability: String,
    /// The driver's version; empty if unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub driver: String,
    /// Its slices, if it is in MIG mode: it is not offered whole then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slices: Option<Vec<MigSlice>>,
    /// Its best path to each other GPU of the machine; empty if unknown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<GpuLink>,
}

/// A GPU's path to another GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuLink {
    /// The other GPU's id.
    pub to: String,
    /// The path's kind as `nvidia-smi topo` writes it: `NVL` (direct NVLinks), `NVS` (NVLinks to a switch that joins
    /// both), `PIX` (one PCIe switch), `PXB` (several), `PHB` (the host bridge), `NODE` (several bridges of one NUMA
    /// node), `SYS` (between sockets).
    pub kind: String,
    /// The number of NVLinks; 0 for other kinds.
    pub count: u32,
}

/// A network card with RDMA.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NicDevice {
    /// Its RDMA device, `mlx5_0`.
    pub name: String,
    /// Its NUMA node, if known.
    pub numa: Option<u32>,
    /// Its PCIe switch, as for a GPU.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub switch: String,
    /// The total rate of its active ports, in Gb/s.
    pub gbits: u32,
    /// `InfiniBand` or `Ethernet`; empty if unknown.
    pub layer: String,
}

/// One NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReportedNumaNode {
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

/// Whether a resource is whole GPUs, of any vendor: `nvidia.com/gpu`, `amd.com/gpu`.
#[must_use]
pub fn is_whole_gpu(resource: &str) -> bool {
    resource.ends_with("/gpu")
}

/// Whether a resource is GPUs or parts of them, of any vendor: also shares (`nvidia.com/gpu.shared`) and MIG slices.
#[must_use]
pub fn is_gpu_or_part(resource: &str) -> bool {
    resource.contains('/') && resource.contains("gpu") || resource.contains("/mig-")
}

/// Whether a resource is RDMA network cards. All other devices that pods get are accelerators.
#[must_use]
pub fn is_network_card(resource: &str) -> bool {
    resource.starts_with("rdma/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_resource_says_whether_it_is_gpus_or_network_cards() {
        let kinds = |name: &str| {
            let kinds = [is_whole_gpu, is_gpu_or_part, is_network_card];
            kinds.map(|is| is(name))
        };
        assert_eq!(kinds("nvidia.com/gpu"), [true, true, false]);
        assert_eq!(kinds("amd.com/gpu"), [true, true, false]);
        assert_eq!(kinds("nvidia.com/gpu.shared"), [false, true, false]);
        assert_eq!(kinds("nvidia.com/mig-1g.10gb"), [false, true, false]);
        assert_eq!(kinds("rdma/hca"), [false, false, true]);
        assert_eq!(kinds("habana.ai/gaudi"), [false; 3]);
        assert_eq!(kinds("gpu"), [false; 3]);
    }

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
    fn slices_are_given_out_by_profile_or_as_gpus_and_a_gpu_that_is_cut_is_not() {
        let slice = |id: &str, profile: &str| MigSlice {
            id: id.into(),
            profile: profile.into(),
            memory_mib: 10_000,
            healthy: true,
            ..MigSlice::default()
        };
        let gpu = |index: u32, slices| GpuDevice {
            id: format!("GPU-{index}"),
            index,
            healthy: index != 2,
            slices,
            ..GpuDevice::default()
        };
        let mut inventory = NodeInventory {
            gpus: vec![
                gpu(0, None),
                gpu(
                    1,
                    Some(vec![slice("MIG-a", "1g.10gb"), slice("MIG-b", "1g.10gb")]),
                ),
                gpu(2, Some(vec![slice("MIG-c", "1g.10gb")])),
                gpu(3, Some(vec![])),
            ],
            ..NodeInventory::default()
        };
        let ids = |offered: &Offered| -> Vec<String> {
            offered.gpus.iter().map(|gpu| gpu.id.clone()).collect()
        };
        let mixed = inventory.offered();
        assert_eq!(ids(&mixed), ["GPU-0"]);
        let slices = &mixed.slices["nvidia.com/mig-1g.10gb"];
        let shown: Vec<(u32, &str, bool)> = slices
            .iter()
            .map(|(gpu, slice)| (*gpu, &*slice.id, slice.healthy))
            .collect();
        assert_eq!(
            shown,
            [(1, "MIG-a", true), (1, "MIG-b", true), (2, "MIG-c", false)]
        );
        inventory.mig_strategy = MIG_SINGLE.into();
        let single = inventory.offered();
        assert_eq!(ids(&single), ["GPU-0", "MIG-a", "MIG-b", "MIG-c"]);
        assert!(single.slices.is_empty());
        assert_eq!(
            (single.gpus[1].memory_mib, single.gpus[3].healthy),
            (10_000, false)
        );
        inventory.gpus[2].slices = Some(vec![slice("MIG-d", "2g.20gb")]);
        assert_eq!(
            inventory.offered().slices.len(),
            2,
            "several profiles are always mixed"
        );
        let why = inventory.not_uniform().expect("it cannot be kept");
        assert!(why.contains("1g.10gb, 2g.20gb"), "{why}");
        let text = serde_json::to_string(&inventory).unwrap();
        assert_eq!(
            serde_json::from_str::<NodeInventory>(&text).unwrap(),
            inventory
        );
    }

    #[test]
    fn a_plus_in_a_profile_is_a_dot_in_its_resource_and_without_a_strategy_for_slices_gpus_are_whole()
     {
        let slice = |id: &str, profile: &str| MigSlice {
            id: id.into(),
            profile: profile.into(),
            memory_mib: 10_000,
            healthy: true,
            ..MigSlice::default()
        };
        let mut inventory = NodeInventory {
            gpus: vec![GpuDevice {
                id: "GPU-0".into(),
                healthy: true,
                slices: Some(vec![
                    slice("MIG-a", "1g.10gb"),
                    slice("MIG-b", "1g.10gb+me"),
                ]),
                ..GpuDevice::default()
            }],
            mig_strategy: MIG_MIXED.into(),
            ..NodeInventory::default()
        };
        let names = |inventory: &NodeInventory| -> Vec<String> {
            inventory.offered().slices.into_keys().collect()
        };
        let both = ["nvidia.com/mig-1g.10gb", "nvidia.com/mig-1g.10gb.me"];
        assert_eq!(names(&inventory), both);
        assert_eq!(inventory.not_uniform(), None);
        inventory.mig_strategy = MIG_NONE.into();
        assert_eq!(names(&inventory), Vec::<String>::new());
        assert_eq!(inventory.offered().gpus, inventory.gpus);
        assert_eq!(inventory.not_uniform(), None);
    }

    #[test]
    fn unallocatable_devices_are_named_with_the_reason() {
        let device = |id: &str, why: &str| DescribedDevice {
            id: id.into(),
            healthy: why.is_empty(),
            why: why.into(),
            ..DescribedDevice::default()
        };
        let mut inventory = NodeInventory::default();
        assert_eq!(inventory.unhealthy_devices(), None);
        let two = vec![device("/dev/a0", ""), device("/dev/a1", "it is hot")];
        inventory.described = [
            ("a.com/x".into(), two),
            ("b.com/y".into(), vec![device("/dev/b", "")]),
        ]
        .into();
        let why = "/dev/a1 (a.com/x) is not allocatable: it is hot";
        assert_eq!(inventory.unhealthy_devices().as_deref(), Some(why));
        assert_eq!(
            Vec::from_iter(inventory.resources()),
            ["a.com/x", "b.com/y"]
        );
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
