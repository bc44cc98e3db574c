//! One node: what it offers, what pods use of it, and which devices they hold. Decides nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1 as k8s;
use resources::amounts::Amounts;
use resources::devices::inventory;
use resources::names::{NVIDIA_GPU_MEMORY, RUNTIME_CRI, RUNTIME_HOST_IMAGES, RUNTIME_PROCESS};

use crate::class::Class;
use crate::devices::Devices;
use crate::gpu::GpuKind;
use crate::health::NodeHealth;
use crate::listed_devices::ListedDevices;
use crate::repartition::{MigAnnotations, MigState};
use crate::resource::{GPU, GPU_UNIT, ResourceNames, ResourceSet, Room, each};
use crate::share::{FreeGpus, GpuLedger, Take, foreign};

/// A node's index in the state's table.
pub(crate) type NodeIx = usize;

/// The kinds of pods that a node runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Runtimes {
    pub(crate) process: bool,
    pub(crate) images: bool,
}

/// What a Node object states, apart from what pods use.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodeAttributes {
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) taints: Vec<k8s::Taint>,
    pub(crate) unschedulable: bool,
    pub(crate) ready: bool,
    pub(crate) runtimes: Runtimes,
    pub(crate) allocatable: Room,
    pub(crate) health: NodeHealth,
    /// Its devices one by one; `None` if only their number is known.
    pub(crate) devices: Option<Devices>,
    /// Its slices of GPUs and other vendors' devices, where its inventory names them.
    pub(crate) listed: ListedDevices,
    /// The resources of which a container gets at most one.
    pub(crate) one_at_most: ResourceSet,
    /// Its MIG configuration state.
    pub(crate) mig_annotations: Option<MigAnnotations>,
    /// Its failed GPUs and slices, on which work cannot go on.
    pub(crate) failed: BTreeSet<Arc<str>>,
    /// The memory of each GPU, in MiB, if known.
    pub(crate) gpu_memory: Option<i64>,
    /// Its GPU type.
    pub(crate) kind: GpuKind,
    /// The resources that count its GPUs by model.
    pub(crate) models: ResourceSet,
}

impl NodeAttributes {
    pub(crate) fn read(node: &k8s::Node, names: &mut ResourceNames) -> NodeAttributes {
        let labels = node.metadata.labels.clone().unwrap_or_default();
        let spec = node.spec.as_ref();
        let status = node.status.as_ref();
        let allocatable = status
            .and_then(|s| s.allocatable.as_ref().or(s.capacity.as_ref()))
            .map(Amounts::from_k8s)
            .unwrap_or_default();
        let (allocatable, shared) = foreign::offered(allocatable);
        let inventory = inventory(node.metadata.annotations.as_ref()).unwrap_or_default();
        let failed = inventory.failed().map(Arc::from).collect();
        let offered = inventory.offered();
        let listed = ListedDevices::read(&offered, &inventory.described);
        let mut allocatable = allocatable;
        for (resource, healthy) in listed.counts() {
            let least = allocatable.get(resource).min(healthy);
            allocatable.set(resource, least);
        }
        let allocatable = names.room(&allocatable);
        let single = inventory.one_at_most.iter();
        let single = single.filter_map(|name| names.find(name));
        let one_at_most = single.fold(0, |set, ix| set | 1 << ix);
        let gpus = (!inventory.gpus.is_empty()).then_some(offered.gpus);
        let least = gpus.iter().flatten().map(|gpu| gpu.memory_mib).min();
        let label = labels.get(NVIDIA_GPU_MEMORY);
        let memory = least
            .and_then(|mib| i64::try_from(mib).ok())
            .filter(|mib| *mib > 0)
            .or_else(|| label.and_then(|mib| mib.trim().parse().ok()))
            .or(shared);
        let mut offer = NodeAttributes {
            models: 0,
            kind: GpuKind::read(&labels, gpus.as_deref().unwrap_or_default()),
            gpu_memory: memory.filter(|mib| *mib > 0),
            runtimes: runtimes(&labels),
            labels,
            taints: spec.and_then(|s| s.taints.clone()).unwrap_or_default(),
            unschedulable: spec.and_then(|s| s.unschedulable).unwrap_or(false),
            ready: ready(status),
            allocatable,
            health: NodeHealth::read(node),
            devices: gpus.map(|gpus| Devices::new(&gpus)),
            listed,
            one_at_most,
            mig_annotations: MigAnnotations::read(node, names),
            failed,
        };
        offer.count_models(names);
        offer
    }

    /// Counts its GPUs under the resources of their models too. Returns true if that set changed.
    pub(crate) fn count_models(&mut self, names: &ResourceNames) -> bool {
        let gpus = self.allocatable.get(GPU);
        let models = if gpus > 0 {
            names.models_of(&self.kind)
        } else {
            0
        };
        for ix in each(self.models & !models) {
            self.allocatable.set(ix, 0);
        }
        for ix in each(models) {
            self.allocatable.set(ix, gpus);
        }
        std::mem::replace(&mut self.models, models) != models
    }

