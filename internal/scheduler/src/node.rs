//! One node: what it offers, what is used of it, which devices are held. Knows nothing of pods
//! beyond what they take, and decides nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as k8s;
use resources::amounts::Amounts;
use resources::devices::inventory;
use resources::names::{RUNTIME_CRI, RUNTIME_HOST_IMAGES, RUNTIME_PROCESS};

use crate::devices::Devices;
use crate::health::Health;
use crate::resource::{Demand, GPU, Names, Room};

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
        let allocatable = names.room(&allocatable);
        let devices = inventory(node.metadata.annotations.as_ref())
            .filter(|inventory| !inventory.gpus.is_empty())
            .map(|inventory| Devices::new(&inventory.gpus));
        Offer {
            runtimes: runtimes(&labels),
            labels,
            taints: spec.and_then(|s| s.taints.clone()).unwrap_or_default(),
            unschedulable: spec.and_then(|s| s.unschedulable).unwrap_or(false),
            ready: ready(status),
            allocatable,
            health: Health::read(node),
            devices,
        }
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
        } = self;
        *labels == other.labels
            && *taints == other.taints
            && *unschedulable == other.unschedulable
            && *ready == other.ready
            && *runtimes == other.runtimes
            && *allocatable == other.allocatable
            && *devices == other.devices
            && health.but_for_load(&other.health)
    }

    /// How much of a resource the node has when empty.
    pub(crate) fn capacity(&self, ix: u8) -> i64 {
        let amount = self.allocatable.get(ix);
        match &self.devices {
            Some(devices) if ix == GPU => amount.min(devices.healthy()),
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
    /// Pods that are leaving, and the devices they still hold.
    pub(crate) leavers: usize,
    pub(crate) leaving_held: BTreeMap<Arc<str>, u32>,
    /// Device ids that pods hold, and how many hold each (more than one is somebody's mistake).
    pub(crate) held: BTreeMap<Arc<str>, u32>,
    /// GPUs asked for by pods that do not say which ones they have.
    pub(crate) unnamed_gpus: i64,
    /// Pods that take room here.
    pub(crate) pods: usize,
    /// Devices that are healthy and held by nobody.
    pub(crate) free_devices: i64,
    /// The number of the change that last touched the node.
    pub(crate) touched: u64,
    /// The number of the last change to the offer: what does not depend on usage holds while
    /// this stands still.
    pub(crate) offered: u64,
    /// Place among all nodes by name; breaks ties.
    pub(crate) rank: u32,
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
            leaving_held: BTreeMap::new(),
            held: BTreeMap::new(),
            unnamed_gpus: 0,
            pods: 0,
            free_devices: 0,
            touched: 0,
            offered: 0,
            rank: 0,
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

    /// How much of a resource is free.
    pub(crate) fn free(&self, ix: u8) -> i64 {
        let Some(offer) = &self.offer else { return 0 };
        let amount = offer.allocatable.get(ix) - self.used.get(ix);
        if ix == GPU && offer.devices.is_some() {
            return amount.min(self.free_devices - self.unnamed_gpus);
        }
        amount
    }

    pub(crate) fn occupy(&mut self, demand: &Demand, devices: &[Arc<str>]) {
        self.used.add(demand, 1);
        self.pods += 1;
        self.unnamed_gpus += unnamed(demand, devices);
        hold(&mut self.held, devices);
        self.count_devices();
    }

    pub(crate) fn vacate(&mut self, demand: &Demand, devices: &[Arc<str>]) {
        self.used.add(demand, -1);
        self.pods = self.pods.saturating_sub(1);
        self.unnamed_gpus -= unnamed(demand, devices);
        release(&mut self.held, devices);
        self.count_devices();
    }

    /// A pod that is on the way out comes to the account, or is gone from it.
    pub(crate) fn see_leave(&mut self, demand: &Demand, devices: &[Arc<str>], up: bool) {
        if up {
            self.leaving.add(demand, 1);
            self.leavers += 1;
            hold(&mut self.leaving_held, devices);
        } else {
            self.leaving.add(demand, -1);
            self.leavers = self.leavers.saturating_sub(1);
            release(&mut self.leaving_held, devices);
        }
    }

    /// How much of a resource is free of everybody, of those who leave too, and not counting those
    /// whose place is only held.
    pub(crate) fn free_now(&self, ix: u8) -> i64 {
        let Some(offer) = &self.offer else { return 0 };
        offer.allocatable.get(ix) - self.used.get(ix) + self.pipelined.get(ix)
            - self.leaving.get(ix)
    }

    /// Is more of some resource spoken for than there is?
    pub(crate) fn overdrawn(&self) -> bool {
        let Some(offer) = &self.offer else {
            return true;
        };
        self.used
            .iter()
            .any(|(ix, used)| used > 0 && used > offer.allocatable.get(ix))
            || self.held.values().any(|holders| *holders > 1)
    }

    fn count_devices(&mut self) {
        self.free_devices = self
            .offer
            .as_ref()
            .and_then(|offer| offer.devices.as_ref())
            .map_or(0, |devices| devices.free(&self.held).count() as i64);
    }
}

fn hold(held: &mut BTreeMap<Arc<str>, u32>, devices: &[Arc<str>]) {
    for id in devices {
        *held.entry(id.clone()).or_insert(0) += 1;
    }
}

fn release(held: &mut BTreeMap<Arc<str>, u32>, devices: &[Arc<str>]) {
    for id in devices {
        if let Some(holders) = held.get_mut(id) {
            *holders -= 1;
            if *holders == 0 {
                held.remove(id);
            }
        }
    }
}

fn unnamed(demand: &Demand, devices: &[Arc<str>]) -> i64 {
    (demand.get(GPU) - devices.len() as i64).max(0)
}
