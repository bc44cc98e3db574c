//! Resource names as small numbers and amounts as vectors over them: checking whether a pod fits
//! takes a few integer comparisons. The numbers are internal to this crate and depend on event
//! order, so no decision may depend on their order.
//!
//! GPUs are counted in thousandths everywhere in this crate, because pods may share one.
//! `nvidia.com/gpu.MODEL` is a resource for the GPUs of one model: queues may set amounts of it,
//! and a node's GPUs of that model count under it too.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as K8sQuantity;
use resources::amounts::{self, Amounts, quantity_of};
use resources::names::{GPU_OF_MODEL, GPU_SHARED, NVIDIA_GPU, NVIDIA_MIG};
use resources::quantity::Quantity;

use crate::gpu::{GpuKind, Product};

/// The most resource names in a cluster. Further names share the last number, which no node offers,
/// so pods that request them wait, and their report says so.
pub(crate) const NAMES_MAX: usize = 128;

/// A resource's number.
pub(crate) type Ix = u8;

/// The largest amount of a resource that a pod or node counts with: 64 TiB of memory, 70 thousand
/// million GPUs. Larger amounts are cut to it, so that no sum over a hundred thousand pods or nodes
/// overflows.
pub(crate) const AMOUNT_MAX: i64 = 1 << 46;

/// `cpu`, in thousandths.
pub(crate) const CPU: Ix = 0;
/// `memory`, in bytes.
pub(crate) const MEMORY: Ix = 1;
/// `pods`.
pub(crate) const PODS: Ix = 2;
/// `nvidia.com/gpu`, in thousandths.
pub(crate) const GPU: Ix = 3;
/// One whole GPU.
pub(crate) const GPU_UNIT: i64 = 1000;
/// Stands for every name beyond the maximum.
const BEYOND: Ix = (NAMES_MAX - 1) as Ix;

/// A set of resources.
pub(crate) type ResourceSet = u128;

/// The known names.
#[derive(Clone, Debug)]
pub(crate) struct ResourceNames {
    list: Vec<String>,
    index: BTreeMap<String, Ix>,
    /// Resources counted in thousandths.
    gpus: ResourceSet,
    /// Resources that are the GPUs of one model.
    models: Vec<(Product, Ix)>,
    /// Resources that GPUs are allocated as: whole, or MIG slices.
    devices: ResourceSet,
}

impl ResourceNames {
    pub(crate) fn new() -> ResourceNames {
        let mut names = ResourceNames {
            list: Vec::new(),
            index: BTreeMap::new(),
            gpus: 1 << GPU,
            models: Vec::new(),
            devices: 1 << GPU,
        };
        for name in [amounts::CPU, amounts::MEMORY, amounts::PODS, NVIDIA_GPU] {
            names.intern(name);
        }
        names
    }

    pub(crate) fn intern(&mut self, name: &str) -> Ix {
        if let Some(ix) = self.index.get(name) {
            return *ix;
        }
        let next = self.list.len();
        if next >= usize::from(BEYOND) {
            return BEYOND;
        }
        let ix = next as Ix;
        self.list.push(name.to_owned());
        self.index.insert(name.to_owned(), ix);
        let model = name.strip_prefix(GPU_OF_MODEL).and_then(Product::read);
        if let Some(model) = model.filter(|_| name != GPU_SHARED) {
            self.gpus |= 1 << ix;
            self.models.push((model, ix));
        }
        if name.starts_with(NVIDIA_MIG) {
            self.devices |= 1 << ix;
        }
        ix
    }

    /// The number of a name, if it has one.
    pub(crate) fn find(&self, name: &str) -> Option<Ix> {
        self.index.get(name).copied()
    }

    /// The resources counted in thousandths.
    pub(crate) fn gpus(&self) -> ResourceSet {
        self.gpus
    }

    /// The resources that GPUs are allocated as: whole, and MIG slices.
    pub(crate) fn devices(&self) -> ResourceSet {
        self.devices
    }

