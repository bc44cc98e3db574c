//! Volcano's HyperNodes: each network domain becomes a label on its nodes, tiers become levels of
//! the topology, and limits in tiers are converted to Muster's counting.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Node;
use resources::kinds::{NetworkTopologySpec, PodGroup};
use serde_json::Value;

use crate::error::{InputLocation, SimulatorError};
use crate::scenario::Scenario;

/// The kind.
pub(super) const KIND: &str = "HyperNode";
/// The label prefix of a tier without a name; the tier's number follows.
const TIER: &str = "muster.io/tier-";

/// One domain.
struct HyperNodeDomain {
    tier: i64,
    key: String,
    members: Vec<DomainMember>,
}

/// A member of a domain: a node, or all members of another domain.
enum DomainMember {
    Node(String),
    Labelled(BTreeMap<String, String>),
    Domain(String),
}

/// Labels the scenario's nodes and sets its topology, unless the settings define one; renumbers the
/// PodGroups' limits.
pub(super) fn apply<'a>(
    objects: &[(Value, InputLocation)],
    groups: impl Iterator<Item = &'a mut PodGroup>,
    scenario: &mut Scenario,
) -> Result<(), SimulatorError> {
    if objects.is_empty() {
        return Ok(());
    }
    let mut domains: BTreeMap<String, HyperNodeDomain> = BTreeMap::new();
    for (object, place) in objects {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let domain = read(name, &object["spec"], place, &mut scenario.notes)?;
        domains.insert(name.to_owned(), domain);
    }
    // Widest first.
    let mut levels: BTreeMap<i64, String> = BTreeMap::new();
    for domain in domains.values() {
        levels
            .entry(-domain.tier)
            .or_insert_with(|| domain.key.clone());
    }
    for (name, domain) in &domains {
        let key = &levels[&-domain.tier];
        for node in &mut scenario.nodes {
            if holds(domain, node, &domains, 0) {
                let labels = node.metadata.labels.get_or_insert_default();
                labels.entry(key.clone()).or_insert_with(|| name.clone());
            }
        }
    }
    let tiers: BTreeSet<i64> = levels.keys().map(|tier| -tier).collect();
    for group in groups {
        if let Some(limits) = &mut group.spec.network_topology {
            count(limits, &tiers);
        }
        for policy in group.spec.sub_group_policy.iter_mut().flatten() {
            let limit = policy.pointer_mut("/networkTopology/highestTierAllowed");
            if let Some(limit) = limit
                && let Some(highest) = limit.as_i64()
            {
                *limit = Value::from(tiers.range(..=highest).count());
            }
        }
    }
    let levels: Vec<String> = levels.into_values().collect();
    scenario.settings.topology.get_or_insert(levels);
    Ok(())
}

/// Renumbers a limit: Muster counts the existing tiers from 1.
fn count(limits: &mut NetworkTopologySpec, tiers: &BTreeSet<i64>) {
    if let Some(highest) = limits.highest_tier_allowed {
        let count = tiers.range(..=i64::from(highest)).count();
        limits.highest_tier_allowed = i32::try_from(count).ok();
    }
}

fn read(
    name: &str,
    spec: &Value,
    place: &InputLocation,
    notes: &mut Vec<String>,
) -> Result<HyperNodeDomain, SimulatorError> {
    let wrong = |field: &str, value: &Value, valid: &str| {
        let field = format!("{KIND} {name}, {field}");
        let text = value.as_str();
        let text = text.map_or_else(|| value.to_string(), str::to_owned);
        SimulatorError::value(place.clone(), field, text, valid)
    };
    let Some(tier) = spec["tier"].as_i64() else {
        return Err(wrong(
            "spec.tier",
            &spec["tier"],
            "a whole number; 1 is the tier closest to the nodes",
        ));
    };
    let key = match spec["tierName"].as_str() {
        Some(name) if !name.is_empty() => name.to_owned(),
        _ => format!("{TIER}{tier}"),
    };
    let mut members = Vec::new();
    for (at, member) in spec["members"].as_array().into_iter().flatten().enumerate() {
        let selector = &member["selector"];
        let field = format!("spec.members[{at}]");
        let exact = selector["exactMatch"]["name"].as_str();
        match (member["type"].as_str(), exact) {
            (Some("Node"), Some(name)) => members.push(DomainMember::Node(name.to_owned())),
            (Some(KIND), Some(name)) => members.push(DomainMember::Domain(name.to_owned())),
            (Some("Node"), None) if selector["labelMatch"]["matchLabels"].is_object() => {
                let labels = selector["labelMatch"]["matchLabels"].clone();
                let labels = serde_json::from_value(labels);
                members.push(DomainMember::Labelled(labels.map_err(|_| {
                    wrong(&field, selector, "labels whose values are text")
                })?));
            }
            (Some("Node" | KIND), None) if selector.is_object() => notes.push(format!(
                "{KIND} {name}: the simulator ignores {field}.selector; write exactMatch or labelMatch.matchLabels"
            )),
            _ => {
                let valid = "{type: Node or HyperNode, selector: {exactMatch: {name: NAME}}}";
                return Err(wrong(&field, member, valid));
            }
        }
    }
    Ok(HyperNodeDomain { tier, key, members })
}

/// Whether the node is in the domain, or in a domain within it.
fn holds(
    domain: &HyperNodeDomain,
    node: &Node,
    all: &BTreeMap<String, HyperNodeDomain>,
    depth: usize,
) -> bool {
    let meta = &node.metadata;
    domain.members.iter().any(|member| match member {
        DomainMember::Node(name) => meta.name.as_ref() == Some(name),
        DomainMember::Labelled(wanted) => wanted.iter().all(|(key, value)| {
            let labels = meta.labels.as_ref();
            labels.and_then(|labels| labels.get(key)) == Some(value)
        }),
        // A cycle has at most as many domains as there are.
        DomainMember::Domain(name) => all
            .get(name)
            .is_some_and(|inner| depth < all.len() && holds(inner, node, all, depth + 1)),
    })
}
