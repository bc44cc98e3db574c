//! The devices that this machine offers to claims: its devices as they are and, if its GPUs are
//! partitioned for claims, each such GPU as a whole and in every slice that its driver can create,
//! with shared counters. Pure.
//!
//! A GPU that was partitioned by others is offered with its present slices, and never partitioned
//! again.

use std::collections::BTreeMap;

use hardware::mig_partitioner::Card;
use hardware::partition::place::{self, InstancePosition};
use hardware::partition::{GpuInstance, InstanceProfile};
use k8s_openapi::api::resource::v1::{CounterSet, Device, DeviceAttribute};

use super::attributes::{AttributeBuilder, memory};
use super::claimable::{Claimable, ClaimableKind, name_of};
use super::counters;
use super::prepared::{CreatedPartition, Prepared};

/// The machine's devices, as discovered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DiscoveredDevices {
    /// Its GPUs, or the slices of those in MIG mode, and its cards.
    pub devices: Vec<Claimable>,
    /// All of its GPUs as wholes.
    pub gpus: Vec<Claimable>,
}

/// The devices that may be allocated. A device with a problem is not offered; claims that have it
/// keep it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AllocatableDevices {
    /// The devices; those of one partitionable GPU share counters.
    pub devices: Vec<Claimable>,
    /// The devices that don't overlap, without counters: for a cluster without support for
    /// counters.
    pub apart: Vec<Claimable>,
    /// The counters of GPUs that are offered in partitions.
    pub shared: Vec<CounterSet>,
}

impl AllocatableDevices {
    /// Whether a GPU, by its name as a device, is offered in partitions.
    pub fn shares(&self, name: &str) -> bool {
        self.shared.iter().any(|set| set.name == name)
    }
}

/// Why a GPU's layout is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CardError {
    /// The driver's or the partitioner's error.
    #[error("{0}")]
    Unread(String),
    /// The driver gave no answer in time.
    #[error("the NVIDIA driver does not answer; a GPU may have to be reset")]
    Silent,
}

/// The layout of each GPU by UUID, or why it is unknown.
pub type GpuLayouts = BTreeMap<String, Result<Card, CardError>>;

/// Computes the offer from the discovered devices, the GPUs' layouts (empty if GPUs are not
/// partitioned for claims) and the prepared claims.
pub fn offer(
    found: &DiscoveredDevices,
    cards: &GpuLayouts,
    prepared: &[Prepared],
) -> AllocatableDevices {
    let cuts: Vec<(&String, &CreatedPartition)> = prepared.iter().flat_map(|it| &it.cuts).collect();
    let mut offer = AllocatableDevices::default();
    for whole in &found.gpus {
        let own = cuts.iter().filter(|(_, cut)| cut.gpu == whole.id);
        let own: Vec<(&String, &CreatedPartition)> = own.copied().collect();
        let card = cards.get(&whole.id);
        match (way(card, &own), card) {
            (GpuOffer::InParts, Some(Ok(card))) => {
                let set = counters::set(&whole.device.name, &card.profiles);
                let parts = parts(whole, card, &set);
                offer.apart.extend(apart(&parts, &own));
                offer.devices.extend(parts);
                offer.shared.push(set);
            }
            (way, card) => {
                let known = card.and_then(|card| card.as_ref().ok());
                let as_found = as_found(found, whole, known, &own, &way);
                offer.devices.extend(as_found.iter().cloned());
                offer.apart.extend(as_found);
            }
        }
    }
    let cards = found.devices.iter().filter(|one| one.gpu().is_none());
    offer.devices.extend(cards.clone().cloned());
    offer.apart.extend(cards.cloned());
    offer
}

/// How a GPU is offered.
enum GpuOffer {
    /// As a whole and in every slice into which it can be partitioned.
    InParts,
    /// As discovered, with the reason why it is not offered in partitions.
    AsFound(String),
    /// Not at all, with the reason.
    Withheld(String),
}

fn way(card: Option<&Result<Card, CardError>>, own: &[(&String, &CreatedPartition)]) -> GpuOffer {
    let card = match card {
        None => {
            let why = "this agent does not partition GPUs for claims (--mig-partitions)";
            return GpuOffer::AsFound(why.to_owned());
        }
        Some(Err(error)) => return GpuOffer::Withheld(error.to_string()),
        Some(Ok(card)) => card,
    };
    let index = card.index;
    if !card.capable || card.profiles.is_empty() {
        return GpuOffer::AsFound(format!("GPU {index} cannot be partitioned"));
    }
    if card.waits {
        return GpuOffer::Withheld(waits(card));
    }
    if !card.is_known() {
        return GpuOffer::AsFound(format!(
            "the driver says where slices of GPU {index} may lie only in MIG mode"
        ));
    }
    let own = own.iter().map(|(_, cut)| *cut);
    match foreign_slices(card, own).is_empty() {
        true => GpuOffer::InParts,
        false => GpuOffer::AsFound(format!(
            "GPU {index} has partitions that Muster did not create"
        )),
    }
}

/// The message that a GPU's mode change waits for a reset, and what to do.
pub fn waits(card: &Card) -> String {
    let index = card.index;
    format!(
        "MIG mode of GPU {index} changes when it is reset (nvidia-smi --gpu-reset -i {index}) while no \
         process uses it, or when the machine restarts"
    )
}

