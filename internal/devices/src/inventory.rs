//! The machine's inventory as sent to the server, from the discovery of `hardware`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use crate::exclusive;
use crate::labels;
use crate::mps::MpsDaemonStates;
use crate::rdma::{NodeRdmaCards, Pool};
use crate::sharing::Sharing;
use crate::vendors::{self, DeviceStock, Stock};
use hardware::rdma::RdmaProposal;
use hardware::{GpuChooser, PathGraph};
use resources::devices::{
    GpuDevice, GpuLink, MigSlice, NicDevice, NodeInventory, ReportedNumaNode,
};
use resources::names::NVIDIA_GPU;

/// The node's hardware.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeHardware {
    /// The inventory as sent to the server.
    pub inventory: NodeInventory,
    /// The numbers in the GPUs' device files' names, by id; described GPUs have none.
    pub minors: BTreeMap<String, u32>,
    /// The numbers in the names of slices' own device files, by the slices' ids.
    pub capabilities: BTreeMap<String, Vec<u32>>,
    /// Problems that do not stop the node, in a sentence; empty without any.
    pub suspect: String,
    /// The failure of its RDMA, in a sentence; empty without any.
    pub fabric: String,
    /// The RDMA variables for work.
    pub rdma: RdmaProposal,
    /// Other vendors' devices, by their resource; empty where a kubelet allocates them.
    pub described: BTreeMap<String, Stock>,
    /// RDMA cards that containers share, by their resource; empty where a kubelet counts the
    /// shares.
    pub cards: BTreeMap<String, Pool>,
    /// The file with its PCIe tree for NCCL, if there is one.
    pub topology: Option<PathBuf>,
    /// The GPUs that are shared by MPS.
    pub mps: MpsDaemonStates,
    /// Chooses GPUs with good links to each other.
    pub chooser: Arc<GpuChooser>,
}

impl NodeHardware {
    /// Converts a discovered inventory.
    pub fn of(found: &hardware::Inventory) -> NodeHardware {
        let gpus = found.gpus.iter().map(|gpu| GpuDevice {
            id: gpu.id.clone(),
            index: gpu.index,
            model: gpu.model.clone(),
            memory_mib: gpu.memory_mib,
            numa: gpu.numa,
            healthy: gpu.healthy,
            failed: gpu.failed,
            alone: false,
            pci: gpu.pci.clone(),
            switch: switch(found, &gpu.under),
            compute_capability: gpu.compute_capability.clone(),
            driver: gpu.driver.clone(),
            slices: gpu
                .slices
                .as_ref()
                .map(|all| all.iter().map(slice).collect()),
            links: gpu.links.iter().map(link).collect(),
        });
        let numa_nodes = found.numa_nodes.iter().map(|node| ReportedNumaNode {
            id: node.id,
            cpus: node.cpus.clone(),
            memory_bytes: node.memory_bytes,
        });
        NodeHardware {
            inventory: NodeInventory {
                gpus: gpus.collect(),
                cpus: found.cpus,
                memory_bytes: found.memory_bytes,
                disk_bytes: None,
                numa_nodes: numa_nodes.collect(),
                nics: found.nics.iter().map(|nic| card(found, nic)).collect(),
                hostname: found.hostname.clone(),
                kernel: found.kernel.clone(),
                os: found.os.clone(),
                source: found.origin.as_str().to_owned(),
                mig_strategy: found.mig_strategy.clone(),
                one_at_most: BTreeSet::new(),
                shared: BTreeMap::new(),
                described: BTreeMap::new(),
                labels: BTreeMap::new(),
            },
            minors: found
                .gpus
                .iter()
                .filter_map(|gpu| Some((gpu, gpu.minor?)))
                .flat_map(|(gpu, minor)| {
                    // A slice's device file is its GPU's.
                    let slices = gpu.slices.iter().flatten().map(|slice| &slice.id);
                    let ids = std::iter::once(&gpu.id).chain(slices);
                    ids.map(move |id| (id.clone(), minor))
                })
                .collect(),
            capabilities: (found.gpus.iter())
                .flat_map(|gpu| gpu.slices.iter().flatten())
                .map(|slice| (slice.id.clone(), slice.capabilities.clone()))
                .collect(),
            suspect: suspicion(found),
            fabric: found.fabric.clone(),
            rdma: RdmaProposal::default(),
            described: BTreeMap::new(),
            cards: BTreeMap::new(),
            topology: None,
            mps: MpsDaemonStates::new(),
            chooser: Arc::new(GpuChooser::new(PathGraph::of(found))),
        }
    }

