//! Applies changes of claims, volumes and classes: keeps the indexes, and returns the pods that a
//! change may concern.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1 as k8s;
use k8s_openapi::api::storage::v1::{
    CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment,
};

use super::Volumes;
use super::objects::{Volume, VolumeClaim, VolumeClass, version};
use crate::pod::PodKey;

impl Volumes {
    /// Applies a claim, or its deletion; returns the pods that it may concern.
    pub(crate) fn set_claim(
        &mut self,
        namespace: &str,
        name: &str,
        claim: Option<&k8s::PersistentVolumeClaim>,
    ) -> Vec<PodKey> {
        let id = (namespace.to_owned(), name.to_owned());
        if self.given.contains_key(&id) {
            let known = claim.map_or(0, |claim| version(&claim.metadata));
            self.versions.insert(id.clone(), known);
        } else {
            self.versions.remove(&id);
        }
        let new = claim.map(VolumeClaim::read);
        if self.claims.get(&id) == new.as_ref() {
            return Vec::new();
        }
        let volume = |claim: &Option<VolumeClaim>| claim.as_ref().and_then(|c| c.volume.clone());
        let named = volume(&new);
        let old = match new {
            Some(claim) => self.claims.insert(id.clone(), claim),
            None => self.claims.remove(&id),
        };
        let before = volume(&old);
        if before != named {
            if let Some(volume) = before
                && let Some(naming) = self.naming.get_mut(&volume)
            {
                naming.remove(&id);
                if naming.is_empty() {
                    self.naming.remove(&volume);
                }
            }
            if let Some(volume) = named {
                self.naming.entry(volume).or_default().insert(id.clone());
            }
        }
        self.users.get(&id).into_iter().flatten().cloned().collect()
    }

    /// Applies a volume; returns the pods that it may concern, and whether the set of free volumes
    /// changed.
    pub(crate) fn set_volume(
        &mut self,
        name: &str,
        volume: Option<&k8s::PersistentVolume>,
    ) -> (Vec<PodKey>, bool) {
        if self.taken.contains_key(name) {
            let known = volume.map_or(0, |volume| version(&volume.metadata));
            self.volume_versions.insert(name.to_owned(), known);
        } else {
            self.volume_versions.remove(name);
        }
        let new = volume.map(Volume::read);
        if self.volumes.get(name) == new.as_ref() {
            return (Vec::new(), false);
        }
        let old = self.volumes.remove(name);
        let (mut concerned, mut stirs) = (BTreeSet::new(), false);
        let mut flips = BTreeSet::new();
        for (volume, put) in [(&old, false), (&new, true)] {
            let Some(volume) = volume else { continue };
            if let Some((id, _)) = &volume.claim {
                concerned.insert(id.clone());
                let meant = self.meant.entry(id.clone()).or_default();
                if put {
                    meant.insert(name.to_owned());
                } else {
                    meant.remove(name);
                }
                if meant.is_empty() {
                    self.meant.remove(id);
                }
            }
            if !volume.is_free(self.strict) {
                continue;
            }
            stirs = true;
            let free_volumes = self.free.entry(volume.class.clone()).or_default();
            let empty = free_volumes.is_empty();
            if put {
                free_volumes.put(name, volume);
            } else {
                free_volumes.take(name, volume);
            }
            if empty != free_volumes.is_empty() {
                flips.insert(volume.class.clone());
            }
            if free_volumes.is_empty() {
                self.free.remove(&volume.class);
            }
        }
        if let Some(volume) = new {
            self.volumes.insert(name.to_owned(), volume);
        }
        concerned.extend(self.naming.get(name).into_iter().flatten().cloned());
        let users = concerned.iter().filter_map(|id| self.users.get(id));
        let mut pods: BTreeSet<PodKey> = users.flatten().cloned().collect();
        if !flips.is_empty() {
            pods.extend(self.users_where(|all, claim| {
                let class = all.class_of(claim);
                claim.volume.is_none() && class.is_some_and(|class| flips.contains(class))
            }));
        }
        (pods.into_iter().collect(), stirs)
    }

    /// Applies a StorageClass; returns the pods that it may concern.
    pub(crate) fn set_class(&mut self, name: &str, class: Option<&StorageClass>) -> Vec<PodKey> {
        let new = class.map(VolumeClass::read);
        let old = match new.clone() {
            Some(class) => self.classes.insert(name.to_owned(), class),
            None => self.classes.remove(name),
        };
        if old == new {
            return Vec::new();
        }
        self.users_where(|_, claim| {
            claim.volume.is_none() && claim.class.as_deref().is_none_or(|class| class == name)
        })
    }

    /// Applies a CSINode: returns the pods that a limit may concern for the first time or no
    /// longer, and whether anything changed.
    pub(crate) fn set_csi_node(
        &mut self,
        name: &str,
        node: Option<&CSINode>,
    ) -> (Vec<PodKey>, bool) {
        let (news, others) = self.drivers.set_node(name, node);
        let pods = others.then(|| self.pods.keys().cloned().collect());
        (pods.unwrap_or_default(), news)
    }

    /// Applies a VolumeAttachment; returns whether anything changed.
    pub(crate) fn set_attachment(&mut self, name: &str, one: Option<&VolumeAttachment>) -> bool {
        self.drivers.set_attachment(name, one)
    }

    /// Applies a CSIDriver; returns the pods that it concerns if anything changed.
    pub(crate) fn set_csi_driver(&mut self, name: &str, one: Option<&CSIDriver>) -> Vec<PodKey> {
        if !self.drivers.set_driver(name, one) {
            return Vec::new();
        }
        self.users_where(|all, claim| {
            let class = all.class_of(claim).and_then(|class| all.classes.get(class));
            claim.volume.is_none() && class.is_some_and(|class| class.provisioner == name)
        })
    }

    /// Applies a CSIStorageCapacity; returns whether anything changed.
    pub(crate) fn set_space(
        &mut self,
        namespace: &str,
        name: &str,
        one: Option<&CSIStorageCapacity>,
    ) -> bool {
        self.drivers.set_space(namespace, name, one)
    }

    fn users_where(&self, matters: impl Fn(&Volumes, &VolumeClaim) -> bool) -> Vec<PodKey> {
        let mut keys = BTreeSet::new();
        for (id, users) in &self.users {
            if self
                .claims
                .get(id)
                .is_some_and(|claim| matters(self, claim))
            {
                keys.extend(users.iter().cloned());
            }
        }
        keys.into_iter().collect()
    }
}
