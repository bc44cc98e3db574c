//! The machine's devices for claims: GPUs, slices of GPUs, and network cards with RDMA, each with
//! its attributes and capacity. Pure.
//!
//! Attributes have the names of NVIDIA's DRA driver if it has them, so that a claim's expressions
//! only need another domain.

use std::collections::BTreeMap;

use hardware::partition::place::InstancePosition;
use hardware::pcie::PcieTree;
use hardware::{Gpu, Inventory, MigDevice, Nic};
use k8s_openapi::api::resource::v1::Device;
use resources::quantity::Quantity;

use super::attributes::{AttributeBuilder, capacity, memory};
use crate::labels;

/// Kubernetes' own attribute for the PCIe root of a device.
const PCIE_ROOT: &str = "resource.kubernetes.io/pcieRoot";

/// The longest name of a device.
const NAME_MAX: usize = 63;

/// A device that a claim may be allocated.
#[derive(Clone, Debug, PartialEq)]
pub struct Claimable {
    /// The device as published: its name, attributes and capacity.
    pub device: Device,
    /// The UUID of a GPU or slice; for a partition its GPU's UUID; for a network card its RDMA
    /// device.
    pub id: String,
    /// Why it must not be allocated; empty if it may be.
    pub problem: String,
    /// The kind of device.
    pub what: ClaimableKind,
}

/// The kind of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimableKind {
    /// A whole GPU.
    Gpu {
        /// Its index.
        index: u32,
    },
    /// A slice of a GPU.
    Slice {
        /// The GPU's index.
        index: u32,
        /// Its position among the GPU's slices.
        place: usize,
    },
    /// A slice that is created on a GPU when it is allocated.
    Partition {
        /// The GPU's index.
        index: u32,
        /// Its place on the GPU.
        place: InstancePosition,
        /// How many memory slices it takes.
        size: u32,
    },
    /// A network card.
    Nic,
}

/// A name that the API accepts: lower case letters, digits and dashes.
pub fn name_of(text: &str) -> String {
    let plain = text.to_ascii_lowercase();
    let plain = plain.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    let end = plain.len().min(NAME_MAX);
    plain[..end].trim_matches('-').to_owned()
}

/// All devices of a machine that claims may get, by name. A GPU in MIG mode is represented by its
/// slices.
pub fn all(found: &Inventory) -> Vec<Claimable> {
    let tree = PcieTree::of(found);
    let mut all: BTreeMap<String, Claimable> = BTreeMap::new();
    let gpus = found.gpus.iter().flat_map(|gpu| match &gpu.slices {
        None => vec![whole(found, &tree, gpu)],
        Some(slices) => {
            let slices = slices.iter().enumerate();
            (slices.map(|(place, slice)| part(found, &tree, gpu, place, slice))).collect()
        }
    });
    let nics = found.nics.iter().map(|nic| card(&tree, nic));
    for one in gpus.chain(nics) {
        all.entry(one.device.name.clone()).or_insert(one);
    }
    all.into_values().collect()
}

/// Every GPU as a whole, also those in MIG mode, by index.
pub fn gpus(found: &Inventory) -> Vec<Claimable> {
    let tree = PcieTree::of(found);
    let gpus = found.gpus.iter();
    gpus.map(|gpu| whole(found, &tree, gpu)).collect()
}

/// The attributes that a GPU and its slices share.
fn common<'a>(found: &Inventory, tree: &PcieTree<'a>, gpu: &'a Gpu) -> AttributeBuilder {
    let mut attributes = AttributeBuilder::default();
    attributes.text("productName", &gpu.model);
    let (major, minor) = gpu.compute_capability.split_once('.').unwrap_or_default();
    attributes.text("architecture", labels::family(major, minor));
    attributes.version("cudaComputeCapability", &gpu.compute_capability);
    attributes.version("driverVersion", &gpu.driver);
    attributes.version("cudaDriverVersion", &found.cuda);
    attributes.number("numaNode", gpu.numa);
    attributes.text("pciBusID", &gpu.pci);
    attributes.text(PCIE_ROOT, tree.root(&gpu.under).unwrap_or_default());
    attributes.text("nvlinkDomain", &gpu.clique);
    attributes
}

