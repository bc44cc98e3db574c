//! What is attached to a node for its pods, and whether one more pod's disks can be attached, as in
//! kube-scheduler's NodeVolumeLimits and VolumeRestrictions. The pods on each node are recorded as
//! they come and go, and during trials; what they attach is computed on demand.
//!
//! Tests: `tests/volume_limits.rs`.

use std::collections::{BTreeMap, BTreeSet};

use super::disks::{DiskDriver, VolumeDisk};
use super::{Uses, Volumes};
use crate::node::NodeIx;
use crate::pod::PodKey;

impl Volumes {
    /// A pod is placed on a node, or tried there, or leaves. Returns true if it left, which may
    /// free volumes for others.
    pub(crate) fn see(&mut self, key: &PodKey, at: NodeIx, there: bool) -> bool {
        if there {
            if self.pods.contains_key(key) {
                self.there.entry(at).or_default().insert(key.clone());
            }
            return false;
        }
        let Some(on) = self.there.get_mut(&at) else {
            return false;
        };
        let went = on.remove(key);
        if on.is_empty() {
            self.there.remove(&at);
        }
        went
    }

    /// The disks that a pod needs attached. A volume that is yet to be provisioned is identified by
    /// its claim.
    fn disks<'a>(
        &'a self,
        key: &'a PodKey,
        uses: &'a Uses,
    ) -> impl Iterator<Item = VolumeDisk> + 'a {
        let of_claims = uses.ids(key).filter_map(|(id, own)| {
            let claim = self.claims.get(&id)?;
            if own && self.strict && claim.owner.as_deref() != Some(&*uses.uid) {
                return None;
            }
            let volume = claim
                .volume
                .as_ref()
                .and_then(|name| self.volumes.get(name));
            if let Some(volume) = volume {
                return volume.disk.clone();
            }
            let class = self.classes.get(self.class_of(claim)?)?;
            Some(VolumeDisk {
                driver: DiskDriver::of_provisioner(&class.provisioner)?,
                handle: format!("{}/{}", id.0, id.1),
            })
        });
        of_claims.chain(uses.inline.disks.iter().cloned())
    }

    /// True if the disks already attached to a node matter for the pod.
    pub(super) fn has_limited_disks(&self, key: &PodKey, uses: &Uses) -> bool {
        let mut disks = self.disks(key, uses);
        disks.any(|disk| self.drivers.limits(&disk.driver))
    }

    /// True if the pod would exceed a node's limit of attached disks.
    pub(crate) fn beyond_limit(&self, key: &PodKey, at: NodeIx, node: &str) -> bool {
        let Some(uses) = self.pods.get(key) else {
            return false;
        };
        let limited = |disk: &VolumeDisk| self.drivers.most(node, &disk.driver).is_some();
        let by_name = |disk: VolumeDisk| (disk.driver.name, disk.handle);
        let mut new: BTreeSet<(String, String)> =
            self.disks(key, uses).filter(limited).map(by_name).collect();
        if new.is_empty() {
            return false;
        }
        let others = self.there.get(&at).into_iter().flatten();
        let others = others.filter(|other| *other != key);
        let of_pods = others.filter_map(|other| Some((other, self.pods.get(other)?)));
        let mut there: BTreeSet<(String, String)> = of_pods
            .flat_map(|(other, uses)| self.disks(other, uses))
            .filter(limited)
            .map(by_name)
            .collect();
        // A volume that no pod uses any more stays attached for a while.
        for (volume, driver) in self.drivers.attached(node) {
            let disk = self.volumes.get(volume).and_then(|one| one.disk.as_ref());
            let handle = disk.map_or(volume, |disk| &disk.handle);
            there.insert((driver.to_owned(), handle.to_owned()));
        }
        new.retain(|disk| !there.contains(disk));
        let mut asked: BTreeMap<&str, usize> = BTreeMap::new();
        for (driver, _) in &new {
            *asked.entry(driver).or_default() += 1;
        }
        asked.into_iter().any(|(driver, count)| {
            let held = there.iter().filter(|(of, _)| of == driver).count();
            let most = self.drivers.most_of(node, driver);
            most.is_some_and(|most| held + count > most)
        })
    }

    /// True if another pod of the node uses a disk that the pod names and that both cannot have.
    pub(crate) fn disk_in_use(&self, key: &PodKey, at: NodeIx) -> bool {
        let Some(uses) = self
            .pods
            .get(key)
            .filter(|uses| uses.inline.has_exclusive_disk())
        else {
            return false;
        };
        let others = self.there.get(&at).into_iter().flatten();
        let others = others.filter(|other| *other != key);
        let mut others = others.filter_map(|other| self.pods.get(other));
        others.any(|other| uses.inline.conflicts(&other.inline))
    }
}
