//! Maps Kueue's ClusterQueues, Cohorts, ResourceFlavors, Topologies, and the fair sharing of its
//! Configuration. A ClusterQueue or Cohort may name a cohort that has no object.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::{Fields, Mapped, MappingError, QueueDraft, ResourceAmounts, Sort, Warning, name_of};
use crate::kinds::QueueState;
use crate::names::{BORROWING_LIMIT, LENDING_LIMIT, PREEMPTION, SURPLUS_WEIGHT};
use crate::quantity::Quantity;

/// Kueue's objects by kind.
#[derive(Default)]
pub(super) struct KueueObjects<'a> {
    queues: Vec<&'a Value>,
    cohorts: Vec<&'a Value>,
    flavors: Vec<&'a Value>,
    topologies: Vec<&'a Value>,
    configurations: Vec<&'a Value>,
}

/// The quotas of its resource groups, summed over flavors.
#[derive(Default)]
struct GroupQuotas {
    nominal: ResourceAmounts,
    borrowing: ResourceAmounts,
    lending: ResourceAmounts,
}

/// A cohort or ClusterQueue.
struct CohortMember {
    draft: QueueDraft,
    nominal: ResourceAmounts,
    cohort: Option<String>,
    inner: bool,
}

impl<'a> KueueObjects<'a> {
    pub(super) fn add(&mut self, sort: Sort, object: &'a Value) {
        match sort {
            Sort::ClusterQueue => self.queues.push(object),
            Sort::Cohort => self.cohorts.push(object),
            Sort::Flavor => self.flavors.push(object),
            Sort::KueueTopology => self.topologies.push(object),
            _ => self.configurations.push(object),
        }
    }

    pub(super) fn map(
        &self,
        drafts: &mut Vec<QueueDraft>,
        mapped: &mut Mapped,
    ) -> Result<(), MappingError> {
        let warnings = &mut mapped.warnings;
        let fair = self.fair(warnings)?;
        let mut members = Vec::new();
        for object in &self.cohorts {
            members.push(cohort(object, fair.as_ref(), warnings)?);
        }
        for object in &self.queues {
            members.push(cluster_queue(object, fair.as_ref(), warnings)?);
        }
        add_unwritten(&mut members, fair.as_ref());
        for object in &self.flavors {
            flavor(object, warnings);
        }
        for object in &self.topologies {
            let spec = Fields::of(&name_of(object), "spec", &object["spec"]);
            let levels = spec.items("levels");
            let keys = levels.iter().filter_map(|level| level.word("nodeLabel"));
            let keys: Vec<String> = keys.map(str::to_owned).collect();
            if mapped.levels.is_empty() {
                mapped.levels = keys;
            } else if mapped.levels != keys {
                spec.warn(
                    "levels",
                    "Muster has one topology for all nodes and uses the first",
                    warnings,
                );
            }
            spec.rest(warnings);
        }
        settle(members, drafts);
        Ok(())
    }

    /// The strategies of fair sharing, if it is enabled.
    fn fair(&self, warnings: &mut Vec<Warning>) -> Result<Option<Value>, MappingError> {
        let mut fair = None;
        for object in &self.configurations {
            let own = Fields::of("Configuration", "fairSharing", &object["fairSharing"]);
            let on = own.one_of("enable", &[("true", true), ("false", false)])?;
            let given = own.get("preemptionStrategies").as_array();
            let given = given.filter(|list| !list.is_empty()).cloned();
            if on.unwrap_or(given.is_some()) {
                let both = ["LessThanOrEqualToFinalShare", "LessThanInitialShare"];
                fair = Some(given.map_or_else(|| json!(both), Value::Array));
            }
            own.rest(warnings);
        }
        Ok(fair)
    }
}

fn cohort(
    object: &Value,
    fair: Option<&Value>,
    warnings: &mut Vec<Warning>,
) -> Result<CohortMember, MappingError> {
    let name = name_of(object);
    let spec = Fields::of(&name, "spec", &object["spec"]);
    let parent = spec.word("parentName").or(spec.word("parent"));
    let member = member(object, &spec, parent, true, fair, warnings)?;
    spec.rest(warnings);
    Ok(member)
}