fn whole<'a>(found: &Inventory, tree: &PcieTree<'a>, gpu: &'a Gpu) -> Claimable {
    let mut attributes = common(found, tree, gpu);
    attributes.text("type", "gpu");
    attributes.text("uuid", &gpu.id);
    attributes.number("index", Some(gpu.index));
    Claimable {
        device: Device {
            name: name_of(&gpu.id),
            attributes: Some(attributes.0),
            capacity: Some(memory(gpu.memory_mib)),
            ..Device::default()
        },
        id: gpu.id.clone(),
        problem: problem(gpu),
        what: ClaimableKind::Gpu { index: gpu.index },
    }
}

fn part<'a>(
    found: &Inventory,
    tree: &PcieTree<'a>,
    gpu: &'a Gpu,
    place: usize,
    slice: &MigDevice,
) -> Claimable {
    let mut attributes = common(found, tree, gpu);
    attributes.text("type", "mig");
    attributes.text("uuid", &slice.id);
    attributes.text("profile", &slice.profile);
    attributes.text("parentUUID", &gpu.id);
    attributes.number("parentIndex", Some(gpu.index));
    Claimable {
        device: Device {
            name: name_of(&slice.id),
            attributes: Some(attributes.0),
            capacity: Some(memory(slice.memory_mib)),
            ..Device::default()
        },
        id: slice.id.clone(),
        problem: problem(gpu),
        what: ClaimableKind::Slice {
            index: gpu.index,
            place,
        },
    }
}

fn problem(gpu: &Gpu) -> String {
    if gpu.healthy {
        return String::new();
    }
    format!("GPU {} is unhealthy: {}", gpu.index, gpu.problem)
}

fn card<'a>(tree: &PcieTree<'a>, nic: &'a Nic) -> Claimable {
    let mut attributes = AttributeBuilder::default();
    attributes.text("type", "nic");
    attributes.text("rdmaDevice", &nic.name);
    attributes.text("productName", &nic.model);
    attributes.text("firmwareVersion", &nic.firmware);
    attributes.number("numaNode", nic.numa);
    attributes.text("pciBusID", &nic.pci);
    attributes.text(PCIE_ROOT, tree.root(&nic.under).unwrap_or_default());
    attributes.text("netdev", nic.netdevs.first().map_or("", String::as_str));
    let up: Vec<_> = nic.ports.iter().filter(|port| port.is_up()).collect();
    attributes.text("linkLayer", up.first().map_or("", |port| &port.layer));
    let gbits = up.iter().map(|port| i64::from(port.gbits)).sum::<i64>();
    Claimable {
        device: Device {
            name: name_of(&format!("nic-{}", nic.name)),
            attributes: Some(attributes.0),
            // In bits a second, the usual unit of links.
            capacity: Some(capacity(
                "bandwidth",
                Quantity::from_value(gbits.saturating_mul(1_000_000_000)),
            )),
            ..Device::default()
        },
        id: nic.name.clone(),
        problem: match up.is_empty() {
            true => format!("no port of {} is up", nic.name),
            false => String::new(),
        },
        what: ClaimableKind::Nic,
    }
}

impl Claimable {
    /// The index of the GPU, or of the slice's GPU.
    pub fn gpu(&self) -> Option<u32> {
        match self.what {
            ClaimableKind::Gpu { index }
            | ClaimableKind::Slice { index, .. }
            | ClaimableKind::Partition { index, .. } => Some(index),
            ClaimableKind::Nic => None,
        }
    }

    /// Whether two devices share a part: a GPU and its slices or partitions, or partitions that
    /// overlap.
    pub fn overlaps(&self, other: &Claimable) -> bool {
        let whole = |one: &Claimable| matches!(one.what, ClaimableKind::Gpu { .. });
        match (&self.what, &other.what) {
            (
                ClaimableKind::Partition {
                    index, place, size, ..
                },
                ClaimableKind::Partition {
                    index: beside,
                    place: there,
                    size: its,
                },
            ) => {
                let apart = place.start + size <= there.start || there.start + its <= place.start;
                index == beside && !apart
            }
            _ if whole(self) || whole(other) => self.gpu().is_some() && self.gpu() == other.gpu(),
            _ => self.device.name == other.device.name,
        }
    }

