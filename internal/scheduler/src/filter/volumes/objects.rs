//! Claims, volumes and storage classes: the fields of each object that matter for placement.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1 as k8s;
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as K8sQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::quantity::Quantity;
use resources::selector::LabelSelector;

use super::ClaimKey;
use super::disks::VolumeDisk;
use crate::filter::affinity;
use crate::node::{Node, NodeAttributes};

/// The provisioner of a StorageClass whose volumes are created by hand.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";
const WAITS: &str = "WaitForFirstConsumer";
/// Marks the class of claims that name none.
const IS_DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";
/// The older annotation for the class, which takes precedence over the field.
const CLASS: &str = "volume.beta.kubernetes.io/storage-class";
/// Marks a claim whose binding is complete.
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// The node for which a claim's volume is to be provisioned.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// Location labels of volumes and nodes, with each label's current name.
pub(super) const ZONES: [(&str, &str); 4] = [
    (
        "failure-domain.beta.kubernetes.io/zone",
        "topology.kubernetes.io/zone",
    ),
    (
        "failure-domain.beta.kubernetes.io/region",
        "topology.kubernetes.io/region",
    ),
    ("topology.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    (
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/region",
    ),
];

/// A node selector; compared by its text.
#[derive(Clone, Debug)]
pub(super) struct Selector {
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
    fn new(read: k8s::NodeSelector) -> Arc<Selector> {
        let text = serde_json::to_string(&read).expect("Kubernetes' types serialize");
        Arc::new(Selector { text, read })
    }

    pub(super) fn selects(&self, node: &Node, offer: &NodeAttributes) -> bool {
        affinity::selects(&self.read, node, offer)
    }

    /// The `In` requirement with the fewest values, if the selector has exactly one term.
    pub(super) fn pin(&self) -> Option<(&str, &[String])> {
        let [term] = &self.read.node_selector_terms[..] else {
            return None;
        };
        let rules = term.match_expressions.iter().flatten();
        let named = rules.filter(|rule| rule.operator == "In");
        let few = named.min_by_key(|rule| rule.values.as_ref().map_or(0, Vec::len))?;
        Some((&few.key, few.values.as_deref().unwrap_or_default()))
    }
}

/// Access modes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Modes(u8);

const ONE_POD: u8 = 8;

impl Modes {
    fn read(list: Option<&Vec<String>>) -> Modes {
        let bits = list.into_iter().flatten().map(|mode| match mode.as_str() {
            "ReadWriteOnce" => 1,
            "ReadOnlyMany" => 2,
            "ReadWriteMany" => 4,
            "ReadWriteOncePod" => ONE_POD,
            _ => 0,
        });
        Modes(bits.fold(0, |all, bit| all | bit))
    }

    pub(super) fn all_in(self, other: Modes) -> bool {
        self.0 & !other.0 == 0
    }

