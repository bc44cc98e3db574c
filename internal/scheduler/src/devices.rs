//! Chooses a pod's devices on a node: those with the best links (`links`), of one NUMA node if they
//! suffice, then in index order. Only healthy, free devices. Parts of a device are handled by
//! `share`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1 as k8s;
use resources::amounts::Amounts;
use resources::devices::{ChosenDevices, DescribedDevice, GpuDevice};
use resources::names::{NVIDIA_GPU, NVIDIA_MIG};

use crate::links::Links;
use crate::share::GpuAnnotations;

#[derive(Clone, Debug, PartialEq)]
struct Device {
    id: Arc<str>,
    numa: Option<u32>,
    healthy: bool,
    /// True if a container that has it may have no other device.
    alone: bool,
}

/// A node's devices, by index.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Devices {
    list: Vec<Device>,
    links: Links,
    /// True if some device may not be combined with others in a container.
    some_alone: bool,
}

impl Devices {
    pub(crate) fn new(gpus: &[GpuDevice]) -> Devices {
        let mut sorted: Vec<&GpuDevice> = gpus.iter().collect();
        sorted.sort_by(|a, b| (a.index, &a.id).cmp(&(b.index, &b.id)));
        let device = |gpu: &GpuDevice| Device {
            id: Arc::from(gpu.id.as_str()),
            numa: gpu.numa,
            healthy: gpu.healthy,
            alone: gpu.alone,
        };
        Devices {
            list: sorted.iter().copied().map(device).collect(),
            links: Links::read(&sorted),
            some_alone: gpus.iter().any(|gpu| gpu.alone),
        }
    }

    /// Another vendor's devices, in their order.
    pub(crate) fn described(devices: &[DescribedDevice]) -> Devices {
        let device = |device: &DescribedDevice| Device {
            id: Arc::from(device.id.as_str()),
            numa: device.numa,
            healthy: device.healthy,
            alone: false,
        };
        Devices {
            list: devices.iter().map(device).collect(),
            links: Links::read(&[]),
            some_alone: false,
        }
    }

    pub(crate) fn healthy(&self) -> i64 {
        self.list.iter().filter(|device| device.healthy).count() as i64
    }

    /// True if some device may not be combined with others in a container.
    pub(crate) fn some_alone(&self) -> bool {
        self.some_alone
    }

    /// True if a container that has this device may have no other.
    pub(crate) fn is_alone(&self, id: &str) -> bool {
        self.some_alone && self.list.iter().any(|it| it.alone && *it.id == *id)
    }

    pub(crate) fn is_healthy(&self, id: &Arc<str>) -> bool {
        self.list
            .iter()
            .any(|device| device.id == *id && device.healthy)
    }

    /// The healthy devices, by index.
    pub(crate) fn healthy_ids(&self) -> impl Iterator<Item = &Arc<str>> {
        let healthy = self.list.iter().filter(|device| device.healthy);
        healthy.map(|device| &device.id)
    }

    /// Chooses `count` free devices with the best links, or as many as are free. If all links are
    /// equal: from the NUMA node with the fewest sufficient devices, else from as few NUMA nodes as
    /// possible.
    pub(crate) fn choose(&self, idle: impl Fn(&str) -> bool, count: usize) -> Vec<Arc<str>> {
        if !self.links.are_even() {
            let all = self.list.iter().enumerate();
            let free = all.filter(|(_, device)| device.healthy && idle(&device.id));
            let free: Vec<usize> = free.map(|(at, _)| at).collect();
            let numa = |at: usize| self.list[at].numa;
            let best = self.links.best(&free, count, numa);
            return best
                .into_iter()
                .map(|at| self.list[at].id.clone())
                .collect();
        }
        let mut by_numa: BTreeMap<Option<u32>, Vec<&Device>> = BTreeMap::new();
        let free = |device: &&Device| device.healthy && idle(&device.id);
        for device in self.list.iter().filter(free) {
            by_numa.entry(device.numa).or_default().push(device);
        }
        let mut groups: Vec<Vec<&Device>> = by_numa.into_values().collect();
        let tightest = groups
            .iter()
            .enumerate()
            .filter(|(_, group)| group.len() >= count)
            .min_by_key(|(at, group)| (group.len(), *at))
            .map(|(at, _)| at);
        let chosen: Vec<&Device> = match tightest {
            Some(at) => groups.swap_remove(at).into_iter().take(count).collect(),
            None => {
                groups.sort_by_key(|group| std::cmp::Reverse(group.len()));
                groups.into_iter().flatten().take(count).collect()
            }
        };
        chosen.into_iter().map(|device| device.id.clone()).collect()
    }
}

/// How many devices of one resource a container requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceRequest {
    container: String,
    count: usize,
    /// True for an init container that ends before the main containers start: it uses their
    /// devices.
    borrows: bool,
    /// The resource; `None`: whole GPUs.
    resource: Option<Arc<str>>,
}