    /// The environment variable that names the device to a program, and its value.
    pub fn variable(&self) -> (String, &str) {
        let name = match &self.what {
            ClaimableKind::Gpu { index } => format!("MUSTER_GPU_{index}"),
            ClaimableKind::Slice { index, place } => format!("MUSTER_MIG_{index}_{place}"),
            ClaimableKind::Partition { index, place, .. } => {
                format!("MUSTER_MIG_{index}_{}", place.start)
            }
            ClaimableKind::Nic => {
                let upper = self.id.to_ascii_uppercase();
                let plain = upper.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
                format!("MUSTER_NIC_{plain}")
            }
        };
        (name, &self.id)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use hardware::description::MachineDescription;
    use proptest::prelude::*;

    use super::*;

    fn machine(text: &str) -> Vec<Claimable> {
        let mut found = Inventory::default();
        let description = MachineDescription::parse(text, Path::new("m.toml"));
        description.expect("a machine").apply(&mut found);
        all(&found)
    }

    const TWO: &str = r#"
        [machine]
        driver = "535.104.05"
        cuda = "12.2"
        [[switch]]
        address = "0000:16:00.0"
        under = "pci0000:15"
        [[gpu]]
        model = "NVIDIA H100 80GB HBM3"
        memory_mib = 81920
        compute_capability = "9.0"
        id = ["GPU-AB"]
        numa = 1
        pci = ["0000:18:00.0"]
        under = ["0000:16:00.0"]
        [[gpu]]
        model = "NVIDIA H100 80GB HBM3"
        memory_mib = 81920
        id = ["GPU-CD"]
        healthy = false
        mig = ["1g.10gb"]
        [[nic]]
        name = "mlx5_0"
        under = "0000:16:00.0"
        ports = [{ gbits = 400, layer = "InfiniBand" }]
        [[nic]]
        name = "mlx5_1"
        ports = [{ gbits = 400, layer = "Ethernet", state = "DOWN" }]
    "#;

    #[test]
    fn gpus_slices_and_cards_have_their_attributes() {
        let all = machine(TWO);
        let by = |name: &str| {
            let found = all.iter().find(|one| one.device.name == name);
            found.unwrap_or_else(|| panic!("{name} of {all:#?}"))
        };
        let json = |name: &str| serde_json::to_value(&by(name).device).expect("plain data");
        assert_eq!(all.len(), 4);
        assert_eq!(
            json("gpu-ab"),
            serde_json::json!({"name": "gpu-ab", "capacity": {"memory": {"value": "80Gi"}},
                "attributes": {
                    "type": {"string": "gpu"}, "uuid": {"string": "GPU-AB"}, "index": {"int": 0},
                    "productName": {"string": "NVIDIA H100 80GB HBM3"},
                    "architecture": {"string": "hopper"},
                    "cudaComputeCapability": {"version": "9.0.0"},
                    "driverVersion": {"version": "535.104.5"},
                    "cudaDriverVersion": {"version": "12.2.0"},
                    "numaNode": {"int": 1}, "pciBusID": {"string": "0000:18:00.0"},
                    "resource.kubernetes.io/pcieRoot": {"string": "pci0000:15"}}})
        );
        let slice = (all.iter())
            .find(|one| matches!(one.what, ClaimableKind::Slice { index: 1, .. }))
            .expect("a slice");
        assert!(slice.device.name.starts_with("mig-"), "{slice:#?}");
        assert!(
            slice.problem.starts_with("GPU 1 is unhealthy"),
            "{slice:#?}"
        );
        let slice = serde_json::to_value(&slice.device).expect("plain data");
        assert_eq!(slice["attributes"]["profile"]["string"], "1g.10gb");
        assert_eq!(slice["attributes"]["parentUUID"]["string"], "GPU-CD");
        assert_eq!(slice["capacity"]["memory"]["value"], "9984Mi");
        let nic = json("nic-mlx5-0");
        assert_eq!(nic["capacity"]["bandwidth"]["value"], "400G");
        assert_eq!(
            nic["attributes"]["resource.kubernetes.io/pcieRoot"]["string"],
            "pci0000:15"
        );
        assert_eq!(by("nic-mlx5-0").problem, "");
        assert_eq!(by("nic-mlx5-1").problem, "no port of mlx5_1 is up");
        assert_eq!(
            by("nic-mlx5-1").variable(),
            ("MUSTER_NIC_MLX5_1".into(), "mlx5_1")
        );
    }

    proptest! {
        /// For any name of a card from a driver, the result is valid for the API.
        #[test]
        fn names_are_what_the_api_takes_and_no_text_panics(text in "\\PC{0,90}") {
            let name = name_of(&format!("GPU-{text}"));
            prop_assert!((1..=NAME_MAX).contains(&name.len()), "{name:?}");
            let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            prop_assert!(name.chars().all(inner), "{name:?}");
            prop_assert!(!name.starts_with('-') && !name.ends_with('-'), "{name:?}");
        }
    }
}
