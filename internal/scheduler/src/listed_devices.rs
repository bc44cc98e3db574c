//! Devices that a node's inventory lists one by one and that are allocated by a resource of their
//! own: MIG slices and other vendors' devices. Chooses the devices of a pod that is bound, and
//! records which pod holds which. Their number is a resource like any other
//! (`nvidia.com/mig-1g.10gb`, `amd.com/gpu`). Under MIG's single strategy a slice is a GPU, and is
//! not handled here.
//!
//! Tests: `tests/slices.rs`, `tests/described.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;

use resources::devices::{ChosenDevices, DescribedDevice, Offered};
use resources::names::NVIDIA_GPU;

use crate::devices::{DeviceRequest, Devices, deal_as};
use crate::node::NodeIx;
use crate::pod::PodKey;
use crate::state::Scheduler;

/// One MIG slice of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedSlice {
    id: Arc<str>,
    /// The index of its GPU.
    gpu: u32,
}

/// A node's listed devices, by resource.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ListedDevices {
    /// Healthy slices, in the order of their GPUs.
    slices: BTreeMap<String, Vec<ListedSlice>>,
    /// Other vendors' devices.
    described: BTreeMap<String, Devices>,
}

impl ListedDevices {
    /// Reads an inventory's slices and other vendors' devices.
    pub(crate) fn read(
        offered: &Offered,
        described: &BTreeMap<String, Vec<DescribedDevice>>,
    ) -> ListedDevices {
        let of = |(gpu, slice): &(u32, resources::devices::MigSlice)| {
            slice.healthy.then(|| ListedSlice {
                id: Arc::from(slice.id.as_str()),
                gpu: *gpu,
            })
        };
        let slices = offered.slices.iter();
        let slices =
            slices.map(|(name, list)| (name.clone(), list.iter().filter_map(of).collect()));
        let described = described.iter();
        let described = described.map(|(name, list)| (name.clone(), Devices::described(list)));
        ListedDevices {
            slices: slices.collect(),
            described: described.collect(),
        }
    }

    /// The number of healthy devices of each resource.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (&String, i64)> {
        let slices = self.slices.iter().map(|(name, list)| {
            let count = i64::try_from(list.len()).unwrap_or(i64::MAX);
            (name, count)
        });
        let described = self.described.iter();
        slices.chain(described.map(|(name, devices)| (name, devices.healthy())))
    }

    /// Chooses `count` free devices of a resource, or as many as there are. Slices come first from
    /// GPUs with slices in use, so that idle GPUs can be repartitioned.
    fn choose(&self, resource: &str, idle: impl Fn(&str) -> bool, count: usize) -> Vec<Arc<str>> {
        if let Some(devices) = self.described.get(resource) {
            return devices.choose(idle, count);
        }
        let slices = self.slices.get(resource).into_iter().flatten();
        let (mut free, held): (Vec<&ListedSlice>, Vec<&ListedSlice>) =
            slices.partition(|it| idle(&it.id));
        let begun = |gpu: u32| held.iter().any(|slice| slice.gpu == gpu);
        free.sort_by_key(|slice| !begun(slice.gpu));
        let chosen = free.into_iter().take(count);
        chosen.map(|slice| slice.id.clone()).collect()
    }
}

/// Which pods hold which listed devices.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListedDeviceHolders {
    pods: BTreeMap<PodKey, (NodeIx, Vec<Arc<str>>)>,
    nodes: BTreeMap<NodeIx, BTreeMap<Arc<str>, usize>>,
}

impl ListedDeviceHolders {
    /// Sets the devices that a pod on a node holds.
    pub(crate) fn hold(&mut self, key: &PodKey, at: NodeIx, ids: Vec<Arc<str>>) {
        self.release(key);
        if ids.is_empty() {
            return;
        }
        let node = self.nodes.entry(at).or_default();
        for id in &ids {
            *node.entry(id.clone()).or_default() += 1;
        }
        self.pods.insert(key.clone(), (at, ids));
    }

    /// Releases a pod's devices.
    pub(crate) fn release(&mut self, key: &PodKey) {
        let Some((at, ids)) = self.pods.remove(key) else {
            return;
        };
        let Some(node) = self.nodes.get_mut(&at) else {
            return;
        };
        for id in ids {
            if let Some(times) = node.get_mut(&id) {
                *times -= 1;
                if *times == 0 {
                    node.remove(&id);
                }
            }
        }
        if node.is_empty() {
            self.nodes.remove(&at);
        }
    }

    fn is_held(&self, at: NodeIx, id: &str) -> bool {
        self.nodes
            .get(&at)
            .is_some_and(|node| node.contains_key(id))
    }
}

/// The listed devices in a pod's annotation.
pub(crate) fn annotated_ids(chosen: &ChosenDevices) -> Vec<Arc<str>> {
    let mut ids: Vec<Arc<str>> = chosen
        .values()
        .flatten()
        .filter(|(resource, _)| *resource != NVIDIA_GPU)
        .flat_map(|(_, ids)| ids.iter().map(|id| Arc::from(id.as_str())))
        .collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

impl Scheduler {
    /// Adds the listed devices that a pod gets on the node that it is bound to.
    pub(crate) fn add_listed(
        &mut self,
        key: &PodKey,
        at: NodeIx,
        asks: &[DeviceRequest],
        devices: &mut ChosenDevices,
    ) {
        let Some(offer) = &self.nodes[at].offer else {
            return;
        };
        let idle = |id: &str| !self.listed.is_held(at, id);
        let mut taken = Vec::new();
        for (resource, _) in offer.listed.counts() {
            let mine: Vec<&DeviceRequest> =
                asks.iter().filter(|ask| ask.is_for(resource)).collect();
            let count = DeviceRequest::total(&mine);
            if count == 0 {
                continue;
            }
            let ids = offer.listed.choose(resource, idle, count);
            deal_as(mine.into_iter(), &ids, resource, devices);
            taken.extend(ids);
        }
        self.listed.hold(key, at, taken);
    }
}