impl DeviceRequest {
    /// True if it requests this resource (not whole GPUs).
    pub(crate) fn is_for(&self, resource: &str) -> bool {
        self.resource.as_deref() == Some(resource)
    }

    /// How many devices satisfy all of them.
    pub(crate) fn total(asks: &[&DeviceRequest]) -> usize {
        let kept = asks.iter().filter(|ask| !ask.borrows);
        let borrowed = asks.iter().filter(|ask| ask.borrows).map(|ask| ask.count);
        kept.map(|ask| ask.count)
            .sum::<usize>()
            .max(borrowed.max().unwrap_or(0))
    }
}

/// True if some container gets more than one GPU or slice.
pub(crate) fn has_several_gpus(asks: &[DeviceRequest]) -> bool {
    let gpus = asks.iter().filter(|ask| ask.resource.is_none());
    gpus.into_iter().any(|ask| {
        let same_container = asks.iter().filter(|it| it.container == ask.container);
        let is_gpu = |it: &&DeviceRequest| {
            (it.resource.as_ref()).is_none_or(|it| it.starts_with(NVIDIA_MIG))
        };
        same_container
            .filter(is_gpu)
            .map(|it| it.count)
            .sum::<usize>()
            > 1
    })
}

/// The resources, except GPUs, of which a container requests more than one.
pub(crate) fn several(asks: &[DeviceRequest]) -> impl Iterator<Item = &str> {
    let many = asks.iter().filter(|ask| ask.count > 1);
    many.filter_map(|ask| ask.resource.as_deref())
}

/// The GPUs that each container requests; empty for pods without GPUs.
pub(crate) fn asks(spec: &k8s::PodSpec) -> Vec<DeviceRequest> {
    let counted = |container: &k8s::Container| vec![(None, amount_of(container, NVIDIA_GPU))];
    all_asks(spec, counted)
}

/// Like `asks`, for the other resources that a node may list device by device: slices of GPUs and
/// other vendors' devices.
pub(crate) fn listed_asks(spec: &k8s::PodSpec) -> Vec<DeviceRequest> {
    all_asks(spec, |container| {
        let resources = container.resources.as_ref();
        let lists = resources.map(|r| [r.requests.as_ref(), r.limits.as_ref()]);
        let lists = lists.into_iter().flatten().flatten();
        let names: BTreeSet<&String> = lists
            .flat_map(|list| list.keys())
            .filter(|name| name.contains('/') && *name != NVIDIA_GPU)
            .collect();
        let amount = |name: &String| (Some(Arc::from(name.as_str())), amount_of(container, name));
        names.into_iter().map(amount).collect()
    })
}

fn all_asks(
    spec: &k8s::PodSpec,
    counted: impl Fn(&k8s::Container) -> Vec<(Option<Arc<str>>, i64)>,
) -> Vec<DeviceRequest> {
    let inits = spec.init_containers.iter().flatten().map(|container| {
        let stays = container.restart_policy.as_deref() == Some("Always");
        (container, !stays)
    });
    let mains = spec.containers.iter().map(|container| (container, false));
    inits
        .chain(mains)
        .flat_map(|(container, borrows)| {
            let ask = move |(resource, count)| {
                let count = usize::try_from(count).unwrap_or(0);
                (count > 0).then(|| DeviceRequest {
                    container: container.name.clone(),
                    count,
                    borrows,
                    resource,
                })
            };
            counted(container).into_iter().filter_map(ask)
        })
        .collect()
}

/// What each container of a pod gets: of GPUs as the pod's annotations say, otherwise as requested.
pub(crate) fn wished(
    spec: &k8s::PodSpec,
    wish: &GpuAnnotations,
    gpus: &[DeviceRequest],
    listed: &[DeviceRequest],
) -> Vec<DeviceRequest> {
    let mut asks = match wish.share {
        // If containers request GPUs, each gets parts of that number of them.
        Some(share) if gpus.is_empty() || wish.container.is_some() => {
            asks_of_share(spec, wish.container.as_deref(), share.gpus)
        }
        _ => gpus.to_vec(),
    };
    asks.extend_from_slice(listed);
    asks
}

/// The request of a pod that takes parts of `count` GPUs: of the named container, else the first
/// that requests GPUs, else the first.
fn asks_of_share(spec: &k8s::PodSpec, named: Option<&str>, count: i64) -> Vec<DeviceRequest> {
    let all = || spec.containers.iter();
    let named = named.and_then(|name| all().find(|container| container.name == name));
    let container = named
        .or_else(|| all().find(|container| amount_of(container, NVIDIA_GPU) > 0))
        .or_else(|| spec.containers.first());
    let ask = container.map(|container| DeviceRequest {
        container: container.name.clone(),
        count: usize::try_from(count).unwrap_or(0),
        borrows: false,
        resource: None,
    });
    ask.into_iter().collect()
}