    /// The numbers assigned so far.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = Ix> + use<> {
        0..self.list.len() as Ix
    }

    /// The resources that are the GPUs of one model.
    pub(crate) fn models(&self) -> &[(Product, Ix)] {
        &self.models
    }

    /// The model resources under which a node's GPUs count.
    pub(crate) fn models_of(&self, kind: &GpuKind) -> ResourceSet {
        let mut set = 0;
        for (model, ix) in &self.models {
            if kind.is(model) {
                set |= 1 << ix;
            }
        }
        set
    }

    /// The internal amount of one unit of a resource.
    pub(crate) fn unit(&self, ix: Ix) -> i64 {
        unit(self.gpus, ix)
    }

    /// An amount in units, rounded up.
    pub(crate) fn whole(&self, ix: Ix, amount: i64) -> i64 {
        -(-amount).div_euclid(self.unit(ix))
    }

    pub(crate) fn name(&self, ix: Ix) -> &str {
        self.list
            .get(usize::from(ix))
            .map_or("(too many resource names)", String::as_str)
    }

    /// A request as a sparse vector: only positive amounts, by number.
    pub(crate) fn demand(&mut self, amounts: &Amounts) -> Demand {
        let mut list: Vec<(Ix, i64)> = amounts
            .iter()
            .filter(|(_, amount)| *amount > 0)
            .map(|(name, amount)| {
                let ix = self.intern(name);
                (ix, amount.saturating_mul(self.unit(ix)).min(AMOUNT_MAX))
            })
            .collect();
        list.sort_unstable();
        list.dedup_by_key(|(ix, _)| *ix);
        Demand(list)
    }

    /// Bounds as written; fractions of a GPU are kept.
    pub(crate) fn bounds(&mut self, list: &BTreeMap<String, K8sQuantity>) -> Vec<(Ix, i64)> {
        let whole = Amounts::from_k8s(list);
        let mut bounds: Vec<(Ix, i64)> = whole
            .iter()
            .map(|(name, amount)| {
                let ix = self.intern(name);
                let exact = list.get(name).filter(|_| self.gpus & 1 << ix != 0);
                let exact = exact.and_then(|quantity| Quantity::parse_k8s(quantity).ok());
                let amount = exact.map_or(amount.saturating_mul(self.unit(ix)), |q| q.milli());
                (ix, amount.max(0))
            })
            .collect();
        bounds.sort_unstable();
        bounds.dedup_by_key(|(ix, _)| *ix);
        bounds
    }

    /// Capacity as a vector. Names beyond the maximum are dropped, so nothing is available of them.
    pub(crate) fn room(&mut self, amounts: &Amounts) -> Room {
        let mut room = Room::default();
        for (name, amount) in amounts.iter() {
            let ix = self.intern(name);
            if ix != BEYOND {
                let amount = amount.saturating_mul(self.unit(ix));
                room.set(ix, amount.clamp(-AMOUNT_MAX, AMOUNT_MAX));
            }
        }
        room
    }

    /// Back to names, without zeros. A fraction of a unit counts as one.
    pub(crate) fn amounts(&self, room: &Room) -> Amounts {
        self.listed(room.iter())
    }

    /// Like `amounts`, for any list.
    pub(crate) fn listed(&self, amounts: impl Iterator<Item = (Ix, i64)>) -> Amounts {
        amounts
            .filter(|(_, amount)| *amount != 0)
            .map(|(ix, amount)| (self.name(ix).to_owned(), self.whole(ix, amount)))
            .collect()
    }

    /// An amount as a quantity for display.
    pub(crate) fn quantity(&self, ix: Ix, amount: i64) -> Quantity {
        if self.gpus & 1 << ix != 0 {
            Quantity::from_milli(amount)
        } else {
            quantity_of(self.name(ix), amount)
        }
    }
}

/// The internal amount of one unit of a resource, given those counted in thousandths.
pub(crate) fn unit(gpus: ResourceSet, ix: Ix) -> i64 {
    if gpus & 1 << ix != 0 { GPU_UNIT } else { 1 }
}

