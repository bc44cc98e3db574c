//! Resource names as small numbers, and amounts as vectors over them: what makes fitting a pod
//! on a node a handful of integer comparisons. The numbers never leave this crate, and nothing
//! may be decided by their order, which depends on the order of events.
//!
//! GPUs are counted in thousandths of one here, and everywhere in this crate: pods may share one.
//! `nvidia.com/gpu.MODEL` is the GPUs of one model: a name that queues may have amounts of, and
//! that a node's GPUs count under too where they are of that model.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as K8sQuantity;
use resources::amounts::{self, Amounts, quantity_of};
use resources::names::{GPU_OF_MODEL, GPU_SHARED, NVIDIA_GPU, NVIDIA_MIG};
use resources::quantity::Quantity;

use crate::gpu::{Kind, Product};

/// How many different resource names a cluster may have. Names beyond it share the last
/// number, of which no node has any, so pods that ask for them wait and say so.
pub(crate) const NAMES_MAX: usize = 128;

/// A resource's number.
pub(crate) type Ix = u8;

/// The most of one resource that a pod can ask for or a node can have, in the unit in which it is
/// counted: 64 TiB of memory, 70 thousand million GPUs. More than that counts as this much. So no sum
/// over a hundred thousand pods or nodes reaches the end of 64 bits, where a sum would forget what
/// was added to it, and be wrong once that is taken away again.
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
/// Stands for every name beyond the bound.
const BEYOND: Ix = (NAMES_MAX - 1) as Ix;

/// A set of resources.
pub(crate) type Set = u128;

/// The names known so far.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    list: Vec<String>,
    index: BTreeMap<String, Ix>,
    /// Those that are counted in thousandths.
    gpus: Set,
    /// Those that are the GPUs of one model.
    models: Vec<(Product, Ix)>,
    /// Those that GPUs are given out as: whole, or in slices.
    devices: Set,
}

impl Names {
    pub(crate) fn new() -> Names {
        let mut names = Names {
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

    /// The resources that are counted in thousandths.
    pub(crate) fn gpus(&self) -> Set {
        self.gpus
    }

    /// The resources that GPUs are given out as: whole, and in slices (MIG).
    pub(crate) fn devices(&self) -> Set {
        self.devices
    }

    /// The numbers given so far.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = Ix> + use<> {
        0..self.list.len() as Ix
    }

    /// The resources that are the GPUs of one model.
    pub(crate) fn models(&self) -> &[(Product, Ix)] {
        &self.models
    }

    /// Under which of them a node's GPUs count.
    pub(crate) fn models_of(&self, kind: &Kind) -> Set {
        let mut set = 0;
        for (model, ix) in &self.models {
            if kind.is(model) {
                set |= 1 << ix;
            }
        }
        set
    }

    /// How much one of a resource is.
    pub(crate) fn unit(&self, ix: Ix) -> i64 {
        unit(self.gpus, ix)
    }

    /// How many units an amount is, rounded up.
    pub(crate) fn whole(&self, ix: Ix, amount: i64) -> i64 {
        -(-amount).div_euclid(self.unit(ix))
    }

    pub(crate) fn name(&self, ix: Ix) -> &str {
        self.list
            .get(usize::from(ix))
            .map_or("(too many resource names)", String::as_str)
    }

    /// What is asked for, sparse: only positive amounts, by number.
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

    /// Bounds as they are written: parts of a GPU count.
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

    /// What there is. Names beyond the bound are left out: nothing can be had of them.
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

    /// Back to names, leaving out what is zero. A part of a unit counts as one.
    pub(crate) fn amounts(&self, room: &Room) -> Amounts {
        self.listed(room.iter())
    }

    /// The same of any list.
    pub(crate) fn listed(&self, amounts: impl Iterator<Item = (Ix, i64)>) -> Amounts {
        amounts
            .filter(|(_, amount)| *amount != 0)
            .map(|(ix, amount)| (self.name(ix).to_owned(), self.whole(ix, amount)))
            .collect()
    }

    /// An amount as people write it.
    pub(crate) fn quantity(&self, ix: Ix, amount: i64) -> Quantity {
        if self.gpus & 1 << ix != 0 {
            Quantity::from_milli(amount)
        } else {
            quantity_of(self.name(ix), amount)
        }
    }
}

/// How much one of a resource is, where these are counted in thousandths.
pub(crate) fn unit(gpus: Set, ix: Ix) -> i64 {
    if gpus & 1 << ix != 0 { GPU_UNIT } else { 1 }
}

/// The resources of a set.
pub(crate) fn each(mut set: Set) -> impl Iterator<Item = Ix> {
    std::iter::from_fn(move || {
        // Asked for each pod that comes or goes: costs what is in the set, and not what could be.
        let ix = (set != 0).then(|| set.trailing_zeros() as Ix)?;
        set &= set - 1;
        Some(ix)
    })
}

/// How many GPUs so many thousandths are, rounded up.
pub(crate) fn whole_gpus(thousandths: i64) -> i64 {
    -(-thousandths).div_euclid(GPU_UNIT)
}

/// What is asked for: pairs of resource and positive amount, by number.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Demand(pub(crate) Vec<(Ix, i64)>);

impl Demand {
    pub(crate) fn get(&self, ix: Ix) -> i64 {
        self.0
            .iter()
            .find(|(i, _)| *i == ix)
            .map_or(0, |(_, amount)| *amount)
    }

    /// Asks for so much of a resource; for nothing of it where that is not positive.
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

/// How many amounts a `Room` has in itself: of what nearly every node has.
const NEAR: usize = 4;

/// What there is: one amount for each number; what is not there is zero. Mostly those of a few numbers:
/// to make one costs nothing then.
#[derive(Clone, Debug, Default)]
pub(crate) struct Room {
    near: [i64; NEAR],
    /// Those of higher numbers.
    far: Box<[i64]>,
    /// How many numbers it has amounts for.
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

    /// Adds `times` demands; a negative number takes them away.
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

    /// How many numbers it has amounts for.
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
