//! Chooses the volume that each of a pod's claims gets on a node, keeps it for the claim, and
//! checks whether the decision was carried out. The smallest sufficient volume first, as in
//! kube-scheduler.

use super::messages::ClaimProblem;
use super::objects::{Volume, VolumeClaim};
use super::reach::in_zone;
use super::{ClaimKey, ClaimState, VolumeDecision, Volumes};
use crate::node::{Node, NodeAttributes};
use crate::plan::{ClaimStep, VolumeSource, VolumesReady};
use crate::pod::PodKey;

impl Volumes {
    /// Other pods that name a ReadWriteOncePod claim that the pod names too.
    pub(crate) fn rivals<'a>(&'a self, key: &'a PodKey) -> impl Iterator<Item = &'a PodKey> {
        let uses = self.pods.get(key).into_iter();
        let claims = uses.flat_map(|uses| uses.ids(key));
        let once = claims.filter(|(id, own)| {
            let claim = self.claims.get(id);
            !own && claim.is_some_and(|claim| claim.modes.one_pod())
        });
        let users = once.filter_map(|(id, _)| self.users.get(&id));
        users.flatten().filter(move |user| *user != key)
    }

    /// What each waiting claim of the pod gets on a node, the smallest request first; `None` if one
    /// of them gets nothing.
    pub(crate) fn seat(
        &self,
        key: &PodKey,
        node: &Node,
        offer: &NodeAttributes,
    ) -> Option<Vec<(ClaimKey, VolumeSource)>> {
        let Some(uses) = self.pods.get(key) else {
            return Some(Vec::new());
        };
        let mut waits = Vec::new();
        for (id, own) in uses.ids(key) {
            if let ClaimState::Waits(claim, class, facts) = self.state(&id, own, &uses.uid) {
                waits.push((id, claim, class, facts));
            }
        }
        waits.sort_by_key(|(_, claim, ..)| claim.bytes);
        let mut picks: Vec<(ClaimKey, VolumeSource)> = Vec::with_capacity(waits.len());
        for (id, claim, class, facts) in waits {
            let makes = || {
                let there = facts.topologies.as_ref();
                let there = there.is_none_or(|nodes| nodes.selects(node, offer))
                    && (self.drivers).has_space(class, facts, claim.bytes, offer);
                (facts.makes && there).then_some(VolumeSource::Made)
            };
            let mut others = self.given.get(&id).into_iter().flatten();
            let decided = others.find(|(pod, _)| *pod != key).map(|(_, pick)| pick);
            let pick = match (&claim.selected, decided) {
                (Some(selected), _) => makes().filter(|_| **selected == *node.name),
                (None, Some(VolumeSource::Made)) => makes(),
                (None, Some(VolumeSource::Volume(name))) => {
                    let volume = self.volumes.get(name);
                    let reached = volume.is_some_and(|volume| reached(volume, node, offer));
                    reached.then(|| VolumeSource::Volume(name.clone()))
                }
                (None, None) => (self.find(&id, claim, class, node, offer, &picks))
                    .map(|name| VolumeSource::Volume(name.to_owned()))
                    .or_else(makes),
            };
            picks.push((id, pick?));
        }
        Some(picks)
    }

    /// True if the storage has no room for a volume that a claim waits for.
    pub(crate) fn lacks_space(&self, key: &PodKey, offer: &NodeAttributes) -> bool {
        let Some(uses) = self.pods.get(key) else {
            return false;
        };
        uses.ids(key).any(|(id, own)| {
            let ClaimState::Waits(claim, class, facts) = self.state(&id, own, &uses.uid) else {
                return false;
            };
            facts.makes && !(self.drivers).has_space(class, facts, claim.bytes, offer)
        })
    }

    /// The volume that a claim gets on a node, if there is one.
    fn find(
        &self,
        id: &ClaimKey,
        claim: &VolumeClaim,
        class: &str,
        node: &Node,
        offer: &NodeAttributes,
        picks: &[(ClaimKey, VolumeSource)],
    ) -> Option<&str> {
        let fresh = |name: &str| {
            let own = |pick: &VolumeSource| matches!(pick, VolumeSource::Volume(v) if v == name);
            picks.iter().all(|(_, pick)| !own(pick))
        };
        for name in self.meant.get(id).into_iter().flatten() {
            let Some(volume) = self.volumes.get(name).filter(|_| fresh(name)) else {
                continue;
            };
            if volume.is_for(id, &claim.uid) && volume.class == class && claim.fits(volume) {
                // A reserved volume that the node cannot reach is not replaced by another.
                return reached(volume, node, offer).then_some(name.as_str());
            }
        }
        let will_do = |name: &str| {
            let Some(volume) = self.volumes.get(name) else {
                return false;
            };
            let others = self.taken.get(name).is_some_and(|of| {
                let owner = self.claims.get(of);
                of != id && owner.is_some_and(|owner| owner.volume.is_none())
            });
            !others && fresh(name) && claim.takes(volume) && reached(volume, node, offer)
        };
        let free_volumes = self.free.get(class)?;
        free_volumes.smallest(offer, claim.bytes, will_do)
    }