/// The resources of a set.
pub(crate) fn each(mut set: ResourceSet) -> impl Iterator<Item = Ix> {
    std::iter::from_fn(move || {
        // Runs for each pod event: costs the size of the set, not of all resources.
        let ix = (set != 0).then(|| set.trailing_zeros() as Ix)?;
        set &= set - 1;
        Some(ix)
    })
}

/// Thousandths of GPUs as whole GPUs, rounded up.
pub(crate) fn whole_gpus(thousandths: i64) -> i64 {
    -(-thousandths).div_euclid(GPU_UNIT)
}

/// A request: pairs of resource and positive amount, by number.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Demand(pub(crate) Vec<(Ix, i64)>);

impl Demand {
    pub(crate) fn get(&self, ix: Ix) -> i64 {
        self.0
            .iter()
            .find(|(i, _)| *i == ix)
            .map_or(0, |(_, amount)| *amount)
    }

    /// Sets the amount of a resource; an amount that is not positive removes it.
    pub(crate) fn set(&mut self, ix: Ix, amount: i64) {
        match self.0.iter().position(|(i, _)| *i >= ix) {
            Some(at) if self.0[at].0 == ix && amount > 0 => self.0[at].1 = amount,
            Some(at) if self.0[at].0 == ix => {
                self.0.remove(at);
            }
            Some(at) if amount > 0 => self.0.insert(at, (ix, amount)),
            None if amount > 0 => self.0.push((ix, amount)),
            _ => {}
        }
    }
}

/// The number of amounts stored inline in a `Room`: those that nearly every node has.
const NEAR: usize = 4;

/// An amount for each resource number; absent ones are zero. Most have only the first few numbers,
/// which need no allocation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Room {
    near: [i64; NEAR],
    /// The amounts of higher numbers.
    far: Box<[i64]>,
    /// The number of resource numbers covered.
    len: u8,
}

impl PartialEq for Room {
    fn eq(&self, other: &Room) -> bool {
        let longest = self.far.len().max(other.far.len());
        let far = |room: &Room, i: usize| room.far.get(i).copied().unwrap_or(0);
        self.near == other.near && (0..longest).all(|i| far(self, i) == far(other, i))
    }
}

impl Room {
    pub(crate) fn get(&self, ix: Ix) -> i64 {
        let at = usize::from(ix);
        match self.near.get(at) {
            Some(amount) => *amount,
            None => self.far.get(at - NEAR).copied().unwrap_or(0),
        }
    }

    pub(crate) fn set(&mut self, ix: Ix, amount: i64) {
        let at = usize::from(ix);
        self.len = self.len.max(ix.saturating_add(1));
        if let Some(near) = self.near.get_mut(at) {
            *near = amount;
            return;
        }
        let at = at - NEAR;
        if self.far.len() <= at {
            let mut far = std::mem::take(&mut self.far).into_vec();
            far.resize(at + 1, 0);
            self.far = far.into_boxed_slice();
        }
        self.far[at] = amount;
    }

    /// Adds a demand `times` over; a negative number subtracts.
    pub(crate) fn add(&mut self, demand: &Demand, times: i64) {
        for (ix, amount) in &demand.0 {
            self.set(
                *ix,
                self.get(*ix).saturating_add(amount.saturating_mul(times)),
            );
        }
    }

    pub(crate) fn add_room(&mut self, other: &Room, times: i64) {
        for (ix, amount) in other.iter() {
            if amount != 0 {
                self.set(
                    ix,
                    self.get(ix).saturating_add(amount.saturating_mul(times)),
                );
            }
        }
    }

    /// The number of resource numbers covered.
    pub(crate) fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Is every amount zero?
    pub(crate) fn is_zero(&self) -> bool {
        self.near
            .iter()
            .chain(&*self.far)
            .all(|amount| *amount == 0)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Ix, i64)> + '_ {
        let all = self.near.iter().chain(&*self.far).take(self.len());
        all.enumerate().map(|(ix, amount)| (ix as Ix, *amount))
    }
}
