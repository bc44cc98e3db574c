//! Volumes: where its claims let a pod run, and which volumes the claims get there, as
//! kube-scheduler's VolumeBinding, VolumeZone, VolumeRestrictions and NodeVolumeLimits have it. A bound claim goes
//! where its volume can be reached. One that waits for its first pod goes where a free volume of its
//! class is, or where its class makes one; a volume that one pod is to have no other gets, from the
//! plan that says so until the pod is gone. Where nobody says that all claims, volumes and classes
//! are told of, unknown ones ask for nothing. Writes nothing: what must become of the claims before
//! a pod is bound is said with its binding.

mod attached;
mod disks;
mod drivers;
mod objects;
mod pick;
mod reach;
mod shelf;
mod told;
mod wiring;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1 as k8s;

use crate::node::NodeIx;
use crate::plan::VolumeSource;
use crate::pod::PodKey;
use crate::trial::MARK;
use disks::Inline;
use drivers::Drivers;
use objects::{Claim, Class, Volume};
use reach::Rule;
use shelf::Shelf;
use words::Kind;

pub(crate) use reach::Reach;
pub(crate) use words::Hold;

/// Namespace and name of a claim.
type ClaimKey = (String, String);

/// The claims that a pod names, and what it names without one.
#[derive(Clone, Debug, PartialEq)]
struct Uses {
    uid: String,
    /// By name; and whether it is made for the pod.
    claims: BTreeMap<String, bool>,
    inline: Inline,
}

