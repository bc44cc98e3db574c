//! Volumes' topology: where its claims let a pod run. A bound claim goes where its volume can be
//! reached. One that waits for its first pod goes where a free volume of its class is, or where its
//! class makes one. Claims, volumes and classes that nobody told of ask for nothing: how Muster's
//! own claims are bound has no topology. Volumes are given to claims by others: two claims that
//! wait for the same free volume may find the same node good.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1 as k8s;
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as K8sQuantity;
use resources::quantity::Quantity;

use super::{Refusal, affinity};
use crate::node::{Node, Offer};
use crate::pod::PodKey;

/// What a StorageClass says of itself whose volumes nobody makes.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";
const WAITS: &str = "WaitForFirstConsumer";
/// A claim that names no class has this one's.
const IS_DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";

/// Namespace and name of a claim.
type ClaimKey = (String, String);

/// Nodes, by labels or name; compared by their text.
#[derive(Clone, Debug)]
struct Selector {
    text: String,
    read: k8s::NodeSelector,
}

impl PartialEq for Selector {
    fn eq(&self, other: &Selector) -> bool {
        self.text == other.text
    }
}

impl Eq for Selector {}

impl PartialOrd for Selector {
    fn partial_cmp(&self, other: &Selector) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Selector {
    fn cmp(&self, other: &Selector) -> std::cmp::Ordering {
        self.text.cmp(&other.text)
    }
}

impl Selector {
    fn new(read: k8s::NodeSelector) -> Selector {
        let text = serde_json::to_string(&read).expect("Kubernetes' types serialize");
        Selector { text, read }
    }
}

/// What one claim asks of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rule {
    /// It must be bound first, wherever.
    Unbound,
    /// Its volume is reached from there.
    Reached(Selector),
    /// One of these has, or makes, a volume for it.
    Had(Vec<Selector>),
}

/// What all claims of a pod ask of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Reach(Vec<Rule>);

impl Reach {
    /// Why the node is out of the question.
    pub(crate) fn refusal(&self, node: &Node, offer: &Offer) -> Option<Refusal> {
        let fits = |selector: &Selector| affinity::selects(&selector.read, node, offer);
        let refused = |rule: &Rule| match rule {
            Rule::Unbound => Some(Refusal::VolumeUnbound),
            Rule::Reached(selector) => (!fits(selector)).then_some(Refusal::VolumeElsewhere),
            Rule::Had(any) => (!any.iter().any(fits)).then_some(Refusal::NoVolume),
        };
        self.0.iter().find_map(refused)
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Claim {
    volume: Option<String>,
    class: Option<String>,
    bytes: i64,
    modes: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq)]
struct Volume {
    class: String,
    bytes: i64,
    modes: BTreeSet<String>,
    affinity: Option<Selector>,
    /// Whose it is, where it is somebody's.
    claim: Option<ClaimKey>,
    /// Not failed, and not given back by a claim that is gone.
    usable: bool,
}

#[derive(Clone, Debug, PartialEq)]
struct Class {
    waits: bool,
    makes: bool,
    default: bool,
    topologies: Option<Selector>,
}

/// Claims, volumes and classes as they are, and which pods name which claims.
#[derive(Clone, Debug, Default)]
pub(crate) struct Volumes {
    claims: BTreeMap<ClaimKey, Claim>,
    volumes: BTreeMap<String, Volume>,
    classes: BTreeMap<String, Class>,
    pods: BTreeMap<PodKey, BTreeSet<String>>,
    users: BTreeMap<ClaimKey, BTreeSet<PodKey>>,
}

impl Volumes {
    /// Takes note of the claims that a pod names, and says what they ask for.
    pub(crate) fn named(&mut self, key: &PodKey, spec: &k8s::PodSpec) -> Option<Arc<Reach>> {
        let claims = claims_of(key, spec);
        if claims.is_empty() && self.pods.is_empty() {
            return None;
        }
        if self.pods.get(key) != Some(&claims) {
            self.gone(key);
            for claim in &claims {
                let id = (key.namespace.to_string(), claim.clone());
                self.users.entry(id).or_default().insert(key.clone());
            }
            if !claims.is_empty() {
                self.pods.insert(key.clone(), claims);
            }
        }
        self.reach(key)
    }