    /// Records that the pod goes to this node: what its claims get there is kept for them until
    /// release.
    pub(crate) fn decide(&mut self, key: &PodKey, node: &Node, offer: &NodeAttributes) {
        if let Some(known) = self.decided.get(key)
            && known.node == node.name
        {
            return;
        }
        self.release(key);
        let picks = self.seat(key, node, offer).unwrap_or_default();
        if picks.is_empty() {
            return;
        }
        for (id, pick) in &picks {
            let of = self.given.entry(id.clone()).or_default();
            of.insert(key.clone(), pick.clone());
            if let VolumeSource::Volume(name) = pick {
                self.taken.insert(name.clone(), id.clone());
            }
        }
        let node = node.name.clone();
        self.decided
            .insert(key.clone(), VolumeDecision { node, picks });
    }

    /// Drops the decision for a pod.
    pub(crate) fn release(&mut self, key: &PodKey) {
        let Some(decided) = self.decided.remove(key) else {
            return;
        };
        for (id, pick) in decided.picks {
            let Some(of) = self.given.get_mut(&id) else {
                continue;
            };
            of.remove(key);
            if !of.is_empty() {
                continue;
            }
            self.given.remove(&id);
            if let VolumeSource::Volume(name) = pick {
                self.taken.remove(&name);
            }
        }
    }

    /// The steps that a pod's claims need before it is bound.
    pub(crate) fn steps(&self, key: &PodKey) -> Vec<ClaimStep> {
        let decided = self.decided.get(key).into_iter();
        let picks = decided.flat_map(|decided| &decided.picks);
        let steps = picks.filter_map(|((_, name), from)| {
            let claim = self
                .claims
                .get(&(key.namespace.to_string(), name.clone()))?;
            Some(ClaimStep {
                claim: name.clone(),
                uid: claim.uid.clone(),
                from: from.clone(),
                written: None,
            })
        });
        steps.collect()
    }

    /// Whether all claims of a pod are bound, to volumes that the node reaches.
    pub(crate) fn ready(
        &self,
        key: &PodKey,
        node: &Node,
        offer: &NodeAttributes,
        steps: &[ClaimStep],
    ) -> VolumesReady {
        let Some(uses) = self.pods.get(key) else {
            return VolumesReady::Yes;
        };
        let mut all = true;
        for (id, own) in uses.ids(key) {
            let lacks = match self.state(&id, own, &uses.uid) {
                ClaimState::Unknown => continue,
                ClaimState::Bound(volume) => {
                    let mut zones = volume.zones();
                    // For a volume that it got with its node, kube-scheduler checks the affinity
                    // only.
                    let inside = steps.iter().any(|step| step.claim == id.1)
                        || zones.all(|(key, values)| in_zone(offer, key, &values));
                    if inside && reached(volume, node, offer) {
                        continue;
                    }
                    let claim = self.claims.get(&id);
                    let volume = claim.and_then(|claim| claim.volume.as_deref());
                    let (volume, node) = (volume.unwrap_or_default(), &node.name);
                    Some(format!(
                        "node {node} cannot reach PersistentVolume {volume} of claim {}",
                        id.1
                    ))
                }
                ClaimState::Held(ClaimProblem::Prebound | ClaimProblem::VolumeMissing, _) => None,
                ClaimState::Held(..) => self.hold_of(key).map(|hold| hold.binding()),
                ClaimState::Waits(claim, ..) => {
                    let mut own = steps.iter().filter(|step| step.claim == id.1);
                    own.next()
                        .and_then(|step| self.undone(&id, claim, step, node))
                }
            };
            if let Some(why) = lacks {
                return VolumesReady::No(why);
            }
            all = false;
        }
        if all {
            VolumesReady::Yes
        } else {
            VolumesReady::NotYet
        }
    }

    /// Why a claim will not be bound as written, if the write was undone since.
    fn undone(
        &self,
        id: &ClaimKey,
        claim: &VolumeClaim,
        step: &ClaimStep,
        node: &Node,
    ) -> Option<String> {
        let written = step.written?;
        let since = |known: Option<&u64>| known.is_some_and(|known| *known >= written);
        match &step.from {
            VolumeSource::Made => {
                let given_up = since(self.versions.get(id)) && claim.selected.is_none();
                given_up.then(|| {
                    let (claim, node) = (&id.1, &node.name);
                    format!("no volume could be provisioned for PersistentVolumeClaim {claim} on node {node}; see the claim's events")
                })
            }
            VolumeSource::Volume(name) => {
                let volume = self.volumes.get(name);
                let kept = volume.is_some_and(|volume| volume.is_for(id, &claim.uid));
                (since(self.volume_versions.get(name)) && !kept).then(|| {
                    format!(
                        "PersistentVolume {name} is no longer reserved for claim {}",
                        id.1
                    )
                })
            }
        }
    }
}

fn reached(volume: &Volume, node: &Node, offer: &NodeAttributes) -> bool {
    let nodes = volume.affinity.as_ref();
    nodes.is_none_or(|nodes| nodes.selects(node, offer))
}
