//! Volumes: which nodes a pod's claims allow, and which volumes the claims get there, as in
//! kube-scheduler's VolumeBinding, VolumeZone, VolumeRestrictions and NodeVolumeLimits.
//!
//! A bound claim allows the nodes that reach its volume. An unbound claim of class
//! WaitForFirstConsumer allows nodes with a free volume of its class, or nodes where its class
//! provisions one. A volume chosen for one pod is not given to another, from the plan that chooses
//! it until that pod is gone. Unless the configuration says that all claims, volumes and classes
//! are reported (`strict`), unknown ones impose nothing. Writes nothing: the steps needed before a
//! pod is bound are returned with its binding.
//!
//! Tests: `tests/volumes.rs`, `tests/volume_listing.rs`, `tests/volume_limits.rs`.

mod attached;
mod disks;
mod drivers;
mod free_volumes;
mod messages;
mod objects;
mod pick;
mod reach;
mod updates;
mod wiring;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1 as k8s;

use crate::node::NodeIx;
use crate::plan::VolumeSource;
use crate::pod::PodKey;
use crate::trial::MARK;
use disks::Inline;
use drivers::Drivers;
use free_volumes::FreeVolumes;
use messages::ClaimProblem;
use objects::{Volume, VolumeClaim, VolumeClass};
use reach::ClaimRequirement;

pub(crate) use messages::ClaimWait;
pub(crate) use reach::NodeRequirements;

/// Namespace and name of a claim.
type ClaimKey = (String, String);

/// The claims that a pod names, and its inline volumes.
#[derive(Clone, Debug, PartialEq)]
struct Uses {
    uid: String,
    /// By name; true for a claim that is created for the pod.
    claims: BTreeMap<String, bool>,
    inline: Inline,
}