fn cluster_queue(
    object: &Value,
    fair: Option<&Value>,
    warnings: &mut Vec<Warning>,
) -> Result<CohortMember, MappingError> {
    let name = name_of(object);
    let spec = Fields::of(&name, "spec", &object["spec"]);
    let cohort = spec.word("cohortName").or(spec.word("cohort"));
    let mut member = member(object, &spec, cohort, false, fair, warnings)?;
    let policy = preemption(&spec.inner("preemption"), fair, warnings)?;
    member
        .draft
        .annotations
        .insert(PREEMPTION.to_owned(), policy.to_string());
    let stops = [
        ("None", None),
        ("Hold", Some(QueueState::Closing)),
        ("HoldAndDrain", Some(QueueState::Closed)),
    ];
    member.draft.state = spec.one_of("stopPolicy", &stops)?.flatten();
    if member.draft.state == Some(QueueState::Closed) {
        let why = "the queue admits no new gang, and admitted gangs run to their end";
        spec.warn("stopPolicy", why, warnings);
    }
    let strategies = [("StrictFIFO", true), ("BestEffortFIFO", false)];
    if spec.one_of("queueingStrategy", &strategies)? == Some(true) {
        let why =
            "the head of a queue does not block the gangs behind it; a reservation protects it";
        spec.warn("queueingStrategy", why, warnings);
    }
    let everywhere = |value: &Value| value.as_object().is_none_or(Map::is_empty);
    if !everywhere(spec.get("namespaceSelector")) {
        let why = "is not carried over; write it as spec.namespaceSelector of the Queue";
        spec.warn("namespaceSelector", why, warnings);
    }
    spec.rest(warnings);
    Ok(member)
}

