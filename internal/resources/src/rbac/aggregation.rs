//! Aggregated ClusterRoles: the rules of a role with an `aggregationRule` are those of all other ClusterRoles that one
//! of its selectors matches, in name order, without repeats.

use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use serde_json::Value;

use crate::json;
use crate::selector::LabelSelector;

/// Sets the rules of the aggregated ClusterRoles and returns the indices of the changed ones. `roles` holds all
/// ClusterRoles in name order. An aggregated role may be part of another one.
pub fn aggregate(roles: &mut [Value]) -> Vec<usize> {
    let selectors: Vec<(usize, Vec<LabelSelector>)> = roles
        .iter()
        .enumerate()
        .filter_map(|(at, role)| Some((at, selectors_of(role)?)))
        .collect();
    let labels: Vec<_> = roles
        .iter()
        .map(|role| json::texts(role, &["metadata", "labels"]))
        .collect();
    let mut changed = Vec::new();
    // A role is complete once all its parts are complete: each pass completes at least one more role.
    for _ in 0..=selectors.len() {
        let mut settled = true;
        for (at, selectors) in &selectors {
            let mut rules: Vec<Value> = Vec::new();
            for (other, role) in roles.iter().enumerate() {
                let part = selectors.iter().any(|one| one.matches(&labels[other]));
                if other == *at || !part {
                    continue;
                }
                for rule in json::items(role, &["rules"]) {
                    if !rules.contains(rule) {
                        rules.push(rule.clone());
                    }
                }
            }
            if json::items(&roles[*at], &["rules"]) != rules.as_slice() {
                if let Some(role) = roles[*at].as_object_mut() {
                    role.insert("rules".to_owned(), rules.into());
                }
                settled = false;
                if !changed.contains(at) {
                    changed.push(*at);
                }
            }
        }
        if settled {
            break;
        }
    }
    changed
}

/// The selectors of an aggregated role. An unreadable selector matches nothing.
fn selectors_of(role: &Value) -> Option<Vec<LabelSelector>> {
    let rule = role
        .get("aggregationRule")
        .filter(|rule| rule.is_object())?;
    let selectors = json::items(rule, &["clusterRoleSelectors"]);
    let read = |one: &Value| {
        let typed: meta::LabelSelector = serde_json::from_value(one.clone()).ok()?;
        LabelSelector::from_k8s(&typed).ok()
    };
    Some(selectors.iter().filter_map(read).collect())
}
