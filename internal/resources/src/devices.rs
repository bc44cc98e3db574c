//! What a node has, as its agent reports it, and which devices a pod was given. Data only: both travel as JSON in
//! annotations ([`crate::names::INVENTORY`], [`crate::names::DEVICES`]).

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Container name to resource name to the ids of the devices chosen for it.
pub type ChosenDevices = BTreeMap<String, BTreeMap<String, Vec<String>>>;

/// Annotation that carries [`ChosenDevices`].
pub const DEVICES_ANNOTATION: &str = crate::names::DEVICES;

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
    /// What pods together may use of the node's disk by volumes and logs, in bytes; absent where somebody else says it,
    /// or it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
    /// NUMA nodes.
    pub numa_nodes: Vec<NumaNode>,
    /// Network cards that do RDMA.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<NicDevice>,
    /// The machine's host name.
    pub hostname: String,
    /// Kernel release.
    pub kernel: String,
    /// The operating system's name.
    pub os: String,
    /// Where the GPUs were learned from: `nvml`, `described` or `none`.
    pub source: String,
    /// Devices that containers share, of which each that asks has all: how many may, by the resource, as
    /// `rdma/hca_shared_devices_a`. None where somebody else counts them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub shared: BTreeMap<String, Shares>,
    /// Other vendors' devices, each of which one container has, by their resource, as `amd.com/gpu`. None where somebody
    /// else gives them out.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub described: BTreeMap<String, Vec<DescribedDevice>>,
    /// Resources of which a container gets one at most, as their devices are shared; `nvidia.com/gpu` is none of them:
    /// each GPU says it of itself.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub one_at_most: BTreeSet<String>,
    /// How slices of GPUs are given out: [`MIG_SINGLE`], [`MIG_NONE`], or by their profile where it is anything else.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mig_strategy: String,
    /// The node's labels that say the same (GPU Feature Discovery's); none where somebody else writes them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// The strategy under which a slice is given out as a GPU, where all slices of the machine have one profile.
pub const MIG_SINGLE: &str = "single";
/// The strategy under which nobody looks at slices: each GPU is given out whole, also one that is cut.
pub const MIG_NONE: &str = "none";
/// The strategy under which slices are given out by their profile; also where no strategy is given.
pub const MIG_MIXED: &str = "mixed";

/// What of a machine's GPUs is given out, and as what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offered {
    /// As `nvidia.com/gpu`: GPUs that are not cut, and slices under the single strategy.
    pub gpus: Vec<GpuDevice>,
    /// Slices by their resource, `nvidia.com/mig-1g.10gb`; each with the index of its GPU.
    pub slices: BTreeMap<String, Vec<(u32, MigSlice)>>,
}

impl NodeInventory {
    /// The profiles that its GPUs are cut into.
    fn profiles(&self) -> BTreeSet<&str> {
        let slices = self.gpus.iter().filter_map(|gpu| gpu.slices.as_ref());
        slices
            .flatten()
            .map(|slice| slice.profile.as_str())
            .collect()
    }

    /// Why [`MIG_SINGLE`] can't be kept though it is asked for: slices of several profiles would be one resource. Their
    /// slices are given out by profile then.
    pub fn not_uniform(&self) -> Option<String> {
        let profiles = self.profiles();
        (self.mig_strategy == MIG_SINGLE && profiles.len() > 1).then(|| {
            format!(
                "the MIG strategy is single, and the GPUs are cut into {}: slices are given out by their profile \
                 (nvidia.com/mig-...); cut all GPUs into slices of one profile, or set the strategy to mixed",
                profiles.into_iter().collect::<Vec<_>>().join(", ")
            )
        })
    }

    /// The ids of the GPUs whose work can't go on, and of their slices.
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

    /// The resources that it offers beside CPUs, memory and GPUs by number.
    pub fn resources(&self) -> BTreeSet<String> {
        let shared = self.shared.keys().chain(self.described.keys());
        let slices = self.offered().slices.into_keys();
        shared.cloned().chain(slices).collect()
    }

