//! What drivers of volumes say: how many disks each node takes of each, what is attached where, and how
//! much room there is to make volumes in.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::storage::v1 as storage;
use resources::quantity::Quantity;
use resources::selector::LabelSelector;

use super::ClaimKey;
use super::disks::Driver;
use super::objects::Class;
use crate::node::Offer;

/// On a CSINode: the built-in kinds whose drivers have taken over there.
const TAKEN_OVER: &str = "storage.alpha.kubernetes.io/migrated-plugins";

/// What a CSINode says.
#[derive(Clone, Debug, Default, PartialEq)]
struct Takes {
    /// Disks at most, by driver.
    most: BTreeMap<String, usize>,
    taken_over: BTreeSet<String>,
}

/// Somebody attached a volume to a node.
#[derive(Clone, Debug, PartialEq)]
struct Attachment {
    node: String,
    driver: String,
    volume: String,
}

/// Room that a driver has for volumes of a class, on some nodes.
#[derive(Clone, Debug, PartialEq)]
struct Space {
    class: String,
    /// None: on none.
    nodes: Option<LabelSelector>,
    /// The largest volume that it can make, in bytes; none where it doesn't say.
    largest: Option<i64>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Drivers {
    nodes: BTreeMap<String, Takes>,
    /// Drivers that some node takes only so many disks of, and how many such nodes there are.
    limited: BTreeMap<String, usize>,
    attachments: BTreeMap<String, Attachment>,
    attached: BTreeMap<String, BTreeSet<String>>,
    /// Drivers that say where they have room.
    tell_space: BTreeSet<String>,
    spaces: BTreeMap<ClaimKey, Space>,
}

impl Drivers {
    /// Takes in a CSINode: whether it says anything new, and whether another set of drivers has limits.
    pub(super) fn set_node(&mut self, name: &str, node: Option<&storage::CSINode>) -> (bool, bool) {
        let new = node.map(takes).filter(|takes| *takes != Takes::default());
        if self.nodes.get(name) == new.as_ref() {
            return (false, false);
        }
        let before = self.limited.len();
        let mut others = false;
        for driver in new.iter().flat_map(|takes| takes.most.keys()) {
            let count = self.limited.entry(driver.clone()).or_default();
            *count += 1;
            others |= *count == 1;
        }
        let old = match new {
            Some(takes) => self.nodes.insert(name.to_owned(), takes),
            None => self.nodes.remove(name),
        };
        for driver in old.iter().flat_map(|takes| takes.most.keys()) {
            if let Some(count) = self.limited.get_mut(driver) {
                *count -= 1;
            }
        }
        self.limited.retain(|_, count| *count > 0);
        (true, others || self.limited.len() != before)
    }

    /// Takes in a VolumeAttachment: whether it says anything new.
    pub(super) fn set_attachment(
        &mut self,
        name: &str,
        attachment: Option<&storage::VolumeAttachment>,
    ) -> bool {
        let new = attachment.and_then(|attachment| {
            Some(Attachment {
                node: attachment.spec.node_name.clone(),
                driver: attachment.spec.attacher.clone(),
                volume: attachment.spec.source.persistent_volume_name.clone()?,
            })
        });
        if self.attachments.get(name) == new.as_ref() {
            return false;
        }
        if let Some(new) = &new {
            let there = self.attached.entry(new.node.clone()).or_default();
            there.insert(name.to_owned());
        }
        let new_node = new.as_ref().map(|new| new.node.clone());
        let old = match new {
            Some(new) => self.attachments.insert(name.to_owned(), new),
            None => self.attachments.remove(name),
        };
        if let Some(old) = old.filter(|old| Some(&old.node) != new_node.as_ref())
            && let Some(there) = self.attached.get_mut(&old.node)
        {
            there.remove(name);
            if there.is_empty() {
                self.attached.remove(&old.node);
            }
        }
        true
    }

