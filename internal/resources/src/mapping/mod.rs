//! Maps the queues of other schedulers to Muster's: Kueue's ClusterQueues, Cohorts and
//! ResourceFlavors, KAI's Queues, YuniKorn's queue configuration, Koordinator's ElasticQuotas, and
//! fields of Volcano's Queue without effect here. Pure; each key without a counterpart causes a
//! warning.
//!
//! | theirs | here |
//! |---|---|
//! | Volcano Queue | the same kind; `guaranteed` is `guarantee.resource` |
//! | Kueue ClusterQueue; Cohort | a Queue; a Queue that is the `parent` of others |
//! | Kueue `nominalQuota` | `deserved`: a ClusterQueue's own quota; the sum below and at a Cohort |
//! | Kueue: a root cohort, or a ClusterQueue without one | `capability` too: it has no cohort to borrow from |
//! | Kueue `borrowingLimit`, `lendingLimit` | `muster.io/borrowing-limit`, `muster.io/lending-limit` |
//! | Kueue `fairSharing.weight` | `muster.io/surplus-weight` |
//! | Kueue `preemption`; `fairSharing` of its Configuration | `muster.io/preemption`: `withinQueue`, `reclaim`, `borrow`; `fair` |
//! | Kueue `stopPolicy` Hold, HoldAndDrain | state Closing, Closed |
//! | Kueue flavors of one resource | summed, with a warning |
//! | KAI `quota`, `limit`, `overQuotaWeight` | `deserved`, `capability`, `muster.io/surplus-weight`; -1 is no bound |
//! | KAI `parentQueue`, `priority` (100 unless given) | `parent`, `priority` |
//! | YuniKorn queue | a Queue named by its path, as `root.a.b` |
//! | YuniKorn `guaranteed`, `max` | `deserved` (regained by preemption, not kept free), `capability` |
//! | YuniKorn limits for user `*`, group `*` | `muster.io/user-limit`, `muster.io/team-limit` |
//! | YuniKorn `application.sort.policy` | `muster.io/policy`: fifo with priorities is the default, else `fifo`; `fair` |
//! | YuniKorn `priority.offset`; `preemption.policy: disabled` | `priority`; `reclaimable: false`, and no evictions for it |
//! | Koordinator `min`, `max`, parent | `deserved`, `capability`, `parent` |
//! | Koordinator shared-weight (`max` unless given) | `muster.io/surplus-weight` |
//! | Koordinator `allow-lent-resource: "false"` | `muster.io/lending-limit` of 0: kept free for it |
//!
//! Every queue deserves plenty of the usual resources that no object mentions: the other scheduler
//! does not count them either.

mod fields;
mod kai;
mod koordinator;
mod kueue;
mod volcano;
mod yunikorn;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::invalid_value::InvalidValue;
use crate::kinds::{Queue, QueueSpec};
use crate::quantity::Quantity;
use fields::Fields;

/// Amounts by resource.
pub(crate) type ResourceAmounts = BTreeMap<String, Quantity>;

/// Resources that nearly every pod requests, each with an amount that exceeds any cluster.
const USUAL: [(&str, i64); 3] = [
    ("cpu", 100_000_000),
    ("memory", 1 << 50),
    ("pods", 100_000_000),
];

/// The result of the mapping.
#[derive(Clone, Debug, Default)]
pub struct Mapped {
    /// The queues, parents before children.
    pub queues: Vec<Queue>,
    /// Node label keys of Kueue's Topology, widest first; empty without a Topology.
    pub levels: Vec<String>,
    /// Keys without a counterpart or with another meaning.
    pub warnings: Vec<Warning>,
}

/// A key that is not mapped as it stands.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Warning {
    /// The object, as kind and name.
    pub object: String,
    /// The key's path in it.
    pub key: String,
    /// The effect of the key here.
    pub why: String,
}

impl std::fmt::Display for Warning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}: {}", self.object, self.key, self.why)
    }
}

/// An unreadable value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{object}: {error}")]
pub struct MappingError {
    /// The object, as kind and name.
    pub object: String,
    /// The key's path in it, its value and the valid form.
    pub error: InvalidValue,
}

/// True if [`queues`] reads this object.
#[must_use]
pub fn takes(object: &Value) -> bool {
    Sort::of(object).is_some()
}

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    Volcano,
    Kai,
    ClusterQueue,
    Cohort,
    Flavor,
    KueueConfiguration,
    KueueTopology,
    YuniKorn,
    YuniKornMap,
    ElasticQuota,
}

impl Sort {
    fn of(object: &Value) -> Option<Sort> {
        let word = |key: &str| object[key].as_str().unwrap_or_default();
        let group = word("apiVersion").split('/').next().unwrap_or_default();
        Some(match (group, word("kind")) {
            ("scheduling.volcano.sh", "Queue") => Sort::Volcano,
            ("scheduling.run.ai", "Queue") => Sort::Kai,
            ("kueue.x-k8s.io", "ClusterQueue") => Sort::ClusterQueue,
            ("kueue.x-k8s.io", "Cohort") => Sort::Cohort,
            ("kueue.x-k8s.io", "ResourceFlavor") => Sort::Flavor,
            ("kueue.x-k8s.io", "Topology") => Sort::KueueTopology,
            ("config.kueue.x-k8s.io", "Configuration") => Sort::KueueConfiguration,
            ("scheduling.sigs.k8s.io", "ElasticQuota") => Sort::ElasticQuota,
            ("v1", "ConfigMap") if object["data"]["queues.yaml"].is_string() => Sort::YuniKornMap,
            ("", "") if object["partitions"].is_array() => Sort::YuniKorn,
            _ => return None,
        })
    }
}