    /// The same with its node's labels, and with sharing applied to its devices.
    pub fn labelled(found: &hardware::Inventory, sharing: &Sharing, since: i64) -> NodeHardware {
        let mut machine = NodeHardware::of(found);
        exclusive::mark(&mut machine.inventory, sharing);
        machine.inventory.labels = labels::of(found, sharing, since);
        machine
    }

    /// Adds the cards that containers share. A resource without cards is not offered.
    pub fn share(&mut self, cards: &NodeRdmaCards) {
        for (resource, (pool, shares)) in cards.now() {
            if !pool.cards.is_empty() {
                self.inventory.shared.insert(resource.clone(), shares);
            }
            self.cards.insert(resource, pool);
        }
    }

    /// Adds other vendors' devices.
    pub fn describe(&mut self, described: &DeviceStock) {
        self.described = described.now();
        self.inventory.described = vendors::offered(&self.described);
    }

    /// Withholds slices and other vendors' devices that are held under another resource than they
    /// are offered as now: allocations are counted by resource, and after a change of strategy,
    /// layout or description the device would be offered again.
    pub fn withhold(&mut self, held: &BTreeMap<String, String>) {
        let offered = self.inventory.offered();
        let by_profile = offered.slices.iter().flat_map(|(resource, slices)| {
            let ids = slices.iter().map(|(_, slice)| slice.id.as_str());
            ids.map(move |id| (id, resource.as_str()))
        });
        let as_gpus = offered.gpus.iter().map(|gpu| (gpu.id.as_str(), NVIDIA_GPU));
        let now: BTreeMap<&str, &str> = by_profile.chain(as_gpus).collect();
        let gpus = self.inventory.gpus.iter_mut();
        for slice in gpus.flat_map(|gpu| gpu.slices.iter_mut().flatten()) {
            let had = held.get(&slice.id).map(String::as_str);
            slice.healthy &= had.is_none_or(|had| now.get(&*slice.id) == Some(&had));
        }
        for (resource, devices) in &mut self.inventory.described {
            for device in devices {
                let had = held.get(&device.id).filter(|had| *had != resource);
                if let Some(had) = had.filter(|_| device.healthy) {
                    device.healthy = false;
                    device.why = format!("a pod has it as {had} until it ends");
                }
            }
        }
    }

    /// As JSON, for the wire.
    pub fn json(&self) -> String {
        serde_json::to_string(&self.inventory).expect("an inventory is plain data and always JSON")
    }
}

/// Problems that do not stop the node: an unhealthy GPU, or hardware that seems present and can't
/// be read.
pub fn suspicion(found: &hardware::Inventory) -> String {
    let unhealthy = found.gpus.iter().filter(|gpu| !gpu.healthy);
    let unhealthy = unhealthy.map(|gpu| format!("GPU {} is unhealthy: {}", gpu.index, gpu.problem));
    let concerned = found.gpus.iter().flat_map(|gpu| {
        let concerns = gpu.concerns.iter();
        concerns.map(|concern| format!("GPU {}: {concern}", gpu.index))
    });
    let machine = found.concerns.iter().chain(&found.warnings).cloned();
    let all: Vec<String> = unhealthy.chain(concerned).chain(machine).collect();
    match &all[..] {
        [] => String::new(),
        [one] => one.clone(),
        [first, rest @ ..] => format!("{first} (and {} more)", rest.len()),
    }
}