    /// Takes in a CSIDriver: whether it says anything new.
    pub(super) fn set_driver(&mut self, name: &str, driver: Option<&storage::CSIDriver>) -> bool {
        let tells = driver.is_some_and(|driver| driver.spec.storage_capacity == Some(true));
        match tells {
            true => self.tell_space.insert(name.to_owned()),
            false => self.tell_space.remove(name),
        }
    }

    /// Takes in a CSIStorageCapacity: whether it says anything new.
    pub(super) fn set_space(
        &mut self,
        namespace: &str,
        name: &str,
        space: Option<&storage::CSIStorageCapacity>,
    ) -> bool {
        let id = (namespace.to_owned(), name.to_owned());
        let new = space.map(|space| {
            let bytes = |said: &k8s_openapi::apimachinery::pkg::api::resource::Quantity| {
                said.0.parse::<Quantity>().ok().map(|q| q.value())
            };
            // The largest single volume, where it is said, goes before all that is free.
            let said = space
                .maximum_volume_size
                .as_ref()
                .or(space.capacity.as_ref());
            let nodes = space.node_topology.as_ref();
            Space {
                class: space.storage_class_name.clone(),
                nodes: nodes.and_then(|said| LabelSelector::from_k8s(said).ok()),
                largest: said.and_then(bytes),
            }
        });
        match new {
            new if self.spaces.get(&id) == new.as_ref() => false,
            Some(new) => {
                self.spaces.insert(id, new);
                true
            }
            None => self.spaces.remove(&id).is_some(),
        }
    }

    /// Does some node take only so many of the driver's disks?
    pub(super) fn limits(&self, driver: &Driver) -> bool {
        self.limited.contains_key(&driver.name)
    }

    /// How many of a driver's disks a node takes; none where it doesn't say.
    pub(super) fn most(&self, node: &str, driver: &Driver) -> Option<usize> {
        let takes = self.nodes.get(node)?;
        let here = |kind: &&str| takes.taken_over.contains(*kind);
        if driver.instead_of.as_ref().is_some_and(|kind| !here(kind)) {
            return None;
        }
        takes.most.get(&driver.name).copied()
    }

    /// The same by the driver's own name.
    pub(super) fn most_of(&self, node: &str, driver: &str) -> Option<usize> {
        self.nodes.get(node)?.most.get(driver).copied()
    }

    /// Volumes that are attached to a node, by name, and by which driver.
    pub(super) fn attached<'a>(
        &'a self,
        node: &str,
    ) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let names = self.attached.get(node).into_iter().flatten();
        let all = names.filter_map(|name| self.attachments.get(name));
        all.map(|attachment| (&*attachment.volume, &*attachment.driver))
    }

    /// Must be looked where there is room for what a class makes?
    pub(super) fn tells_space(&self, class: &Class) -> bool {
        self.tell_space.contains(&class.provisioner)
    }

    /// Is there room on a node for a volume of a class of so many bytes? There is where nobody says how
    /// much.
    pub(super) fn has_space(&self, name: &str, class: &Class, bytes: i64, offer: &Offer) -> bool {
        if bytes == 0 || !self.tells_space(class) {
            return true;
        }
        self.spaces.values().any(|space| {
            let reached = space.nodes.as_ref();
            space.class == name
                && space.largest.is_some_and(|largest| largest >= bytes)
                && reached.is_some_and(|nodes| nodes.matches(&offer.labels))
        })
    }
}

fn takes(node: &storage::CSINode) -> Takes {
    let drivers = node.spec.drivers.iter();
    let most = drivers.filter_map(|driver| {
        let count = driver.allocatable.as_ref()?.count?;
        Some((driver.name.clone(), usize::try_from(count).unwrap_or(0)))
    });
    let notes = node.metadata.annotations.as_ref();
    let taken_over = notes.and_then(|notes| notes.get(TAKEN_OVER));
    let kinds = taken_over.into_iter().flat_map(|kinds| kinds.split(','));
    Takes {
        most: most.collect(),
        taken_over: kinds.map(|kind| kind.trim().to_owned()).collect(),
    }
}