    /// The pod is gone.
    pub(crate) fn gone(&mut self, key: &PodKey) {
        for claim in self.pods.remove(key).into_iter().flatten() {
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
        let claims = self.pods.get(key)?.iter();
        let rules = claims.filter_map(|claim| {
            let id = (key.namespace.to_string(), claim.clone());
            self.rule(&id)
        });
        let rules: BTreeSet<Rule> = rules.collect();
        (!rules.is_empty()).then(|| Arc::new(Reach(rules.into_iter().collect())))
    }

    fn rule(&self, id: &ClaimKey) -> Option<Rule> {
        let claim = self.claims.get(id)?;
        if let Some(volume) = &claim.volume {
            let affinity = self.volumes.get(volume)?.affinity.clone();
            return affinity.map(Rule::Reached);
        }
        let name = self.class_of(claim)?;
        let class = self.classes.get(name)?;
        if !class.waits {
            return Some(Rule::Unbound);
        }
        let mut any = BTreeSet::new();
        if class.makes {
            any.insert(class.topologies.clone()?);
        }
        let free = self.volumes.values().filter(|volume| {
            volume.usable
                && volume.class == name
                && volume.claim.as_ref().is_none_or(|of| of == id)
                && volume.bytes >= claim.bytes
                && claim.modes.is_subset(&volume.modes)
        });
        for volume in free {
            any.insert(volume.affinity.clone()?);
        }
        Some(Rule::Had(any.into_iter().collect()))
    }

    fn class_of<'a>(&'a self, claim: &'a Claim) -> Option<&'a str> {
        claim.class.as_deref().or_else(|| {
            let mut all = self.classes.iter();
            all.find(|(_, class)| class.default)
                .map(|(name, _)| name.as_str())
        })
    }

    /// A claim as it is now, or none; the pods that it may matter to.
    pub(crate) fn set_claim(
        &mut self,
        namespace: &str,
        name: &str,
        claim: Option<&k8s::PersistentVolumeClaim>,
    ) -> Vec<PodKey> {
        let id = (namespace.to_owned(), name.to_owned());
        let new = claim.map(Claim::read);
        let old = match new.clone() {
            Some(claim) => self.claims.insert(id.clone(), claim),
            None => self.claims.remove(&id),
        };
        if old == new {
            return Vec::new();
        }
        self.users.get(&id).into_iter().flatten().cloned().collect()
    }

    /// The same of a volume.
    pub(crate) fn set_volume(
        &mut self,
        name: &str,
        volume: Option<&k8s::PersistentVolume>,
    ) -> Vec<PodKey> {
        let new = volume.map(Volume::read);
        let old = match new.clone() {
            Some(volume) => self.volumes.insert(name.to_owned(), volume),
            None => self.volumes.remove(name),
        };
        if old == new {
            return Vec::new();
        }
        let classes = [&old, &new].map(|volume| volume.as_ref().map(|one| one.class.clone()));
        self.users_where(|all, claim| match &claim.volume {
            Some(bound) => bound == name,
            None => {
                let class = all.class_of(claim);
                classes.iter().flatten().any(|one| class == Some(one))
            }
        })
    }

    /// The same of a StorageClass.
    pub(crate) fn set_class(&mut self, name: &str, class: Option<&StorageClass>) -> Vec<PodKey> {
        let new = class.map(Class::read);
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

    fn users_where(&self, matters: impl Fn(&Volumes, &Claim) -> bool) -> Vec<PodKey> {
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

/// The claims that a pod names, or that are made for it.
fn claims_of(key: &PodKey, spec: &k8s::PodSpec) -> BTreeSet<String> {
    let volumes = spec.volumes.iter().flatten();
    let claims = volumes.filter_map(|volume| match &volume.persistent_volume_claim {
        Some(source) => Some(source.claim_name.clone()),
        None => volume
            .ephemeral
            .as_ref()
            .map(|_| format!("{}-{}", key.name, volume.name)),
    });
    claims.collect()
}

fn bytes(list: Option<&BTreeMap<String, K8sQuantity>>) -> i64 {
    let amount = list.and_then(|list| list.get("storage"));
    let amount = amount.and_then(|amount| amount.0.parse::<Quantity>().ok());
    amount.map_or(0, |amount| amount.value())
}

fn set(list: Option<&Vec<String>>) -> BTreeSet<String> {
    list.into_iter().flatten().cloned().collect()
}

impl Claim {
    fn read(claim: &k8s::PersistentVolumeClaim) -> Claim {
        let spec = claim.spec.clone().unwrap_or_default();
        let requests = spec
            .resources
            .as_ref()
            .and_then(|list| list.requests.as_ref());
        Claim {
            volume: spec.volume_name.filter(|name| !name.is_empty()),
            class: spec.storage_class_name,
            bytes: bytes(requests),
            modes: set(spec.access_modes.as_ref()),
        }
    }
}

impl Volume {
    fn read(volume: &k8s::PersistentVolume) -> Volume {
        let spec = volume.spec.clone().unwrap_or_default();
        let phase = volume
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        let required = spec.node_affinity.and_then(|nodes| nodes.required);
        Volume {
            class: spec.storage_class_name.unwrap_or_default(),
            bytes: bytes(spec.capacity.as_ref()),
            modes: set(spec.access_modes.as_ref()),
            affinity: required.map(Selector::new),
            claim: spec.claim_ref.map(|claim| {
                let part = |text: Option<String>| text.unwrap_or_default();
                (part(claim.namespace), part(claim.name))
            }),
            usable: !matches!(phase, Some("Failed" | "Released")),
        }
    }
}

impl Class {
    fn read(class: &StorageClass) -> Class {
        let notes = class.metadata.annotations.as_ref();
        let topologies = class.allowed_topologies.iter().flatten();
        let terms: Vec<k8s::NodeSelectorTerm> = topologies
            .map(|term| {
                let rules = term.match_label_expressions.iter().flatten();
                let rules = rules.map(|rule| k8s::NodeSelectorRequirement {
                    key: rule.key.clone(),
                    operator: "In".to_owned(),
                    values: Some(rule.values.clone()),
                });
                k8s::NodeSelectorTerm {
                    match_expressions: Some(rules.collect()),
                    match_fields: None,
                }
            })
            .collect();
        Class {
            waits: class.volume_binding_mode.as_deref() == Some(WAITS),
            makes: class.provisioner != NO_PROVISIONER,
            default: notes
                .and_then(|notes| notes.get(IS_DEFAULT))
                .is_some_and(|value| value == "true"),
            topologies: (!terms.is_empty()).then(|| {
                Selector::new(k8s::NodeSelector {
                    node_selector_terms: terms,
                })
            }),
        }
    }
}