    /// ReadWriteOncePod: one pod at a time.
    pub(super) fn one_pod(self) -> bool {
        self.0 & ONE_POD != 0
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct VolumeClaim {
    pub(super) uid: String,
    pub(super) volume: Option<String>,
    /// Both claim and volume record the binding.
    pub(super) completed: bool,
    pub(super) class: Option<String>,
    pub(super) bytes: i64,
    pub(super) modes: Modes,
    pub(super) block: bool,
    pub(super) attributes: Option<String>,
    /// Selects volumes by label. A selector that cannot be read selects none.
    pub(super) selector: Option<Box<Option<LabelSelector>>>,
    /// The node for which its volume is being provisioned.
    pub(super) selected: Option<String>,
    pub(super) deleting: bool,
    pub(super) lost: bool,
    /// The uid of the pod that it was created for.
    pub(super) owner: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Volume {
    pub(super) class: String,
    pub(super) bytes: i64,
    pub(super) modes: Modes,
    pub(super) block: bool,
    pub(super) attributes: Option<String>,
    pub(super) affinity: Option<Arc<Selector>>,
    pub(super) labels: BTreeMap<String, String>,
    /// Its claim and the claim's uid, if it has one.
    pub(super) claim: Option<(ClaimKey, String)>,
    /// Its phase; empty if it has none.
    pub(super) phase: String,
    pub(super) deleting: bool,
    /// The disk that is attached to a node that uses it.
    pub(super) disk: Option<VolumeDisk>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct VolumeClass {
    pub(super) waits: bool,
    pub(super) makes: bool,
    pub(super) default: bool,
    pub(super) topologies: Option<Arc<Selector>>,
    /// The provisioner of its volumes.
    pub(super) provisioner: String,
}

/// An object's resource version as a number: later versions are larger.
pub(super) fn version(meta: &ObjectMeta) -> u64 {
    let version = meta.resource_version.as_deref();
    version.and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn bytes(list: Option<&BTreeMap<String, K8sQuantity>>) -> i64 {
    let amount = list.and_then(|list| list.get("storage"));
    let amount = amount.and_then(|amount| amount.0.parse::<Quantity>().ok());
    amount.map_or(0, |amount| amount.value())
}

fn note<'a>(meta: &'a ObjectMeta, name: &str) -> Option<&'a String> {
    meta.annotations.as_ref()?.get(name)
}

fn given(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

impl VolumeClaim {
    pub(super) fn read(claim: &k8s::PersistentVolumeClaim) -> VolumeClaim {
        let spec = claim.spec.clone().unwrap_or_default();
        let meta = &claim.metadata;
        let resources = spec.resources.as_ref();
        let phase = claim.status.as_ref().and_then(|s| s.phase.as_deref());
        let owners = meta.owner_references.iter().flatten();
        let mut pods = owners.filter(|one| one.controller == Some(true) && one.kind == "Pod");
        VolumeClaim {
            uid: meta.uid.clone().unwrap_or_default(),
            volume: given(spec.volume_name),
            completed: note(meta, BIND_COMPLETED).is_some(),
            class: note(meta, CLASS).cloned().or(spec.storage_class_name),
            bytes: bytes(resources.and_then(|list| list.requests.as_ref())),
            modes: Modes::read(spec.access_modes.as_ref()),
            block: spec.volume_mode.as_deref() == Some("Block"),
            attributes: given(spec.volume_attributes_class_name),
            selector: (spec.selector.as_ref())
                .map(|selector| Box::new(LabelSelector::from_k8s(selector).ok())),
            selected: note(meta, SELECTED_NODE).cloned(),
            deleting: meta.deletion_timestamp.is_some(),
            lost: phase == Some("Lost"),
            owner: pods.next().map(|owner| owner.uid.clone()),
        }
    }

    /// True if a volume reserved for the claim matches it in size, mode and attributes.
    pub(super) fn fits(&self, volume: &Volume) -> bool {
        volume.bytes >= self.bytes
            && volume.block == self.block
            && volume.attributes == self.attributes
            && !volume.deleting
    }

    /// True if the claim may take a volume that is not reserved.
    pub(super) fn takes(&self, volume: &Volume) -> bool {
        let selected = self.selector.as_deref().is_none_or(|selector| {
            let selector = selector.as_ref();
            selector.is_some_and(|selector| selector.matches(&volume.labels))
        });
        selected && self.fits(volume) && self.modes.all_in(volume.modes)
    }
}

impl Volume {
    pub(super) fn read(volume: &k8s::PersistentVolume) -> Volume {
        let spec = volume.spec.clone().unwrap_or_default();
        let meta = &volume.metadata;
        let phase = volume.status.as_ref().and_then(|s| s.phase.clone());
        let required = spec.node_affinity.and_then(|nodes| nodes.required);
        let class = note(meta, CLASS).cloned().or(spec.storage_class_name);
        Volume {
            class: class.unwrap_or_default(),
            bytes: bytes(spec.capacity.as_ref()),
            modes: Modes::read(spec.access_modes.as_ref()),
            block: spec.volume_mode.as_deref() == Some("Block"),
            attributes: given(spec.volume_attributes_class_name),
            affinity: required.map(Selector::new),
            labels: meta.labels.clone().unwrap_or_default(),
            claim: spec.claim_ref.map(|claim| {
                let part = |text: Option<String>| text.unwrap_or_default();
                ((part(claim.namespace), part(claim.name)), part(claim.uid))
            }),
            phase: phase.unwrap_or_default(),
            deleting: meta.deletion_timestamp.is_some(),
            disk: VolumeDisk::of_volume(volume),
        }
    }

    /// True if it is reserved for exactly this claim.
    pub(super) fn is_for(&self, id: &ClaimKey, uid: &str) -> bool {
        let claim = self.claim.as_ref();
        claim.is_some_and(|(of, which)| of == id && (which.is_empty() || which == uid))
    }

    /// True if a claim may take it that it is not reserved for.
    pub(super) fn is_free(&self, strict: bool) -> bool {
        let phase = self.phase.as_str();
        let available = match strict {
            true => phase == "Available",
            false => !matches!(phase, "Failed" | "Released"),
        };
        self.claim.is_none() && available && !self.deleting
    }

    /// Its location labels: a label, and the values that match.
    pub(super) fn zones(&self) -> impl Iterator<Item = (&'static str, BTreeSet<String>)> + '_ {
        ZONES.into_iter().filter_map(|(key, _)| {
            let value = self.labels.get(key)?;
            Some((key, value.split("__").map(str::to_owned).collect()))
        })
    }
}

impl VolumeClass {
    pub(super) fn read(class: &StorageClass) -> VolumeClass {
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
        VolumeClass {
            waits: class.volume_binding_mode.as_deref() == Some(WAITS),
            makes: !matches!(class.provisioner.as_str(), "" | NO_PROVISIONER),
            default: note(&class.metadata, IS_DEFAULT).is_some_and(|value| value == "true"),
            provisioner: class.provisioner.clone(),
            topologies: (!terms.is_empty()).then(|| {
                Selector::new(k8s::NodeSelector {
                    node_selector_terms: terms,
                })
            }),
        }
    }
}
