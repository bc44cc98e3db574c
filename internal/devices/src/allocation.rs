//! The devices of a container and what it gets with them, worked out once from the scheduler's
//! choice, the container's requests and the node's inventory. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, Pod};
use resources::devices::chosen;
use resources::names::{NVIDIA_GPU, NVIDIA_MIG};

use crate::cdi::gpus::CONTROL_FILES;
use crate::inventory::NodeHardware;
use crate::rdma::{self, NoCard, Pool};
use crate::share::{ShareLimit, share_of};
use crate::{mps, vendors};

/// Why a container can't have the devices that were chosen for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocationError {
    /// The node lacks a chosen GPU.
    #[error(
        "device {device:?} was chosen for container {container:?}, but this node has no such GPU"
    )]
    NoGpu {
        /// The chosen device.
        device: String,
        /// The container.
        container: String,
    },
    /// Fewer devices were chosen than the container requests.
    #[error(
        "container {container:?} asks for {asked} of {resource}, but {chosen} were chosen for it"
    )]
    TooFew {
        /// The container.
        container: String,
        /// The number of devices that it requests.
        asked: usize,
        /// The resource.
        resource: String,
        /// The number of chosen devices.
        chosen: usize,
    },
    /// Another vendor's devices.
    #[error(transparent)]
    Vendor(#[from] vendors::VendorAllocationError),
    /// A GPU that is shared by MPS.
    #[error(transparent)]
    Mps(#[from] mps::MpsAllocationError),
    /// Shared RDMA cards.
    #[error(transparent)]
    Card(#[from] NoCard),
}

/// The devices of one container, and what it gets with them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocation {
    gpus: Gpus,
    others: vendors::ContainerDevices,
    mps: Option<mps::MpsSettings>,
    cards: Option<Pool>,
}

impl Allocation {
    /// The allocation of a pod's container on this machine.
    ///
    /// # Errors
    ///
    /// The machine lacks a chosen device, fewer devices were chosen than the container requests, or
    /// a device can't be used now.
    pub fn of(
        pod: &Pod,
        container: &Container,
        machine: &NodeHardware,
    ) -> Result<Allocation, AllocationError> {
        let gpus = gpus_of(pod, container, machine)?;
        let others = others_of(pod, container, machine)?;
        let memory = gpus
            .ids
            .first()
            .and_then(|id| machine.inventory.memory_of(id));
        let share = share_of(pod).map(|share| ShareLimit::of_share(&share, memory.unwrap_or(0)));
        let mps = mps::equip(&machine.mps, &gpus.ids, Some(share.unwrap_or_default()))?;
        Ok(Allocation {
            gpus,
            others,
            mps,
            cards: rdma::equipment(&machine.cards, &limits(container))?,
        })
    }

    /// Its GPUs.
    pub fn gpus(&self) -> &Gpus {
        &self.gpus
    }

    /// What it gets of other vendors' devices.
    pub fn others(&self) -> &vendors::ContainerDevices {
        &self.others
    }

    /// Its settings for MPS, if it shares its GPU by MPS.
    pub fn mps(&self) -> Option<&mps::MpsSettings> {
        self.mps.as_ref()
    }

    /// The shared RDMA cards that it requests, if any.
    pub fn cards(&self) -> Option<&Pool> {
        self.cards.as_ref()
    }

    /// Whether its programs may register memory with a device, which locks the memory.
    pub fn registers_memory(&self) -> bool {
        !self.gpus.ids.is_empty() || self.cards.is_some()
    }

    /// The files of its shared RDMA cards, below this directory of device files.
    pub fn card_files(&self, dev: &Path) -> Vec<PathBuf> {
        let place = dev.join("infiniband");
        let files = self.cards.iter().flat_map(|pool| &pool.files);
        files.map(|file| place.join(file)).collect()
    }

    /// The device files that it must open, below this directory of device files: of its GPUs, its
    /// shared RDMA cards and its devices of other vendors. Some may not exist.
    pub fn files(&self, dev: &Path) -> Vec<PathBuf> {
        let minors = &self.gpus.minors;
        let control = CONTROL_FILES.iter().filter(|_| !minors.is_empty());
        let mut files: Vec<PathBuf> = control.map(|name| dev.join(name)).collect();
        files.extend(
            minors
                .iter()
                .map(|minor| dev.join(format!("nvidia{minor}"))),
        );
        files.extend(self.card_files(dev));
        files.extend(self.others.files.iter().cloned());
        files
    }
}

/// The GPUs of one container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gpus {
    /// Their ids, as chosen.
    pub ids: Vec<String>,
    /// The devices for CUDA: their positions in the inventory's order, which is CUDA's with
    /// `CUDA_DEVICE_ORDER=PCI_BUS_ID`; slices by their ids, as CUDA takes them.
    pub seen: Vec<String>,
    /// The numbers in their device files' names, if they have device files.
    pub minors: Vec<u32>,
}