fn slice(slice: &hardware::MigDevice) -> MigSlice {
    MigSlice {
        id: slice.id.clone(),
        profile: slice.profile.clone(),
        memory_mib: slice.memory_mib,
        healthy: true,
        alone: false,
    }
}

/// The switch to which a device is attached; empty if that is a host bridge.
fn switch(found: &hardware::Inventory, under: &str) -> String {
    let is_switch = found.switches.iter().any(|switch| switch.address == under);
    if is_switch {
        under.to_owned()
    } else {
        String::new()
    }
}

fn card(found: &hardware::Inventory, nic: &hardware::Nic) -> NicDevice {
    let up = nic.ports.iter().filter(|port| port.is_up());
    let layer = nic.ports.iter().find(|port| !port.layer.is_empty());
    NicDevice {
        name: nic.name.clone(),
        numa: nic.numa,
        switch: switch(found, &nic.under),
        gbits: up.map(|port| port.gbits).sum(),
        layer: layer.map_or_else(String::new, |port| port.layer.clone()),
    }
}

fn link(link: &hardware::GpuPath) -> GpuLink {
    GpuLink {
        to: link.to.clone(),
        kind: link.kind.as_str().to_owned(),
        count: link.count,
    }
}

#[cfg(test)]
mod tests {
    use resources::devices::DescribedDevice;

    use super::*;

    #[test]
    fn another_vendors_device_that_is_had_by_another_resource_is_not_given_out() {
        let device = |id: &str| DescribedDevice {
            id: id.to_owned(),
            healthy: true,
            ..DescribedDevice::default()
        };
        let mut machine = NodeHardware::default();
        let devices = ["/dev/a", "/dev/b", "/dev/c"].map(device).to_vec();
        machine.inventory.described = [("new.com/x".to_owned(), devices)].into();
        let held = [("/dev/a", "old.com/x"), ("/dev/b", "new.com/x")];
        machine.withhold(&held.map(|(id, by)| (id.to_owned(), by.to_owned())).into());
        let devices = &machine.inventory.described["new.com/x"];
        let healthy: Vec<bool> = devices.iter().map(|device| device.healthy).collect();
        assert_eq!(healthy, [false, true, true]);
        assert!(devices[0].why.contains("old.com/x"), "{}", devices[0].why);
    }

    #[test]
    fn a_slice_that_is_had_by_another_resource_than_it_is_offered_as_is_not_given_out() {
        let held = |name: &str| [("MIG-a".to_owned(), name.to_owned())].into();
        let small = "nvidia.com/mig-1g.10gb";
        let given = |strategy: &str, profiles: [&str; 2], held: &BTreeMap<String, String>| {
            let slices = ["MIG-a", "MIG-b"].into_iter().zip(profiles);
            let slices = slices.map(|(id, profile)| hardware::MigDevice {
                id: id.to_owned(),
                profile: profile.to_owned(),
                ..hardware::MigDevice::default()
            });
            let gpu = hardware::Gpu {
                slices: Some(slices.collect()),
                ..hardware::Gpu::default()
            };
            let mut machine = NodeHardware::of(&hardware::Inventory {
                gpus: vec![gpu],
                mig_strategy: strategy.to_owned(),
                ..hardware::Inventory::default()
            });
            machine.withhold(held);
            let slices = machine.inventory.gpus[0].slices.iter().flatten();
            slices.map(|slice| slice.healthy).collect::<Vec<_>>()
        };
        let (alike, unlike) = (["1g.10gb"; 2], ["1g.10gb", "3g.40gb"]);
        for (strategy, profiles, held, first) in [
            ("mixed", alike, held(small), true),
            ("single", alike, held(small), false),
            ("single", alike, held(NVIDIA_GPU), true),
            ("single", unlike, held(NVIDIA_GPU), false),
            ("mixed", alike, held(NVIDIA_GPU), false),
            ("mixed", alike, BTreeMap::new(), true),
        ] {
            let given = given(strategy, profiles, &held);
            assert_eq!(given, [first, true], "{strategy} {profiles:?} {held:?}");
        }
    }
}