    /// Why some of the described devices are given to nobody, in a sentence; none where all may be.
    pub fn unwell(&self) -> Option<String> {
        let all = self.described.iter();
        let devices = all
            .flat_map(|(resource, devices)| devices.iter().map(move |device| (resource, device)));
        let said: Vec<String> = devices
            .filter(|(_, device)| !device.healthy)
            .map(|(resource, device)| {
                format!(
                    "{} ({resource}) is given to nobody: {}",
                    device.id, device.why
                )
            })
            .collect();
        (!said.is_empty()).then(|| said.join("; "))
    }

    /// What is given out of its GPUs. A GPU that can be cut is given out whole under [`MIG_NONE`] only.
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
                    // Names of resources can't have the `+` of `1g.10gb+me`.
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

/// How many containers may share devices at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Shares {
    /// So many.
    pub count: u32,
    /// May they be given out?
    pub healthy: bool,
}

/// A device of which an administrator's description says what it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DescribedDevice {
    /// What it is known by: its file on the node, as `/dev/dri/renderD128`.
    pub id: String,
    /// The NUMA node it hangs on, where known.
    pub numa: Option<u32>,
    /// May it be given out?
    pub healthy: bool,
    /// Why it may not; empty where it may.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
}

/// A slice of a GPU that the driver cut.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MigSlice {
    /// The id that containers are told (`MIG-...`).
    pub id: String,
    /// How much of the GPU it is: `1g.10gb`.
    pub profile: String,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// May it be given out, as far as it is up to itself?
    pub healthy: bool,
    /// As a GPU's.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub alone: bool,
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
    /// Can what runs on it not go on? Never of one that is healthy.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
    /// Has a container that has it no other beside it? So where it is shared by MPS, one of whose daemons serves one GPU,
    /// or in turns by who refuses to give several.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub alone: bool,
    /// PCI address.
    pub pci: String,
    /// The PCIe switch that it hangs on, by its address; empty where it hangs on none, or nobody knows.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub switch: String,
    /// CUDA compute capability, like `9.0`; empty if not known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub compute_capability: String,
    /// The driver's version; empty if not known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub driver: String,
    /// Its slices, where it can be cut (MIG mode): it is not given out whole then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slices: Option<Vec<MigSlice>>,
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

/// A network card that does RDMA.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NicDevice {
    /// Its RDMA device, `mlx5_0`.
    pub name: String,
    /// The NUMA node it hangs on, where known.
    pub numa: Option<u32>,
    /// The PCIe switch that it hangs on; as a GPU's.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub switch: String,
    /// What its ports that are up carry together, in Gb/s.
    pub gbits: u32,
    /// `InfiniBand` or `Ethernet`; empty if not known.
    pub layer: String,
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
        let told: Vec<(u32, &str, bool)> = slices
            .iter()
            .map(|(gpu, slice)| (*gpu, &*slice.id, slice.healthy))
            .collect();
        assert_eq!(
            told,
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
        let why = inventory.not_uniform().expect("it can't be kept");
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
    fn devices_that_are_given_to_nobody_are_named_with_why() {
        let device = |id: &str, why: &str| DescribedDevice {
            id: id.into(),
            healthy: why.is_empty(),
            why: why.into(),
            ..DescribedDevice::default()
        };
        let mut inventory = NodeInventory::default();
        assert_eq!(inventory.unwell(), None);
        let two = vec![device("/dev/a0", ""), device("/dev/a1", "it is hot")];
        inventory.described = [
            ("a.com/x".into(), two),
            ("b.com/y".into(), vec![device("/dev/b", "")]),
        ]
        .into();
        let why = "/dev/a1 (a.com/x) is given to nobody: it is hot";
        assert_eq!(inventory.unwell().as_deref(), Some(why));
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