fn member(
    object: &Value,
    spec: &Fields<'_>,
    cohort: Option<&str>,
    inner: bool,
    fair: Option<&Value>,
    warnings: &mut Vec<Warning>,
) -> Result<CohortMember, MappingError> {
    let quotas = quotas(spec, warnings)?;
    let mut draft = QueueDraft {
        name: object["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned(),
        ..QueueDraft::default()
    };
    draft.annotate(BORROWING_LIMIT, &quotas.borrowing);
    draft.annotate(LENDING_LIMIT, &quotas.lending);
    let sharing = spec.inner("fairSharing");
    if let Some(weight) = sharing.quantity("weight")? {
        draft
            .annotations
            .insert(SURPLUS_WEIGHT.to_owned(), weight.to_string());
    }
    sharing.rest(warnings);
    if inner && fair.is_some() {
        let policy = json!({"fair": fair});
        draft
            .annotations
            .insert(PREEMPTION.to_owned(), policy.to_string());
    }
    Ok(CohortMember {
        draft,
        nominal: quotas.nominal,
        cohort: cohort.map(str::to_owned),
        inner,
    })
}

fn quotas(spec: &Fields<'_>, warnings: &mut Vec<Warning>) -> Result<GroupQuotas, MappingError> {
    let mut quotas = GroupQuotas::default();
    for group in spec.items("resourceGroups") {
        group.get("coveredResources");
        let flavors = group.items("flavors");
        if flavors.len() > 1 {
            let why = "are added up, because Muster has no quota for a single pool of nodes";
            group.warn("flavors", why, warnings);
        }
        for flavor in flavors {
            flavor.get("name");
            for resource in flavor.items("resources") {
                let name = resource.word("name").unwrap_or_default().to_owned();
                let parts = [
                    ("nominalQuota", &mut quotas.nominal),
                    ("borrowingLimit", &mut quotas.borrowing),
                    ("lendingLimit", &mut quotas.lending),
                ];
                for (key, list) in parts {
                    if let Some(amount) = resource.quantity(key)? {
                        add(list, &name, amount);
                    }
                }
                resource.rest(warnings);
            }
            flavor.rest(warnings);
        }
        group.rest(warnings);
    }
    Ok(quotas)
}

fn add(list: &mut ResourceAmounts, name: &str, amount: Quantity) {
    let own = list.entry(name.to_owned()).or_default();
    *own = *own + amount;
}

/// In Kueue, a ClusterQueue preempts nothing by default.
fn preemption(
    own: &Fields<'_>,
    fair: Option<&Value>,
    warnings: &mut Vec<Warning>,
) -> Result<Value, MappingError> {
    let within = ["Never", "LowerPriority", "LowerOrNewerEqualPriority"].map(|word| (word, word));
    let reclaim = ["Never", "LowerPriority", "Any"].map(|word| (word, word));
    let within = own.one_of("withinClusterQueue", &within)?;
    let reclaim = own.one_of("reclaimWithinCohort", &reclaim)?;
    let borrow = own.inner("borrowWithinCohort");
    let policy = ["Never", "LowerPriority"].map(|word| (word, word));
    let policy = borrow.one_of("policy", &policy)?;
    let threshold = borrow.get("maxPriorityThreshold");
    let borrow_policy = policy.map(|policy| {
        let mut fields = json!({"policy": policy});
        if !threshold.is_null() {
            fields["maxPriorityThreshold"] = threshold.clone();
        }
        fields
    });
    borrow.rest(warnings);
    own.rest(warnings);
    Ok(json!({
        "withinQueue": within.unwrap_or("Never"),
        "reclaim": reclaim.unwrap_or("Never"),
        "borrow": borrow_policy,
        "fair": fair,
    }))
}

/// Adds cohorts that are named but have no object.
fn add_unwritten(members: &mut Vec<CohortMember>, fair: Option<&Value>) {
    let written: BTreeSet<String> = members
        .iter()
        .filter(|member| member.inner)
        .map(|member| member.draft.name.clone())
        .collect();
    let named: BTreeSet<String> = members
        .iter()
        .filter_map(|member| member.cohort.clone())
        .filter(|name| !written.contains(name))
        .collect();
    for name in named {
        let mut draft = QueueDraft {
            name,
            ..QueueDraft::default()
        };
        if fair.is_some() {
            let policy = json!({"fair": fair});
            draft
                .annotations
                .insert(PREEMPTION.to_owned(), policy.to_string());
        }
        members.push(CohortMember {
            draft,
            nominal: ResourceAmounts::new(),
            cohort: None,
            inner: true,
        });
    }
}

/// Sets each member's parent and quota: the quota of an inner member sums all members below it, and
/// a member without a parent cannot borrow, so its capability equals its quota.
fn settle(members: Vec<CohortMember>, drafts: &mut Vec<QueueDraft>) {
    let queues: BTreeSet<String> = members
        .iter()
        .filter(|member| !member.inner)
        .map(|member| member.draft.name.clone())
        .collect();
    // A cohort and a queue may have the same name.
    let cohort_name = |name: &String| {
        if queues.contains(name) {
            format!("cohort-{name}")
        } else {
            name.clone()
        }
    };
    let above: BTreeMap<String, Option<String>> = members
        .iter()
        .filter(|member| member.inner)
        .map(|member| (member.draft.name.clone(), member.cohort.clone()))
        .collect();
    let mut below: BTreeMap<String, ResourceAmounts> = BTreeMap::new();
    let mut all: BTreeSet<String> = BTreeSet::new();
    for member in &members {
        all.extend(member.nominal.keys().cloned());
        let mut at = if member.inner {
            Some(member.draft.name.clone())
        } else {
            member.cohort.clone()
        };
        // A cycle has at most as many members as there are cohorts.
        for _ in 0..=above.len() {
            let Some(name) = at else { break };
            for (resource, amount) in &member.nominal {
                add(below.entry(name.clone()).or_default(), resource, *amount);
            }
            at = above.get(&name).cloned().flatten();
        }
    }
    for member in members {
        let mut draft = member.draft;
        let mut deserved = if member.inner {
            below.get(&draft.name).cloned().unwrap_or_default()
        } else {
            member.nominal
        };
        for resource in &all {
            deserved.entry(resource.clone()).or_default();
        }
        if member.inner {
            draft.name = cohort_name(&draft.name);
        }
        draft.parent = member.cohort.as_ref().map(cohort_name);
        if draft.parent.is_none() {
            draft.capability.clone_from(&deserved);
        }
        draft.deserved = Some(deserved);
        drafts.push(draft);
    }
}

fn flavor(object: &Value, warnings: &mut Vec<Warning>) {
    let spec = Fields::of(&name_of(object), "spec", &object["spec"]);
    let is_set = |key: &str| match spec.get(key) {
        Value::Object(map) => !map.is_empty(),
        Value::Array(list) => !list.is_empty(),
        _ => false,
    };
    for (key, why) in [
        (
            "nodeLabels",
            "have no effect; a pod chooses its nodes by its own selectors",
        ),
        ("nodeTaints", "have no effect; set the taints on the nodes"),
        (
            "tolerations",
            "have no effect; set the tolerations on the pods",
        ),
    ] {
        if is_set(key) {
            spec.warn(key, why, warnings);
        }
    }
    spec.get("topologyName");
    spec.rest(warnings);
}