    /// True if both differ in their load only.
    pub(crate) fn but_for_load(&self, other: &NodeAttributes) -> bool {
        let NodeAttributes {
            labels,
            taints,
            unschedulable,
            ready,
            runtimes,
            allocatable,
            health,
            devices,
            listed,
            one_at_most,
            mig_annotations,
            failed,
            gpu_memory,
            kind,
            models,
        } = self;
        *labels == other.labels
            && *taints == other.taints
            && *unschedulable == other.unschedulable
            && *ready == other.ready
            && *runtimes == other.runtimes
            && *allocatable == other.allocatable
            && *devices == other.devices
            && *listed == other.listed
            && *one_at_most == other.one_at_most
            && *mig_annotations == other.mig_annotations
            && *failed == other.failed
            && *gpu_memory == other.gpu_memory
            && *kind == other.kind
            && *models == other.models
            && health.but_for_load(&other.health)
    }

    /// True while its GPUs are being repartitioned: no pod may get one then.
    pub(crate) fn is_repartitioning(&self) -> bool {
        let mig_annotations = self.mig_annotations.as_ref();
        mig_annotations.is_some_and(|it| it.state == MigState::Changing)
    }

    /// True if some of its GPUs may not be given to the class.
    pub(crate) fn withholds_from(&self, class: &Class) -> bool {
        let devices = self.devices.as_ref().filter(|_| class.has_several_gpus());
        devices.is_some_and(Devices::some_alone)
    }

    /// The amount of a resource on the empty node.
    pub(crate) fn capacity(&self, ix: u8) -> i64 {
        let amount = self.allocatable.get(ix);
        match &self.devices {
            Some(devices) if ix == GPU => amount.min(devices.healthy() * GPU_UNIT),
            _ => amount,
        }
    }
}

/// A node that reports not ready, or has stopped reporting, takes no pods. A node without a Ready
/// condition was described by hand (in a simulation) and counts as ready.
fn ready(status: Option<&k8s::NodeStatus>) -> bool {
    status
        .and_then(|s| s.conditions.as_ref())
        .and_then(|all| all.iter().find(|c| c.type_ == "Ready"))
        .is_none_or(|condition| condition.status == "True")
}

/// A node without any of the labels is a kubelet's, and runs all pods.
fn runtimes(labels: &BTreeMap<String, String>) -> Runtimes {
    let all = [RUNTIME_PROCESS, RUNTIME_CRI, RUNTIME_HOST_IMAGES];
    if !all.iter().any(|name| labels.contains_key(*name)) {
        return Runtimes {
            process: true,
            images: true,
        };
    }
    let yes = |name: &str| labels.get(name).is_some_and(|value| value == "true");
    Runtimes {
        process: yes(RUNTIME_PROCESS),
        images: yes(RUNTIME_CRI) || yes(RUNTIME_HOST_IMAGES),
    }
}

/// One node, or the entry for a node that pods name and that is unknown.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) name: Arc<str>,
    pub(crate) offer: Option<NodeAttributes>,
    pub(crate) used: Room,
    /// The part of `used` that is nominated to pods that are not bound yet.
    pub(crate) pipelined: Room,
    /// What terminating pods hold; not in `used`.
    pub(crate) leaving: Room,
    /// The number of terminating pods, and the GPUs that they still hold.
    pub(crate) terminating_pods: usize,
    pub(crate) terminating_held: GpuLedger,
    /// The GPUs that pods hold. (More than one whole GPU on one id is an error of another
    /// component.)
    pub(crate) held: GpuLedger,
    /// The part of it that is nominated to pods that are not bound yet.
    pub(crate) pipelined_held: GpuLedger,
    /// Pods that take capacity here.
    pub(crate) pods: usize,
    /// The free GPUs.
    pub(crate) gpus: FreeGpus,
    /// The free GPUs among those that a container may combine; `None` if that is all of them.
    together: Option<FreeGpus>,
    /// The number of the last change of the node.
    pub(crate) touched: u64,
    /// How empty it was then, in thousandths (`score::idle`).
    pub(crate) idle: i64,
    /// The number of the last change of the offer: what does not depend on use is valid while it is
    /// the same.
    pub(crate) offered: u64,
    /// Its position by name; breaks ties.
    pub(crate) rank: u32,
    /// True if it takes no pods during one attempt, because its free capacity is intended for
    /// another gang.
    pub(crate) closed_for_attempt: bool,
}

