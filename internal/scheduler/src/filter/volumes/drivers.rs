//! What volume drivers report: how many disks each node takes of each driver, what is attached
//! where, and how much storage is free for new volumes.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::storage::v1 as storage;
use resources::quantity::Quantity;
use resources::selector::LabelSelector;

use super::ClaimKey;
use super::disks::DiskDriver;
use super::objects::VolumeClass;
use crate::node::NodeAttributes;

/// On a CSINode: the in-tree types whose drivers have taken over on that node.
const TAKEN_OVER: &str = "storage.alpha.kubernetes.io/migrated-plugins";

/// A CSINode's limits.
#[derive(Clone, Debug, Default, PartialEq)]
struct NodeLimits {
    /// The most disks, by driver.
    most: BTreeMap<String, usize>,
    taken_over: BTreeSet<String>,
}

/// A VolumeAttachment.
#[derive(Clone, Debug, PartialEq)]
struct Attachment {
    node: String,
    driver: String,
    volume: String,
}

/// The free storage of a driver for volumes of a class, on some nodes.
#[derive(Clone, Debug, PartialEq)]
struct FreeStorage {
    class: String,
    /// `None`: no nodes.
    nodes: Option<LabelSelector>,
    /// The size of the largest volume that it can provision, in bytes, if known.
    largest: Option<i64>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Drivers {
    nodes: BTreeMap<String, NodeLimits>,
    /// Drivers with a limit on some node, and the number of such nodes.
    limited: BTreeMap<String, usize>,
    attachments: BTreeMap<String, Attachment>,
    attached: BTreeMap<String, BTreeSet<String>>,
    /// Drivers that publish their free storage.
    report_capacity: BTreeSet<String>,
    spaces: BTreeMap<ClaimKey, FreeStorage>,
}

impl Drivers {
    /// Applies a CSINode. Returns whether anything changed, and whether the set of limited drivers
    /// changed.
    pub(super) fn set_node(&mut self, name: &str, node: Option<&storage::CSINode>) -> (bool, bool) {
        let new = node
            .map(takes)
            .filter(|takes| *takes != NodeLimits::default());
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

    /// Applies a VolumeAttachment; returns whether anything changed.
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

    /// Applies a CSIDriver; returns whether anything changed.
    pub(super) fn set_driver(&mut self, name: &str, driver: Option<&storage::CSIDriver>) -> bool {
        let reports_capacity =
            driver.is_some_and(|driver| driver.spec.storage_capacity == Some(true));
        match reports_capacity {
            true => self.report_capacity.insert(name.to_owned()),
            false => self.report_capacity.remove(name),
        }
    }

    /// Applies a CSIStorageCapacity; returns whether anything changed.
    pub(super) fn set_space(
        &mut self,
        namespace: &str,
        name: &str,
        space: Option<&storage::CSIStorageCapacity>,
    ) -> bool {
        let id = (namespace.to_owned(), name.to_owned());
        let new = space.map(|space| {
            let bytes = |quantity: &k8s_openapi::apimachinery::pkg::api::resource::Quantity| {
                quantity.0.parse::<Quantity>().ok().map(|q| q.value())
            };
            // The largest single volume, if given, takes precedence over the total free storage.
            let largest = space
                .maximum_volume_size
                .as_ref()
                .or(space.capacity.as_ref());
            let nodes = space.node_topology.as_ref();
            FreeStorage {
                class: space.storage_class_name.clone(),
                nodes: nodes.and_then(|selector| LabelSelector::from_k8s(selector).ok()),
                largest: largest.and_then(bytes),
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

    /// True if some node limits the driver's disks.
    pub(super) fn limits(&self, driver: &DiskDriver) -> bool {
        self.limited.contains_key(&driver.name)
    }

    /// The most disks of a driver that a node takes; `None` if it sets no limit.
    pub(super) fn most(&self, node: &str, driver: &DiskDriver) -> Option<usize> {
        let takes = self.nodes.get(node)?;
        let here = |kind: &&str| takes.taken_over.contains(*kind);
        if driver.instead_of.as_ref().is_some_and(|kind| !here(kind)) {
            return None;
        }
        takes.most.get(&driver.name).copied()
    }

    /// Like `most`, by the driver's own name.
    pub(super) fn most_of(&self, node: &str, driver: &str) -> Option<usize> {
        self.nodes.get(node)?.most.get(driver).copied()
    }

    /// The volumes attached to a node, by name, with their driver.
    pub(super) fn attached<'a>(
        &'a self,
        node: &str,
    ) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let names = self.attached.get(node).into_iter().flatten();
        let all = names.filter_map(|name| self.attachments.get(name));
        all.map(|attachment| (&*attachment.volume, &*attachment.driver))
    }

    /// True if the class's free storage must be checked.
    pub(super) fn reports_space(&self, class: &VolumeClass) -> bool {
        self.report_capacity.contains(&class.provisioner)
    }

    /// True if a node can reach storage for a volume of this class and size. True also if the
    /// driver does not publish its free storage.
    pub(super) fn has_space(
        &self,
        name: &str,
        class: &VolumeClass,
        bytes: i64,
        offer: &NodeAttributes,
    ) -> bool {
        if bytes == 0 || !self.reports_space(class) {
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

fn takes(node: &storage::CSINode) -> NodeLimits {
    let drivers = node.spec.drivers.iter();
    let most = drivers.filter_map(|driver| {
        let count = driver.allocatable.as_ref()?.count?;
        Some((driver.name.clone(), usize::try_from(count).unwrap_or(0)))
    });
    let notes = node.metadata.annotations.as_ref();
    let taken_over = notes.and_then(|notes| notes.get(TAKEN_OVER));
    let kinds = taken_over.into_iter().flat_map(|kinds| kinds.split(','));
    NodeLimits {
        most: most.collect(),
        taken_over: kinds.map(|kind| kind.trim().to_owned()).collect(),
    }
}
