//! One node: what it offers, what is used of it, which devices are held. Knows nothing of pods
//! beyond what they take, and decides nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1 as k8s;
use resources::amounts::Amounts;
use resources::devices::inventory;
use resources::names::{NVIDIA_GPU_MEMORY, RUNTIME_CRI, RUNTIME_HOST_IMAGES, RUNTIME_PROCESS};

use crate::class::Class;
use crate::cutting::{Cuttable, State};
use crate::devices::Devices;
use crate::gpu::Kind;
use crate::health::Health;
use crate::listed::Listed;
use crate::resource::{GPU, GPU_UNIT, Names, Room, Set, each};
use crate::share::{FreeGpus, Ledger, Take, foreign};

/// A node's place in the state's table.
pub(crate) type NodeIx = usize;

/// What kinds of pods a node runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Runtimes {
    pub(crate) process: bool,
    pub(crate) images: bool,
}

/// What a Node object says, apart from what pods take.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Offer {
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) taints: Vec<k8s::Taint>,
    pub(crate) unschedulable: bool,
    pub(crate) ready: bool,
    pub(crate) runtimes: Runtimes,
    pub(crate) allocatable: Room,
    pub(crate) health: Health,
    /// The devices known one by one; none where only their number is known.
    pub(crate) devices: Option<Devices>,
    /// Its slices of GPUs and other vendors' devices, where its inventory names them.
    pub(crate) listed: Listed,
    /// The resources of which a container gets one at most.
    pub(crate) one_at_most: Set,
    /// What it says of cutting its GPUs.
    pub(crate) cuttable: Option<Cuttable>,
    /// Its GPUs and slices whose work can't go on.
    pub(crate) failed: BTreeSet<Arc<str>>,
    /// What each GPU has of memory, in MiB, where that is known.
    pub(crate) gpu_memory: Option<i64>,
    /// What its GPUs are.
    pub(crate) kind: Kind,
    /// The resources that are its GPUs by their model.
    pub(crate) models: Set,
}

impl Offer {
    pub(crate) fn read(node: &k8s::Node, names: &mut Names) -> Offer {
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
        let listed = Listed::read(&offered, &inventory.described);
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
        let mut offer = Offer {
            models: 0,
            kind: Kind::read(&labels, gpus.as_deref().unwrap_or_default()),
            gpu_memory: memory.filter(|mib| *mib > 0),
            runtimes: runtimes(&labels),
            labels,
            taints: spec.and_then(|s| s.taints.clone()).unwrap_or_default(),
            unschedulable: spec.and_then(|s| s.unschedulable).unwrap_or(false),
            ready: ready(status),
            allocatable,
            health: Health::read(node),
            devices: gpus.map(|gpus| Devices::new(&gpus)),
            listed,
            one_at_most,
            cuttable: Cuttable::read(node, names),
            failed,
        };
        offer.count_models(names);
        offer
    }

    /// Counts its GPUs under the names of their model, too. True if that is another set of names
    /// than before.
    pub(crate) fn count_models(&mut self, names: &Names) -> bool {
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

    /// Is it the same but for its load?
    pub(crate) fn but_for_load(&self, other: &Offer) -> bool {
        let Offer {
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
            cuttable,
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
            && *cuttable == other.cuttable
            && *failed == other.failed
            && *gpu_memory == other.gpu_memory
            && *kind == other.kind
            && *models == other.models
            && health.but_for_load(&other.health)
    }

    /// Are its GPUs being cut anew, so that nobody is to be given one?
    pub(crate) fn recut(&self) -> bool {
        let cuttable = self.cuttable.as_ref();
        cuttable.is_some_and(|it| it.state == State::Changing)
    }

    /// Are some of its GPUs such as a class may not have?
    pub(crate) fn withholds_from(&self, class: &Class) -> bool {
        let devices = self.devices.as_ref().filter(|_| class.has_several_gpus());
        devices.is_some_and(Devices::some_alone)
    }

    /// How much of a resource the node has when empty.
    pub(crate) fn capacity(&self, ix: u8) -> i64 {
        let amount = self.allocatable.get(ix);
        match &self.devices {
            Some(devices) if ix == GPU => amount.min(devices.healthy() * GPU_UNIT),
            _ => amount,
        }
    }
}

/// A node whose agent or kubelet says that it is not ready, or has stopped saying anything, takes
/// no pods. One that never said either way can only be a described one: it has what it says.
fn ready(status: Option<&k8s::NodeStatus>) -> bool {
    status
        .and_then(|s| s.conditions.as_ref())
        .and_then(|all| all.iter().find(|c| c.type_ == "Ready"))
        .is_none_or(|condition| condition.status == "True")
}

/// A node without any of the labels is somebody else's (a kubelet), and is not judged by them.
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

/// A node, or the place of one that pods name but that is not there.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) name: Arc<str>,
    pub(crate) offer: Option<Offer>,
    pub(crate) used: Room,
    /// The part of `used` that is meant for pods that are not bound yet.
    pub(crate) pipelined: Room,
    /// What pods hold that are leaving; not in `used`.
    pub(crate) leaving: Room,
    /// Pods that are leaving, and what they still hold of GPUs.
    pub(crate) leavers: usize,
    pub(crate) leaving_held: Ledger,
    /// What pods hold of GPUs (more than there is of one is somebody's mistake).
    pub(crate) held: Ledger,
    /// The part of it that is meant for pods that are not bound yet.
    pub(crate) pipelined_held: Ledger,
    /// Pods that take room here.
    pub(crate) pods: usize,
    /// What is free of the GPUs.
    pub(crate) gpus: FreeGpus,
    /// What is free of those that a container may have several of; none where those are all.
    together: Option<FreeGpus>,
    /// The number of the change that last touched the node.
    pub(crate) touched: u64,
    /// How empty it was then, in thousandths (`score::idle`).
    pub(crate) idle: i64,
    /// The number of the last change to the offer: what does not depend on usage holds while
    /// this stands still.
    pub(crate) offered: u64,
    /// Place among all nodes by name; breaks ties.
    pub(crate) rank: u32,
    /// Takes nobody while one attempt lasts: what is free here is somebody's soon.
    pub(crate) curtained: bool,
}

impl Node {
    pub(crate) fn new(name: Arc<str>) -> Node {
        Node {
            name,
            offer: None,
            used: Room::default(),
            pipelined: Room::default(),
            leaving: Room::default(),
            leavers: 0,
            leaving_held: Ledger::default(),
            held: Ledger::default(),
            pipelined_held: Ledger::default(),
            pods: 0,
            gpus: FreeGpus::default(),
            together: None,
            touched: 0,
            idle: 0,
            offered: 0,
            rank: 0,
            curtained: false,
        }
    }