/// A claim's state for a pod.
enum ClaimState<'a> {
    /// It imposes nothing.
    Unknown,
    /// The pod must wait for the claim; with the class or volume that matters.
    Held(ClaimProblem, &'a str),
    Bound(&'a Volume),
    /// It gets its volume with the pod's node; with its class's name and the class.
    Waits(&'a VolumeClaim, &'a str, &'a VolumeClass),
}

/// The decision for a pod: its node, and what each claim gets there.
#[derive(Clone, Debug)]
struct VolumeDecision {
    node: Arc<str>,
    picks: Vec<(ClaimKey, VolumeSource)>,
}

/// Claims, volumes and classes, and which pods name which claims.
#[derive(Clone, Debug, Default)]
pub(crate) struct Volumes {
    strict: bool,
    claims: BTreeMap<ClaimKey, VolumeClaim>,
    volumes: BTreeMap<String, Volume>,
    classes: BTreeMap<String, VolumeClass>,
    pods: BTreeMap<PodKey, Uses>,
    users: BTreeMap<ClaimKey, BTreeSet<PodKey>>,
    /// The pods that are on a node or tried there.
    there: BTreeMap<NodeIx, BTreeSet<PodKey>>,
    drivers: Drivers,
    /// Claims that name a volume, by volume.
    naming: BTreeMap<String, BTreeSet<ClaimKey>>,
    /// Volumes reserved for a claim, by claim.
    meant: BTreeMap<ClaimKey, BTreeSet<String>>,
    /// Free volumes, by class.
    free: BTreeMap<String, FreeVolumes>,
    decided: BTreeMap<PodKey, VolumeDecision>,
    /// The decisions by claim, and the volumes that are given to one.
    given: BTreeMap<ClaimKey, BTreeMap<PodKey, VolumeSource>>,
    taken: BTreeMap<String, ClaimKey>,
    /// The known resource versions of claims and volumes that binding steps concern.
    versions: BTreeMap<ClaimKey, u64>,
    volume_versions: BTreeMap<String, u64>,
}

impl Volumes {
    /// Knows no objects yet. `strict`: an object that was not reported does not exist.
    pub(crate) fn new(strict: bool) -> Volumes {
        Volumes {
            strict,
            ..Volumes::default()
        }
    }

    /// Records the claims that a pod names; returns what they require of nodes.
    pub(crate) fn named(
        &mut self,
        key: &PodKey,
        uid: &str,
        spec: &k8s::PodSpec,
    ) -> Option<Arc<NodeRequirements>> {
        let (claims, inline) = (claims_of(key, spec), Inline::read(spec));
        let nothing = claims.is_empty() && inline.is_empty();
        if nothing && self.pods.is_empty() {
            return None;
        }
        let uses = Uses {
            uid: uid.to_owned(),
            claims,
            inline,
        };
        if self.pods.get(key) != Some(&uses) {
            self.gone(key);
            for claim in uses.claims.keys() {
                let id = (key.namespace.to_string(), claim.clone());
                self.users.entry(id).or_default().insert(key.clone());
            }
            if !nothing {
                self.pods.insert(key.clone(), uses);
            }
        }
        self.reach(key)
    }

    /// Forgets a pod that is gone.
    pub(crate) fn gone(&mut self, key: &PodKey) {
        self.release(key);
        let uses = self.pods.remove(key);
        for claim in uses.into_iter().flat_map(|uses| uses.claims.into_keys()) {
            let id = (key.namespace.to_string(), claim);
            if let Some(users) = self.users.get_mut(&id) {
                users.remove(key);
                if users.is_empty() {
                    self.users.remove(&id);
                }
            }
        }
    }

    /// What a pod's claims require of its node; `None` if any node will do.
    pub(crate) fn reach(&self, key: &PodKey) -> Option<Arc<NodeRequirements>> {
        let uses = self.pods.get(key)?;
        let (mut rules, mut takes) = (Vec::new(), false);
        let mut per_pod = uses.inline.has_exclusive_disk() || self.has_limited_disks(key, uses);
        for (id, own) in uses.ids(key) {
            let once = self.claims.get(&id).is_some_and(|c| c.modes.one_pod());
            per_pod |= once && !own;
            match self.state(&id, own, &uses.uid) {
                ClaimState::Unknown => {}
                ClaimState::Held(kind, _) => rules.push(ClaimRequirement::Held(kind)),
                ClaimState::Bound(volume) => {
                    rules.extend(volume.affinity.clone().map(ClaimRequirement::Reached));
                    let zones = volume.zones();
                    rules.extend(zones.map(|(key, values)| ClaimRequirement::Zone(key, values)));
                }
                ClaimState::Waits(claim, class, facts) => {
                    takes = true;
                    per_pod |= facts.makes && self.drivers.reports_space(facts);
                    let made = || facts.topologies.clone().map(ClaimRequirement::Made);
                    if let Some(node) = &claim.selected {
                        rules.push(ClaimRequirement::On(node.clone()));
                        if facts.makes {
                            rules.extend(made());
                        } else {
                            rules.push(ClaimRequirement::Nowhere);
                        }
                    } else if facts.makes && !self.has_free(class) && !self.meant.contains_key(&id)
                    {
                        rules.extend(made());
                    } else {
                        per_pod = true;
                    }
                }
            }
        }
        NodeRequirements::new(rules, per_pod, takes)
    }

    fn has_free(&self, class: &str) -> bool {
        self.free
            .get(class)
            .is_some_and(|free_volumes| !free_volumes.is_empty())
    }

    /// A claim's state for a pod of that uid; `own` if it is created for the pod.
    fn state(&self, id: &ClaimKey, own: bool, uid: &str) -> ClaimState<'_> {
        let Some(claim) = self.claims.get(id) else {
            return match (self.strict, own) {
                (false, _) => ClaimState::Unknown,
                (true, true) => ClaimState::Held(ClaimProblem::NotMadeYet, ""),
                (true, false) => ClaimState::Held(ClaimProblem::Missing, ""),
            };
        };
        let volume = claim.volume.as_deref();
        if self.strict {
            if claim.lost {
                return ClaimState::Held(ClaimProblem::Lost, volume.unwrap_or_default());
            }
            if claim.deleting {
                return ClaimState::Held(ClaimProblem::Deleting, "");
            }
            if own && claim.owner.as_deref() != Some(uid) {
                return ClaimState::Held(ClaimProblem::NotOurs, "");
            }
        }
        if let Some(name) = volume {
            return match self.volumes.get(name) {
                _ if self.strict && !claim.completed => {
                    ClaimState::Held(ClaimProblem::Prebound, name)
                }
                Some(volume) => ClaimState::Bound(volume),
                None if self.strict => ClaimState::Held(ClaimProblem::VolumeMissing, name),
                None => ClaimState::Unknown,
            };
        }
        let class = self.class_of(claim);
        match class.and_then(|name| Some((name, self.classes.get(name)?))) {
            Some((name, class)) if class.waits => ClaimState::Waits(claim, name, class),
            Some((name, _)) => ClaimState::Held(ClaimProblem::Unbound, name),
            None if !self.strict => ClaimState::Unknown,
            None => match class.filter(|name| !name.is_empty()) {
                Some(name) => ClaimState::Held(ClaimProblem::NoSuchClass, name),
                None => ClaimState::Held(ClaimProblem::Classless, ""),
            },
        }
    }

    fn class_of<'a>(&'a self, claim: &'a VolumeClaim) -> Option<&'a str> {
        let default = || {
            let mut all = self.classes.iter().filter(|_| !self.strict);
            let found = all.find(|(_, class)| class.default);
            found.map(|(name, _)| name.as_str())
        };
        claim.class.as_deref().or_else(default)
    }

    /// The first claim that the pod must wait for.
    pub(crate) fn hold_of(&self, key: &PodKey) -> Option<ClaimWait> {
        let uses = self.pods.get(key)?;
        uses.ids(key).find_map(|(id, own)| {
            let ClaimState::Held(kind, other) = self.state(&id, own, &uses.uid) else {
                return None;
            };
            Some(ClaimWait {
                kind,
                other: other.to_owned(),
                namespace: id.0,
                claim: id.1,
            })
        })
    }
}

impl Uses {
    /// The claims, and whether each is created for the pod.
    fn ids<'a>(&'a self, key: &'a PodKey) -> impl Iterator<Item = (ClaimKey, bool)> + 'a {
        let claims = self.claims.iter();
        claims.map(|(claim, own)| ((key.namespace.to_string(), claim.clone()), *own))
    }
}

/// The claims that a pod names, and those created for its ephemeral volumes.
fn claims_of(key: &PodKey, spec: &k8s::PodSpec) -> BTreeMap<String, bool> {
    let volumes = spec.volumes.iter().flatten();
    let claims = volumes.filter_map(|volume| match &volume.persistent_volume_claim {
        Some(source) => Some((source.claim_name.clone(), false)),
        // No claim is created for a pod that is only tried.
        None if key.name.starts_with(MARK) => None,
        None => volume
            .ephemeral
            .as_ref()
            .map(|_| (format!("{}-{}", key.name, volume.name), true)),
    });
    claims.collect()
}