/// The container's GPUs; an error if the scheduler chose one that the node doesn't have, or fewer
/// than the container requests.
fn gpus_of(
    pod: &Pod,
    container: &Container,
    machine: &NodeHardware,
) -> Result<Gpus, AllocationError> {
    let mut given = given(pod, container);
    given.retain(|resource, _| is_nvidias(resource));
    let ids: Vec<String> = given.values().flatten().cloned().collect();
    let is_slice = |id: &String| {
        let gpus = machine.inventory.gpus.iter();
        let mut slices = gpus.flat_map(|gpu| gpu.slices.iter().flatten());
        slices.any(|slice| slice.id == *id)
    };
    let seen = ids
        .iter()
        .map(|id| {
            machine
                .inventory
                .gpus
                .iter()
                .find(|gpu| gpu.id == *id && gpu.slices.is_none())
                .map(|gpu| gpu.index.to_string())
                .or_else(|| is_slice(id).then(|| id.clone()))
                .ok_or_else(|| AllocationError::NoGpu {
                    device: id.clone(),
                    container: container.name.clone(),
                })
        })
        .collect::<Result<Vec<_>, _>>()?;
    let asked = requested_counts(container).into_iter();
    for (resource, asked) in asked.filter(|(resource, _)| is_nvidias(resource)) {
        let got = given.get(&resource).map_or(0, Vec::len);
        if asked > got {
            return Err(AllocationError::TooFew {
                container: container.name.clone(),
                asked,
                resource,
                chosen: got,
            });
        }
    }
    let minors = ids
        .iter()
        .filter_map(|id| machine.minors.get(id).copied())
        .collect();
    Ok(Gpus { ids, seen, minors })
}

/// The resources in a container's limits, by which shared and counted devices are requested.
pub fn limits(container: &Container) -> BTreeSet<String> {
    let amounts = container.resources.as_ref();
    let limits = amounts.and_then(|amounts| amounts.limits.as_ref());
    let some = |quantity: &str| quantity.parse::<u64>().is_ok_and(|count| count > 0);
    (limits.into_iter().flatten())
        .filter(|(_, quantity)| some(&quantity.0))
        .map(|(name, _)| name.clone())
        .collect()
}

/// How many of each resource a container requests, if that is a whole number.
fn requested_counts(container: &Container) -> BTreeMap<String, usize> {
    let resources = container.resources.as_ref();
    let lists = resources.map(|all| [all.requests.as_ref(), all.limits.as_ref()]);
    let lists = lists.into_iter().flatten().flatten().flatten();
    lists
        .filter_map(|(name, quantity)| Some((name.clone(), quantity.0.parse().ok()?)))
        .collect()
}

/// The scheduler's choice of devices for a container, by resource.
fn given(pod: &Pod, container: &Container) -> BTreeMap<String, Vec<String>> {
    let mut all = chosen(pod.metadata.annotations.as_ref());
    all.remove(&container.name).unwrap_or_default()
}

fn is_nvidias(resource: &str) -> bool {
    resource == NVIDIA_GPU || resource.starts_with(NVIDIA_MIG)
}

/// What the container gets of other vendors' devices; errors as for GPUs.
fn others_of(
    pod: &Pod,
    container: &Container,
    machine: &NodeHardware,
) -> Result<vendors::ContainerDevices, vendors::VendorAllocationError> {
    let mut given = given(pod, container);
    given.retain(|resource, _| !is_nvidias(resource));
    let asked = requested_counts(container);
    vendors::equipment(&machine.described, &container.name, &asked, &given)
}

