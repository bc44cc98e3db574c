//! Owns the books of ResourceQuota: every write that changes what a namespace uses changes `status.used` in the
//! same transaction, or is refused there. What an object counts as is `resources::admission::quota`'s to say.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ResourceQuota;
use resources::admission::quota::{Usage, matches_scopes, usage_of};
use resources::quantity::Quantity;
use resources::registry::{self, Kind};
use serde_json::{Value, json};
use store::{Entry, Store, View};

use crate::admission::kind_of;
use crate::object::{self, Encoded};
use crate::rewrite::Refusal;
use crate::status::Failure;

/// What a write does to the namespace's use of things.
pub(crate) struct Change {
    before: Option<Counted>,
    after: Option<Counted>,
}

struct Counted {
    object: Value,
    usage: Usage,
}

impl Counted {
    fn new(kind: &Kind, object: &Value) -> Self {
        Counted {
            usage: usage_of(kind, object),
            object: object.clone(),
        }
    }
}

impl Change {
    /// An object that was not there.
    pub(crate) fn created(kind: &Kind, object: &Value) -> Self {
        Change {
            before: None,
            after: Some(Counted::new(kind, object)),
        }
    }

    /// An object that changes.
    pub(crate) fn updated(kind: &Kind, live: &Value, next: &Value) -> Self {
        Change {
            before: Some(Counted::new(kind, live)),
            after: Some(Counted::new(kind, next)),
        }
    }

    /// An object that goes.
    pub(crate) fn removed(kind: &Kind, live: &Value) -> Self {
        Change {
            before: Some(Counted::new(kind, live)),
            after: None,
        }
    }
}

/// Whether the namespace has a quota, so that a [`Change`] is worth working out.
pub(crate) fn concerns(store: &Store, kind: &Kind, namespace: Option<&str>) -> bool {
    kind.namespaced && !store.list(&prefix(namespace), None, 1).entries.is_empty()
}

/// Whether objects of a kind are quotas, whose books are made anew when they are written.
pub(crate) fn is_quota(kind: &Kind) -> bool {
    kind.kind == "ResourceQuota" && kind.group.is_empty()
}

fn prefix(namespace: Option<&str>) -> String {
    kind_of("", "ResourceQuota").prefix(namespace)
}

/// Enters a change into the books of every quota of the namespace, or refuses it. Runs inside the transaction;
/// a quota that appeared since the change was worked out makes it stale.
pub(crate) fn settle(
    view: &mut View<'_>,
    kind: &Kind,
    namespace: Option<&str>,
    name: &str,
    change: Option<Change>,
) -> Result<(), Refusal> {
    if !kind.namespaced {
        return Ok(());
    }
    let quotas = view.list(&prefix(namespace));
    if quotas.is_empty() {
        return Ok(());
    }
    let Some(change) = change else {
        return Err(Refusal::Stale);
    };
    for entry in quotas {
        settle_one(view, &entry, kind, name, &change)?;
    }
    Ok(())
}

fn settle_one(
    view: &mut View<'_>,
    entry: &Arc<Entry>,
    kind: &Kind,
    name: &str,
    change: &Change,
) -> Result<(), Refusal> {
    let damaged = |error: &dyn std::fmt::Display| {
        Failure::internal(format_args!("{} is stored damaged: {error}", entry.key))
    };
    let quota: ResourceQuota =
        serde_json::from_slice(&entry.value).map_err(|error| damaged(&error))?;
    let hard = hard_of(&quota);
    let in_scope = |counted: &&Counted| matches_scopes(&quota, kind, &counted.object);
    let before = change
        .before
        .as_ref()
        .filter(in_scope)
        .map(|counted| &counted.usage);
    let after = change
        .after
        .as_ref()
        .filter(in_scope)
        .map(|counted| &counted.usage);
    let mut used = used_of(&quota);
    let mut over = Vec::new();
    let mut changed = false;
    for (resource, limit) in &hard {
        let amount = |usage: Option<&Usage>| {
            usage
                .and_then(|usage| usage.get(resource))
                .copied()
                .unwrap_or_default()
        };
        let (gave, takes) = (amount(before), amount(after));
        if gave == takes {
            continue;
        }
        let now = used.get(resource).copied().unwrap_or_default();
        let then = now + takes - gave;
        if takes > gave && then > *limit {
            over.push((resource.clone(), takes - gave, now, *limit));
        }
        used.insert(resource.clone(), then);
        changed = true;
    }
    if !over.is_empty() {
        let quota_name = quota.metadata.name.as_deref().unwrap_or_default();
        return Err(Failure::forbidden(kind, name, &exceeded(quota_name, &over)).into());
    }
    if changed {
        let object: Value =
            serde_json::from_slice(&entry.value).map_err(|error| damaged(&error))?;
        let encoded = with_status(object, &hard, &used);
        let meta = encoded.meta.clone();
        view.put(entry.key.to_string(), meta, |revision| encoded.at(revision));
    }
    Ok(())
}