/// What a claim is to a pod.
enum State<'a> {
    /// It asks for nothing.
    Unknown,
    /// Something must be done about it first; its class or volume, whichever matters.
    Held(Kind, &'a str),
    Bound(&'a Volume),
    /// It gets its volume with the pod's node: the name of its class, and the class.
    Waits(&'a Claim, &'a str, &'a Class),
}

/// What is decided for a pod: on which node, and what each claim gets there.
#[derive(Clone, Debug)]
struct Decided {
    node: Arc<str>,
    picks: Vec<(ClaimKey, VolumeSource)>,
}

/// Claims, volumes and classes as they are, and which pods name which claims.
#[derive(Clone, Debug, Default)]
pub(crate) struct Volumes {
    strict: bool,
    claims: BTreeMap<ClaimKey, Claim>,
    volumes: BTreeMap<String, Volume>,
    classes: BTreeMap<String, Class>,
    pods: BTreeMap<PodKey, Uses>,
    users: BTreeMap<ClaimKey, BTreeSet<PodKey>>,
    /// Those of them that are on a node, or are tried there.
    there: BTreeMap<NodeIx, BTreeSet<PodKey>>,
    drivers: Drivers,
    /// Claims that name a volume, by it.
    naming: BTreeMap<String, BTreeSet<ClaimKey>>,
    /// Volumes that are kept for a claim, by it.
    meant: BTreeMap<ClaimKey, BTreeSet<String>>,
    /// Free volumes, by class.
    free: BTreeMap<String, Shelf>,
    decided: BTreeMap<PodKey, Decided>,
    /// The same by claim, and the volumes that are given to one.
    given: BTreeMap<ClaimKey, BTreeMap<PodKey, VolumeSource>>,
    taken: BTreeMap<String, ClaimKey>,
    /// Which versions of those claims and volumes are known that steps are about.
    versions: BTreeMap<ClaimKey, u64>,
    volume_versions: BTreeMap<String, u64>,
}

impl Volumes {
    /// Nothing is known yet. Strict: what will not be told of is not there.
    pub(crate) fn new(strict: bool) -> Volumes {
        Volumes {
            strict,
            ..Volumes::default()
        }
    }

    /// Takes note of the claims that a pod names, and says what they ask for.
    pub(crate) fn named(
        &mut self,
        key: &PodKey,
        uid: &str,
        spec: &k8s::PodSpec,
    ) -> Option<Arc<Reach>> {
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

    /// The pod is gone.
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

    /// What a pod's claims ask of its node; none where any will do.
    pub(crate) fn reach(&self, key: &PodKey) -> Option<Arc<Reach>> {
        let uses = self.pods.get(key)?;
        let (mut rules, mut takes) = (Vec::new(), false);
        let mut picky = uses.inline.is_sole() || self.minds_limits(key, uses);
        for (id, own) in uses.ids(key) {
            let once = self.claims.get(&id).is_some_and(|c| c.modes.one_pod());
            picky |= once && !own;
            match self.state(&id, own, &uses.uid) {
                State::Unknown => {}
                State::Held(kind, _) => rules.push(Rule::Held(kind)),
                State::Bound(volume) => {
                    rules.extend(volume.affinity.clone().map(Rule::Reached));
                    let zones = volume.zones();
                    rules.extend(zones.map(|(key, values)| Rule::Zone(key, values)));
                }
                State::Waits(claim, class, facts) => {
                    takes = true;
                    picky |= facts.makes && self.drivers.tells_space(facts);
                    let made = || facts.topologies.clone().map(Rule::Made);
                    if let Some(node) = &claim.selected {
                        rules.push(Rule::On(node.clone()));
                        if facts.makes {
                            rules.extend(made());
                        } else {
                            rules.push(Rule::Nowhere);
                        }
                    } else if facts.makes && !self.has_free(class) && !self.meant.contains_key(&id)
                    {
                        rules.extend(made());
                    } else {
                        picky = true;
                    }
                }
            }
        }
        Reach::new(rules, picky, takes)
    }

    fn has_free(&self, class: &str) -> bool {
        self.free.get(class).is_some_and(|shelf| !shelf.is_empty())
    }

    /// What a claim is to a pod of that uid; `own` where it is to be made for the pod.
    fn state(&self, id: &ClaimKey, own: bool, uid: &str) -> State<'_> {
        let Some(claim) = self.claims.get(id) else {
            return match (self.strict, own) {
                (false, _) => State::Unknown,
                (true, true) => State::Held(Kind::NotMadeYet, ""),
                (true, false) => State::Held(Kind::Missing, ""),
            };
        };
        let volume = claim.volume.as_deref();
        if self.strict {
            if claim.lost {
                return State::Held(Kind::Lost, volume.unwrap_or_default());
            }
            if claim.deleting {
                return State::Held(Kind::Deleting, "");
            }
            if own && claim.owner.as_deref() != Some(uid) {
                return State::Held(Kind::NotOurs, "");
            }
        }
        if let Some(name) = volume {
            return match self.volumes.get(name) {
                _ if self.strict && !claim.completed => State::Held(Kind::Prebound, name),
                Some(volume) => State::Bound(volume),
                None if self.strict => State::Held(Kind::VolumeMissing, name),
                None => State::Unknown,
            };
        }
        let class = self.class_of(claim);
        match class.and_then(|name| Some((name, self.classes.get(name)?))) {
            Some((name, class)) if class.waits => State::Waits(claim, name, class),
            Some((name, _)) => State::Held(Kind::Unbound, name),
            None if !self.strict => State::Unknown,
            None => match class.filter(|name| !name.is_empty()) {
                Some(name) => State::Held(Kind::NoSuchClass, name),
                None => State::Held(Kind::Classless, ""),
            },
        }
    }

    fn class_of<'a>(&'a self, claim: &'a Claim) -> Option<&'a str> {
        let default = || {
            let mut all = self.classes.iter().filter(|_| !self.strict);
            let found = all.find(|(_, class)| class.default);
            found.map(|(name, _)| name.as_str())
        };
        claim.class.as_deref().or_else(default)
    }

    /// The first claim that keeps a pod waiting.
    pub(crate) fn hold_of(&self, key: &PodKey) -> Option<Hold> {
        let uses = self.pods.get(key)?;
        uses.ids(key).find_map(|(id, own)| {
            let State::Held(kind, other) = self.state(&id, own, &uses.uid) else {
                return None;
            };
            Some(Hold {
                kind,
                other: other.to_owned(),
                namespace: id.0,
                claim: id.1,
            })
        })
    }
}

impl Uses {
    /// The claims, and whether each is made for the pod.
    fn ids<'a>(&'a self, key: &'a PodKey) -> impl Iterator<Item = (ClaimKey, bool)> + 'a {
        let claims = self.claims.iter();
        claims.map(|(claim, own)| ((key.namespace.to_string(), claim.clone()), *own))
    }
}

/// The claims that a pod names, or that are made for it.
fn claims_of(key: &PodKey, spec: &k8s::PodSpec) -> BTreeMap<String, bool> {
    let volumes = spec.volumes.iter().flatten();
    let claims = volumes.filter_map(|volume| match &volume.persistent_volume_claim {
        Some(source) => Some((source.claim_name.clone(), false)),
        // Nothing is made for what is only tried.
        None if key.name.starts_with(MARK) => None,
        None => volume
            .ephemeral
            .as_ref()
            .map(|_| (format!("{}-{}", key.name, volume.name), true)),
    });
    claims.collect()
}