impl Gpus {
    /// The variables that restrict the container to these devices. `renumbered`: the runtime
    /// numbers the container's GPUs from 0.
    pub fn variables(&self, renumbered: bool) -> Vec<(&'static str, String)> {
        let ids = if self.ids.is_empty() {
            "void".to_owned()
        } else {
            self.ids.join(",")
        };
        let mut variables = vec![("NVIDIA_VISIBLE_DEVICES", ids)];
        if !renumbered {
            variables.push(("CUDA_VISIBLE_DEVICES", self.seen.join(",")));
            variables.push(("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned()));
        }
        variables
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use resources::devices::{GpuDevice, NodeInventory};
    use serde_json::json;

    fn machine() -> NodeHardware {
        let gpu = |index: u32| GpuDevice {
            id: format!("GPU-{index}"),
            index,
            healthy: true,
            ..GpuDevice::default()
        };
        NodeHardware {
            inventory: NodeInventory {
                gpus: (0..4).map(gpu).collect(),
                ..NodeInventory::default()
            },
            minors: [("GPU-3".to_owned(), 7)].into(),
            ..NodeHardware::default()
        }
    }

    fn pod(annotation: &str, limit: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "annotations": {"muster.io/devices": annotation}},
            "spec": {"containers": [{"name": "main",
                "resources": {"limits": {"nvidia.com/gpu": limit}}}]}}))
        .unwrap()
    }

    fn gpus(pod: &Pod) -> Result<Gpus, String> {
        let found = gpus_of(pod, &pod.spec.as_ref().unwrap().containers[0], &machine());
        found.map_err(|error| error.to_string())
    }

    #[test]
    fn a_container_sees_the_devices_chosen_for_it() {
        let pod = pod(r#"{"main":{"nvidia.com/gpu":["GPU-3","GPU-1"]}}"#, "2");
        let variables = gpus(&pod).unwrap().variables(false);
        assert_eq!(gpus(&pod).unwrap().minors, [7]);
        assert_eq!(variables[0].1, "GPU-3,GPU-1");
        assert_eq!(variables[1], ("CUDA_VISIBLE_DEVICES", "3,1".to_owned()));
    }

    #[test]
    fn a_container_sees_slices_by_their_ids_and_no_gpu_that_is_cut() {
        let mut machine = machine();
        machine.inventory.gpus[3].slices = Some(vec![resources::devices::MigSlice {
            id: "MIG-1".into(),
            profile: "1g.10gb".into(),
            ..resources::devices::MigSlice::default()
        }]);
        machine.minors.insert("MIG-1".into(), 7);
        let small = "nvidia.com/mig-1g.10gb";
        let mut pod = pod(&json!({"main": {small: ["MIG-1"]}}).to_string(), "0");
        let container = &mut pod.spec.as_mut().unwrap().containers[0];
        container.resources = serde_json::from_value(json!({"limits": {small: "1"}})).unwrap();
        let of_it = |pod: &Pod| gpus_of(pod, &pod.spec.as_ref().unwrap().containers[0], &machine);
        let gpus = of_it(&pod).unwrap();
        assert_eq!(
            (gpus.seen.join(","), gpus.minors.clone()),
            ("MIG-1".to_owned(), vec![7])
        );
        assert_eq!(gpus.variables(true)[0].1, "MIG-1");
        pod.metadata.annotations = None;
        assert!(of_it(&pod).unwrap_err().to_string().contains(small));
        let whole = self::pod(r#"{"main":{"nvidia.com/gpu":["GPU-3"]}}"#, "1");
        assert!(of_it(&whole).is_err());
    }

    #[test]
    fn a_container_that_was_given_none_sees_none() {
        let variables = gpus(&pod("{}", "0")).unwrap().variables(false);
        assert_eq!(variables[0].1, "void");
        assert_eq!(variables[1].1, "");
        assert_eq!(gpus(&pod("{}", "0")).unwrap().variables(true).len(), 1);
    }

    #[test]
    fn a_device_that_is_not_here_or_missing_stops_the_container() {
        let foreign = pod(r#"{"main":{"nvidia.com/gpu":["GPU-9"]}}"#, "1");
        assert!(gpus(&foreign).unwrap_err().contains("GPU-9"));
        assert!(gpus(&pod("{}", "1")).unwrap_err().contains("asks for 1"));
    }
}