/// `exceeded quota: compute, requested: pods=1, used: pods=10, limited: pods=10`
fn exceeded(quota: &str, over: &[(String, Quantity, Quantity, Quantity)]) -> String {
    let list = |pick: fn(&(String, Quantity, Quantity, Quantity)) -> Quantity| {
        let each: Vec<String> = over
            .iter()
            .map(|one| format!("{}={}", one.0, pick(one)))
            .collect();
        each.join(",")
    };
    format!(
        "exceeded quota: {quota}, requested: {}, used: {}, limited: {}",
        list(|one| one.1),
        list(|one| one.2),
        list(|one| one.3)
    )
}

/// A quota that is itself being written: its books are made anew from all that the namespace holds. Runs inside
/// the transaction, so that nothing slips in between.
pub(crate) fn measured(view: &View<'_>, object: Value) -> Result<Encoded, Refusal> {
    let quota: ResourceQuota = serde_json::from_value(object.clone()).map_err(|error| {
        Failure::bad_request(format!("the ResourceQuota cannot be read: {error}"))
    })?;
    let hard = hard_of(&quota);
    let namespace = object::meta_text(&object, "namespace");
    let mut used: Usage = hard
        .keys()
        .map(|resource| (resource.clone(), Quantity::default()))
        .collect();
    for kind in registry::all().iter().filter(|kind| counts(kind, &hard)) {
        for entry in view.list(&kind.prefix(Some(namespace))) {
            let counted = object::parse(&entry)?;
            if matches_scopes(&quota, kind, &counted) {
                for (resource, amount) in usage_of(kind, &counted) {
                    if let Some(sum) = used.get_mut(&resource) {
                        *sum = *sum + amount;
                    }
                }
            }
        }
    }
    Ok(with_status(object, &hard, &used))
}

/// Whether objects of a kind can count towards any of these limits.
fn counts(kind: &Kind, hard: &Usage) -> bool {
    // What a pod or a claim counts as depends on the object; everything else counts by being there.
    kind.namespaced
        && (matches!(kind.kind, "Pod" | "PersistentVolumeClaim" | "Service")
            || usage_of(kind, &json!({}))
                .keys()
                .any(|resource| hard.contains_key(resource)))
}

fn with_status(mut object: Value, hard: &Usage, used: &Usage) -> Encoded {
    let text = |usage: &Usage| -> BTreeMap<String, String> {
        usage
            .iter()
            .map(|(resource, amount)| (resource.clone(), amount.to_string()))
            .collect()
    };
    object["status"] = json!({"hard": text(hard), "used": text(used)});
    Encoded::new(kind_of("", "ResourceQuota"), &object)
}

fn hard_of(quota: &ResourceQuota) -> Usage {
    amounts(quota.spec.as_ref().and_then(|spec| spec.hard.as_ref()))
}

fn used_of(quota: &ResourceQuota) -> Usage {
    amounts(
        quota
            .status
            .as_ref()
            .and_then(|status| status.used.as_ref()),
    )
}

fn amounts(
    list: Option<&BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>>,
) -> Usage {
    let pairs = list.into_iter().flatten();
    // Validation let only readable quantities in.
    pairs
        .filter_map(|(resource, amount)| {
            Some((resource.clone(), Quantity::parse_k8s(amount).ok()?))
        })
        .collect()
}
