//! The free volumes of one class, indexed by the label that pins them to nodes, if there is one,
//! and by size. A lookup costs the labels and the volumes tried, not all volumes.

use std::collections::{BTreeMap, BTreeSet};

use super::objects::Volume;
use crate::node::NodeAttributes;

/// Size and name.
type VolumeRank = (i64, String);
type ByValue = BTreeMap<String, BTreeSet<VolumeRank>>;

#[derive(Clone, Debug, Default)]
pub(super) struct FreeVolumes {
    count: usize,
    /// Volumes without a pinning label.
    anywhere: BTreeSet<VolumeRank>,
    /// Volumes on nodes with a label, by its values.
    pinned: BTreeMap<String, ByValue>,
}

impl FreeVolumes {
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn put(&mut self, name: &str, volume: &Volume) {
        let place = (volume.bytes, name.to_owned());
        self.count += 1;
        let pin = volume.affinity.as_ref().and_then(|nodes| nodes.pin());
        let Some((key, values)) = pin else {
            self.anywhere.insert(place);
            return;
        };
        let by_value = self.pinned.entry(key.to_owned()).or_default();
        for value in values {
            let there = by_value.entry(value.clone()).or_default();
            there.insert(place.clone());
        }
    }

    pub(super) fn take(&mut self, name: &str, volume: &Volume) {
        let place = (volume.bytes, name.to_owned());
        self.count = self.count.saturating_sub(1);
        let pin = volume.affinity.as_ref().and_then(|nodes| nodes.pin());
        let Some((key, values)) = pin else {
            self.anywhere.remove(&place);
            return;
        };
        let Some(by_value) = self.pinned.get_mut(key) else {
            return;
        };
        for value in values {
            if let Some(there) = by_value.get_mut(value) {
                there.remove(&place);
                if there.is_empty() {
                    by_value.remove(value);
                }
            }
        }
        if by_value.is_empty() {
            self.pinned.remove(key);
        }
    }

    /// The smallest volume of at least `bytes` that a node may reach and that `will_do` accepts.
    /// `will_do` must check the volume's full affinity.
    pub(super) fn smallest<'a>(
        &'a self,
        offer: &NodeAttributes,
        bytes: i64,
        will_do: impl Fn(&str) -> bool,
    ) -> Option<&'a str> {
        let here = self.pinned.iter().filter_map(|(key, by_value)| {
            let value = offer.labels.get(key)?;
            by_value.get(value)
        });
        let first = |places: &'a BTreeSet<VolumeRank>| -> Option<&'a VolumeRank> {
            let mut large = places.range((bytes, String::new())..);
            large.find(|(_, name)| will_do(name))
        };
        let found = std::iter::once(&self.anywhere).chain(here);
        let smallest = found.filter_map(first).min()?;
        Some(&smallest.1)
    }
}