    /// Does its room count as the cluster's?
    pub(crate) fn usable(&self) -> bool {
        self.offer
            .as_ref()
            .is_some_and(|offer| offer.ready && !offer.unschedulable)
    }

    pub(crate) fn set_offer(&mut self, offer: Option<Offer>) {
        self.offer = offer;
        self.count_devices();
    }

    /// How much of a resource is free; of GPUs, those that nobody has a part of.
    pub(crate) fn free(&self, ix: u8) -> i64 {
        let Some(offer) = &self.offer else { return 0 };
        if ix == GPU {
            return self.gpus.whole.saturating_mul(GPU_UNIT);
        }
        offer.allocatable.get(ix) - self.used.get(ix)
    }

    /// What is free of such GPUs as a class may have.
    pub(crate) fn gpus_for(&self, class: &Class) -> &FreeGpus {
        match &self.together {
            Some(together) if class.has_several_gpus() => together,
            _ => &self.gpus,
        }
    }

    /// How much of a resource is free for a class; of GPUs, as in `free`.
    pub(crate) fn free_for(&self, class: &Class, ix: u8) -> i64 {
        if ix == GPU {
            return self.gpus_for(class).whole.saturating_mul(GPU_UNIT);
        }
        self.free(ix)
    }

    /// How much of a resource nobody uses: of GPUs, the parts too.
    pub(crate) fn unused(&self, ix: u8) -> i64 {
        if ix == GPU {
            return self.gpus.sum();
        }
        self.free(ix)
    }

    /// The resources that are its GPUs by their model.
    pub(crate) fn models(&self) -> Set {
        self.offer.as_ref().map_or(0, |offer| offer.models)
    }

    /// What each of its GPUs has of memory, in MiB, where that is known.
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

    /// A pod that is on the way out comes to the account, or is gone from it.
    pub(crate) fn see_leave(&mut self, take: &Take, devices: &[Arc<str>], up: bool) {
        if up {
            self.leaving.add(&take.demand, 1);
            self.leavers += 1;
            self.leaving_held.hold(take, devices);
        } else {
            self.leaving.add(&take.demand, -1);
            self.leavers = self.leavers.saturating_sub(1);
            self.leaving_held.release(take, devices);
        }
    }

    /// A pod whose room is counted turns out to be only meant for it, or is that no more.
    pub(crate) fn see_pipelined(&mut self, take: &Take, devices: &[Arc<str>], up: bool) {
        if up {
            self.pipelined.add(&take.demand, 1);
            self.pipelined_held.hold(take, devices);
        } else {
            self.pipelined.add(&take.demand, -1);
            self.pipelined_held.release(take, devices);
        }
    }

    /// How much of a resource is free of everybody, of those who leave too, and not counting those
    /// whose place is only held.
    pub(crate) fn free_now(&self, ix: u8) -> i64 {
        let Some(offer) = &self.offer else { return 0 };
        offer.allocatable.get(ix) - self.used.get(ix) + self.pipelined.get(ix)
            - self.leaving.get(ix)
    }

    /// What is held of GPUs by those who are there, and those who leave.
    pub(crate) fn held_now(&self) -> Ledger {
        let there = self.held.clone().with(&self.pipelined_held, -1);
        there.with(&self.leaving_held, 1)
    }

    /// Is more of some resource spoken for than there is?
    pub(crate) fn overdrawn(&self) -> bool {
        let Some(offer) = &self.offer else {
            return true;
        };
        self.used
            .iter()
            .any(|(ix, used)| used > 0 && used > offer.allocatable.get(ix))
            || self.held.overdrawn()
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