/// Maps the objects to Muster's Queues. Objects that [`takes`] does not know are skipped.
///
/// # Errors
/// An unreadable quantity or word.
pub fn queues(objects: &[Value]) -> Result<Mapped, MappingError> {
    let mut mapped = Mapped::default();
    let mut kueue = kueue::KueueObjects::default();
    let mut foreign = Vec::new();
    for object in objects {
        match Sort::of(object) {
            None => {}
            Some(Sort::Volcano) => volcano::read(object, &mut mapped)?,
            Some(Sort::Kai) => kai::read(object, &mut foreign, &mut mapped.warnings)?,
            Some(Sort::YuniKorn) => yunikorn::read(object, &mut foreign, &mut mapped.warnings)?,
            Some(Sort::YuniKornMap) => mapped.warnings.push(Warning {
                object: name_of(object),
                key: "data[queues.yaml]".to_owned(),
                why: "is not read; pass its text as a document of its own".to_owned(),
            }),
            Some(Sort::ElasticQuota) => {
                koordinator::read(object, &mut foreign, &mut mapped.warnings)?;
            }
            Some(sort) => kueue.add(sort, object),
        }
    }
    kueue.map(&mut foreign, &mut mapped)?;
    plenty(&mut foreign);
    mapped.queues.extend(parents_first(foreign));
    Ok(mapped)
}

/// A queue under construction.
#[derive(Clone, Debug, Default)]
struct QueueDraft {
    name: String,
    parent: Option<String>,
    deserved: Option<ResourceAmounts>,
    capability: ResourceAmounts,
    weight: Option<i32>,
    priority: Option<i32>,
    reclaimable: Option<bool>,
    state: Option<crate::kinds::QueueState>,
    annotations: BTreeMap<String, String>,
}

impl QueueDraft {
    fn annotate(&mut self, name: &str, list: &ResourceAmounts) {
        if !list.is_empty() {
            let map: BTreeMap<&String, String> =
                list.iter().map(|(key, n)| (key, n.to_string())).collect();
            let text = serde_json::to_string(&map).unwrap_or_default();
            self.annotations.insert(name.to_owned(), text);
        }
    }

    fn queue(self) -> Queue {
        let list = |list: &ResourceAmounts| {
            let entries = list.iter().map(|(name, n)| (name.clone(), n.to_k8s()));
            entries.collect::<BTreeMap<_, _>>()
        };
        let capability = list(&self.capability);
        let mut queue = Queue::new(
            &self.name,
            QueueSpec {
                weight: Some(self.weight.unwrap_or(1)),
                parent: self.parent,
                deserved: self.deserved.as_ref().map(list),
                capability: (!capability.is_empty()).then_some(capability),
                priority: self.priority,
                reclaimable: self.reclaimable,
                ..QueueSpec::default()
            },
        );
        if !self.annotations.is_empty() {
            queue.metadata.annotations = Some(self.annotations);
        }
        queue.status = self.state.map(|state| crate::kinds::QueueStatus {
            state: Some(state),
            ..crate::kinds::QueueStatus::default()
        });
        queue
    }
}

/// Deserves every queue plenty of the usual resources that no object mentions, so that these do not count against it.
fn plenty(drafts: &mut [QueueDraft]) {
    let spoken: BTreeSet<String> = drafts
        .iter()
        .flat_map(|draft| draft.deserved.iter().flatten().chain(&draft.capability))
        .map(|(name, _)| name.clone())
        .collect();
    for deserved in drafts
        .iter_mut()
        .filter_map(|draft| draft.deserved.as_mut())
    {
        for (name, plenty) in USUAL
            .into_iter()
            .filter(|(name, _)| !spoken.contains(*name))
        {
            deserved.insert(name.to_owned(), Quantity::from_value(plenty));
        }
    }
}

/// Orders parents before children; cycles come last, unchanged.
fn parents_first(drafts: Vec<QueueDraft>) -> Vec<Queue> {
    let names: BTreeSet<String> = drafts.iter().map(|draft| draft.name.clone()).collect();
    let mut done: BTreeSet<String> = BTreeSet::new();
    let mut left = drafts;
    let mut queues = Vec::new();
    loop {
        let (now, later): (Vec<QueueDraft>, Vec<QueueDraft>) =
            left.into_iter().partition(|draft| {
                let parent = draft.parent.as_ref();
                parent.is_none_or(|parent| done.contains(parent) || !names.contains(parent))
            });
        if now.is_empty() {
            queues.extend(later.into_iter().map(QueueDraft::queue));
            return queues;
        }
        done.extend(now.iter().map(|draft| draft.name.clone()));
        queues.extend(now.into_iter().map(QueueDraft::queue));
        left = later;
    }
}

/// The name of an object in messages: kind and name.
#[must_use]
pub fn name_of(object: &Value) -> String {
    let kind = object["kind"].as_str().unwrap_or("queue configuration");
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    format!("{kind} {name}").trim_end().to_owned()
}