fn amount_of(container: &k8s::Container, resource: &str) -> i64 {
    let Some(resources) = &container.resources else {
        return 0;
    };
    let of = |list: &Option<BTreeMap<String, _>>| {
        list.as_ref()
            .filter(|list| list.contains_key(resource))
            .map(|list| Amounts::from_k8s(list).get(resource))
    };
    of(&resources.requests)
        .or_else(|| of(&resources.limits))
        .unwrap_or(0)
}

/// Assigns a pod's devices to its containers in order; init containers use the devices of the later
/// ones.
pub(crate) fn deal(asks: &[DeviceRequest], devices: &[Arc<str>]) -> ChosenDevices {
    let mut dealt = ChosenDevices::new();
    let asks = asks.iter().filter(|ask| ask.resource.is_none());
    deal_as(asks, devices, NVIDIA_GPU, &mut dealt);
    dealt
}

/// Like `deal`, for the devices of another resource; adds to what was assigned before.
pub(crate) fn deal_as<'a>(
    asks: impl Iterator<Item = &'a DeviceRequest>,
    devices: &[Arc<str>],
    resource: &str,
    dealt: &mut ChosenDevices,
) {
    if devices.is_empty() {
        return;
    }
    let mut next = 0;
    for ask in asks {
        let from = if ask.borrows { 0 } else { next };
        let to = (from + ask.count).min(devices.len());
        if !ask.borrows {
            next = to;
        }
        let ids = devices[from.min(to)..to]
            .iter()
            .map(|id| id.to_string())
            .collect();
        dealt
            .entry(ask.container.clone())
            .or_default()
            .insert(resource.to_owned(), ids);
    }
}

/// Every GPU that a pod's annotation lists, without duplicates.
pub(crate) fn ids(chosen: &ChosenDevices) -> Vec<Arc<str>> {
    let mut all: Vec<&String> = chosen
        .values()
        .filter_map(|by_resource| by_resource.get(NVIDIA_GPU))
        .flatten()
        .collect();
    all.sort_unstable();
    all.dedup();
    all.into_iter().map(|id| Arc::from(id.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus(numa: &[u32]) -> Devices {
        let list: Vec<GpuDevice> = numa
            .iter()
            .enumerate()
            .map(|(i, numa)| GpuDevice {
                id: format!("GPU-{i}"),
                index: i as u32,
                numa: Some(*numa),
                healthy: true,
                ..GpuDevice::default()
            })
            .collect();
        Devices::new(&list)
    }

    fn without(ids: &'static [&'static str]) -> impl Fn(&str) -> bool {
        |id| !ids.contains(&id)
    }

    #[test]
    fn devices_come_from_the_numa_node_that_has_just_enough() {
        let devices = gpus(&[0, 0, 0, 0, 1, 1, 1, 1]);
        let chosen = devices.choose(without(&["GPU-4", "GPU-5"]), 2);
        assert_eq!(chosen, [Arc::from("GPU-6"), Arc::from("GPU-7")]);
        let chosen = devices.choose(without(&["GPU-4", "GPU-5"]), 3);
        assert_eq!(
            chosen,
            [Arc::from("GPU-0"), Arc::from("GPU-1"), Arc::from("GPU-2")]
        );
    }

    #[test]
    fn devices_span_numa_nodes_only_when_none_suffices() {
        let devices = gpus(&[0, 0, 1, 1]);
        let chosen = devices.choose(without(&["GPU-0"]), 3);
        assert_eq!(
            chosen,
            [Arc::from("GPU-2"), Arc::from("GPU-3"), Arc::from("GPU-1")]
        );
    }

    #[test]
    fn unhealthy_devices_are_never_chosen() {
        let mut devices = gpus(&[0, 0]);
        devices.list[0].healthy = false;
        assert_eq!(devices.choose(without(&[]), 2), [Arc::from("GPU-1")]);
        assert_eq!(devices.healthy(), 1);
    }

    #[test]
    fn init_containers_borrow_and_sidecars_keep() {
        let ask = |name: &str, count, borrows| DeviceRequest {
            container: name.into(),
            count,
            borrows,
            resource: None,
        };
        let asks = [
            ask("fetch", 2, true),
            ask("sidecar", 1, false),
            ask("main", 2, false),
        ];
        let devices: Vec<Arc<str>> = ["a", "b", "c"].map(Arc::from).to_vec();
        let dealt = deal(&asks, &devices);
        assert_eq!(dealt["fetch"][NVIDIA_GPU], ["a", "b"]);
        assert_eq!(dealt["sidecar"][NVIDIA_GPU], ["a"]);
        assert_eq!(dealt["main"][NVIDIA_GPU], ["b", "c"]);
        assert_eq!(ids(&dealt), devices);
    }
}