/// The instances of a GPU that were not created for these claims.
pub fn foreign_slices<'a, 'b>(
    card: &'a Card,
    own: impl Iterator<Item = &'b CreatedPartition> + Clone,
) -> Vec<&'a GpuInstance> {
    let is = |instance: &GpuInstance, cut: &CreatedPartition| {
        let slices = card.slices.iter().filter(|(_, of)| **of == instance.id);
        let slices: Vec<&String> = slices.map(|(id, _)| id).collect();
        if slices.contains(&&cut.slice) {
            return true;
        }
        // During its creation there is no slice, or its UUID is not recorded yet.
        let here = place::instance(&card.profiles, &card.layout, &cut.place);
        let here = cut.gpu == card.id && here.is_some_and(|here| here.id == instance.id);
        here && (slices.is_empty() || cut.slice.is_empty())
    };
    let all = card.layout.instances.iter();
    all.filter(|it| !own.clone().any(|cut| is(it, cut)))
        .collect()
}

/// The partitions of a GPU that don't overlap: its present slices, else the whole GPU.
fn apart(parts: &[Claimable], own: &[(&String, &CreatedPartition)]) -> Vec<Claimable> {
    let named = |part: &Claimable| own.iter().any(|(name, _)| **name == part.device.name);
    let is = |part: &&Claimable| match own.is_empty() {
        true => matches!(part.what, ClaimableKind::Gpu { .. }),
        false => named(part),
    };
    let mut apart: Vec<Claimable> = parts.iter().filter(is).cloned().collect();
    for part in &mut apart {
        part.device.consumes_counters = None;
    }
    apart
}

/// A GPU's devices as discovered, except slices that were created for claims: these stay known by
/// their claims' names, and are not offered.
fn as_found(
    found: &DiscoveredDevices,
    whole: &Claimable,
    card: Option<&Card>,
    own: &[(&String, &CreatedPartition)],
    way: &GpuOffer,
) -> Vec<Claimable> {
    let there = |one: &&Claimable| match (&one.what, card) {
        (ClaimableKind::Slice { .. }, Some(card)) => card.slices.contains_key(&one.id),
        _ => true,
    };
    let of_gpu = found.devices.iter().filter(|one| one.gpu() == whole.gpu());
    let others = of_gpu.filter(|one| own.iter().all(|(_, cut)| cut.slice != one.id));
    let mut all: Vec<Claimable> = others.filter(there).cloned().collect();
    let mut add = |more: Vec<Claimable>| {
        for one in more {
            if all.iter().all(|known| known.device.name != one.device.name) {
                all.push(one);
            }
        }
    };
    let why = match way {
        GpuOffer::InParts => return all,
        GpuOffer::AsFound(why) => why,
        GpuOffer::Withheld(why) => {
            // A claim with one of these devices must get the reason why it is not available.
            let set = |card: &Card| counters::set(&whole.device.name, &card.profiles);
            add(match card {
                Some(card) => parts(whole, card, &set(card)),
                None => vec![whole.clone()],
            });
            why
        }
    };
    let own = own.iter().filter_map(|(name, cut)| {
        let what = ClaimableKind::Partition {
            index: whole.gpu()?,
            place: cut.place.clone(),
            size: 0,
        };
        Some(Claimable {
            device: Device {
                name: (*name).clone(),
                ..Device::default()
            },
            id: whole.id.clone(),
            problem: why.clone(),
            what,
        })
    });
    add(own.collect());
    if matches!(way, GpuOffer::Withheld(_)) {
        for one in all.iter_mut().filter(|one| one.problem.is_empty()) {
            one.problem.clone_from(why);
        }
    }
    all
}

/// A GPU as a whole and in every slice, in an order that leaves the most to later claims, because
/// kube-scheduler takes the first that fits.
fn parts(whole: &Claimable, card: &Card, set: &CounterSet) -> Vec<Claimable> {
    let mut places: Vec<(&InstanceProfile, u32)> = place::all(&card.profiles).collect();
    // The large profiles can only begin at the low slices.
    places.sort_by_key(|(profile, start)| {
        let taken = (profile.size, profile.slices, profile.engines);
        (taken, profile.id, std::cmp::Reverse(*start))
    });
    let places = places.into_iter();
    let mut all: Vec<Claimable> = places
        .filter_map(|(profile, start)| part(whole, profile, start, set))
        .collect();
    let mut whole = whole.clone();
    whole.device.consumes_counters = Some(counters::whole(set));
    all.push(whole);
    all
}

/// The name of a partition: from its GPU's UUID, its profile and its place, so that every agent
/// uses the same.
fn name(gpu: &str, profile: &str, start: u32) -> String {
    name_of(&format!("{gpu}-{profile}-{start}"))
}

fn part(
    whole: &Claimable,
    profile: &InstanceProfile,
    start: u32,
    set: &CounterSet,
) -> Option<Claimable> {
    let index = whole.gpu()?;
    let of_whole = whole.device.attributes.clone().unwrap_or_default();
    let own = |(name, _): &(String, DeviceAttribute)| !["type", "uuid", "index"].contains(&&**name);
    let mut attributes = AttributeBuilder(of_whole.into_iter().filter(own).collect());
    attributes.text("type", "mig");
    attributes.text("profile", &profile.name);
    attributes.text("parentUUID", &whole.id);
    attributes.number("parentIndex", Some(index));
    Some(Claimable {
        device: Device {
            name: name(&whole.id, &profile.name, start),
            attributes: Some(attributes.0),
            capacity: Some(memory(profile.memory_mib)),
            consumes_counters: Some(counters::part(set, profile, start)),
            ..Device::default()
        },
        id: whole.id.clone(),
        problem: whole.problem.clone(),
        what: ClaimableKind::Partition {
            index,
            place: InstancePosition {
                profile: profile.name.clone(),
                start,
            },
            size: profile.size,
        },
    })
}

#[cfg(test)]
#[path = "partitions_tests.rs"]
mod tests;