impl Node {
    pub(crate) fn new(name: Arc<str>) -> Node {
        Node {
            name,
            offer: None,
            used: Room::default(),
            pipelined: Room::default(),
            leaving: Room::default(),
            terminating_pods: 0,
            terminating_held: GpuLedger::default(),
            held: GpuLedger::default(),
            pipelined_held: GpuLedger::default(),
            pods: 0,
            gpus: FreeGpus::default(),
            together: None,
            touched: 0,
            idle: 0,
            offered: 0,
            rank: 0,
            closed_for_attempt: false,
        }
    }

    /// True if its capacity counts in the cluster's total.
    pub(crate) fn usable(&self) -> bool {
        self.offer
            .as_ref()
            .is_some_and(|offer| offer.ready && !offer.unschedulable)
    }

    pub(crate) fn set_offer(&mut self, offer: Option<NodeAttributes>) {
        self.offer = offer;
        self.count_devices();
    }

    /// The free amount of a resource; for GPUs, only GPUs that no pod has a part of.
    pub(crate) fn free(&self, ix: u8) -> i64 {
        let Some(offer) = &self.offer else { return 0 };
        if ix == GPU {
            return self.gpus.whole.saturating_mul(GPU_UNIT);
        }
        offer.allocatable.get(ix) - self.used.get(ix)
    }

    /// The free GPUs that a class may have.
    pub(crate) fn gpus_for(&self, class: &Class) -> &FreeGpus {
        match &self.together {
            Some(together) if class.has_several_gpus() => together,
            _ => &self.gpus,
        }
    }

    /// The free amount of a resource for a class; for GPUs as in `free`.
    pub(crate) fn free_for(&self, class: &Class, ix: u8) -> i64 {
        if ix == GPU {
            return self.gpus_for(class).whole.saturating_mul(GPU_UNIT);
        }
        self.free(ix)
    }

    /// The unused amount of a resource; for GPUs, parts included.
    pub(crate) fn unused(&self, ix: u8) -> i64 {
        if ix == GPU {
            return self.gpus.sum();
        }
        self.free(ix)
    }

    /// The resources that count its GPUs by model.
    pub(crate) fn models(&self) -> ResourceSet {
        self.offer.as_ref().map_or(0, |offer| offer.models)
    }

    /// The memory of each of its GPUs, in MiB, if known.
    pub(crate) fn gpu_memory(&self) -> Option<i64> {
        self.offer.as_ref().and_then(|offer| offer.gpu_memory)
    }

    pub(crate) fn occupy(&mut self, take: &Take, devices: &[Arc<str>]) {
        self.used.add(&take.demand, 1);
        self.pods += 1;
        self.held.hold(take, devices);
        self.count_devices();
    }

    pub(crate) fn vacate(&mut self, take: &Take, devices: &[Arc<str>]) {
        self.used.add(&take.demand, -1);
        self.pods = self.pods.saturating_sub(1);
        self.held.release(take, devices);
        self.count_devices();
    }

    /// Adds a terminating pod to the account, or removes it.
    pub(crate) fn count_terminating(&mut self, take: &Take, devices: &[Arc<str>], up: bool) {
        if up {
            self.leaving.add(&take.demand, 1);
            self.terminating_pods += 1;
            self.terminating_held.hold(take, devices);
        } else {
            self.leaving.add(&take.demand, -1);
            self.terminating_pods = self.terminating_pods.saturating_sub(1);
            self.terminating_held.release(take, devices);
        }
    }

    /// Marks the capacity of a pod as nominated, or no longer.
    pub(crate) fn count_nominated(&mut self, take: &Take, devices: &[Arc<str>], up: bool) {
        if up {
            self.pipelined.add(&take.demand, 1);
            self.pipelined_held.hold(take, devices);
        } else {
            self.pipelined.add(&take.demand, -1);
            self.pipelined_held.release(take, devices);
        }
    }

    /// The amount of a resource that is free now: terminating pods count as users, nominated ones
    /// do not.
    pub(crate) fn free_now(&self, ix: u8) -> i64 {
        let Some(offer) = &self.offer else { return 0 };
        offer.allocatable.get(ix) - self.used.get(ix) + self.pipelined.get(ix)
            - self.leaving.get(ix)
    }

    /// The GPUs held now: by placed and by terminating pods, not by nominated ones.
    pub(crate) fn held_now(&self) -> GpuLedger {
        let there = self.held.clone().with(&self.pipelined_held, -1);
        there.with(&self.terminating_held, 1)
    }

    /// True if more of some resource is used than exists.
    pub(crate) fn overcommitted(&self) -> bool {
        let Some(offer) = &self.offer else {
            return true;
        };
        self.used
            .iter()
            .any(|(ix, used)| used > 0 && used > offer.allocatable.get(ix))
            || self.held.overcommitted()
            || self.gpus.whole < 0
    }

    fn count_devices(&mut self) {
        (self.gpus, self.together) = match &self.offer {
            Some(offer) => (
                FreeGpus::of(offer, &self.held),
                FreeGpus::together(offer, &self.held),
            ),
            None => (FreeGpus::default(), None),
        };
    }
}
