//! Owns the accounting of ResourceQuota: every write that changes a namespace's usage changes
//! `status.used` in the same transaction, or is refused there. `resources::admission::quota`
//! defines what an object counts as.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ResourceQuota;
use resources::admission::quota::{
    QuotaUsage, add, exceeded, hard, matches_scopes, must_specify, subtract, usage_of,
};
use resources::quantity::Quantity;
use resources::registry::{self, Kind};
use serde_json::{Value, json};
use store::{Entry, Store, TransactionView};

use crate::core_kinds::kind_of;
use crate::object::{self, Encoded};
use crate::refusal::RewriteRefusal;
use crate::status::Failure;

/// The change of a namespace's usage by a write.
pub(crate) struct UsageChange {
    before: Option<CountedUsage>,
    after: Option<CountedUsage>,
}

struct CountedUsage {
    object: Value,
    usage: QuotaUsage,
}

impl CountedUsage {
    fn new(kind: &Kind, object: &Value) -> Self {
        CountedUsage {
            usage: usage_of(kind, object),
            object: object.clone(),
        }
    }
}

impl UsageChange {
    /// A created object.
    pub(crate) fn created(kind: &Kind, object: &Value) -> Self {
        UsageChange {
            before: None,
            after: Some(CountedUsage::new(kind, object)),
        }
    }

    /// A changed object.
    pub(crate) fn updated(kind: &Kind, live: &Value, next: &Value) -> Self {
        UsageChange {
            before: Some(CountedUsage::new(kind, live)),
            after: Some(CountedUsage::new(kind, next)),
        }
    }

    /// A deleted object.
    pub(crate) fn removed(kind: &Kind, live: &Value) -> Self {
        UsageChange {
            before: Some(CountedUsage::new(kind, live)),
            after: None,
        }
    }
}

/// True if the namespace has a quota, so that a [`UsageChange`] has to be computed.
pub(crate) fn concerns(store: &Store, kind: &Kind, namespace: Option<&str>) -> bool {
    kind.namespaced && !store.list(&prefix(namespace), None, 1).entries.is_empty()
}

/// True if objects of a kind are quotas, whose usage is recomputed when they are written.
pub(crate) fn is_quota(kind: &Kind) -> bool {
    kind.kind == "ResourceQuota" && kind.group.is_empty()
}

fn prefix(namespace: Option<&str>) -> String {
    kind_of("", "ResourceQuota").prefix(namespace)
}

/// Adds a change to the usage of every quota of the namespace, or refuses it. Runs inside the
/// transaction; a quota that was created since the change was computed makes it stale.
pub(crate) fn settle(
    view: &mut TransactionView<'_>,
    kind: &Kind,
    namespace: Option<&str>,
    name: &str,
    change: Option<UsageChange>,
) -> Result<(), RewriteRefusal> {
    if !kind.namespaced {
        return Ok(());
    }
    let quotas = view.list(&prefix(namespace));
    if quotas.is_empty() {
        return Ok(());
    }
    let Some(change) = change else {
        return Err(RewriteRefusal::Stale);
    };
    for entry in quotas {
        settle_one(view, &entry, kind, name, &change)?;
    }
    Ok(())
}

fn settle_one(
    view: &mut TransactionView<'_>,
    entry: &Arc<Entry>,
    kind: &Kind,
    name: &str,
    change: &UsageChange,
) -> Result<(), RewriteRefusal> {
    let damaged = |error: &dyn std::fmt::Display| {
        Failure::internal(format_args!(
            "the stored object {} is damaged: {error}; restore a backup, or create the object again",
            entry.key
        ))
    };
    let quota: ResourceQuota =
        serde_json::from_slice(&entry.value).map_err(|error| damaged(&error))?;
    let quota_name = quota.metadata.name.as_deref().unwrap_or_default();
    let limits = hard(&quota);
    let in_scope = |counted: &&CountedUsage| matches_scopes(&quota, kind, &counted.object);
    let before = change.before.as_ref().filter(in_scope);
    let after = change.after.as_ref().filter(in_scope);
    if let (None, Some(new)) = (before, after)
        && let Some(why) = must_specify(quota_name, &limits, kind, &new.object)
    {
        return Err(Failure::forbidden(kind, name, &why).into());
    }
    let amount = |counted: Option<&CountedUsage>, resource: &str| {
        counted
            .and_then(|counted| counted.usage.get(resource))
            .copied()
            .unwrap_or_default()
    };
    let (mut gives, mut takes) = (QuotaUsage::new(), QuotaUsage::new());
    for resource in limits.keys() {
        let (gave, takes_now) = (amount(before, resource), amount(after, resource));
        if takes_now > gave {
            takes.insert(resource.clone(), takes_now - gave);
        } else if takes_now < gave {
            gives.insert(resource.clone(), gave - takes_now);
        }
    }
    if gives.is_empty() && takes.is_empty() {
        return Ok(());
    }
    let mut used = used_of(&quota);
    if let Some(why) = exceeded(quota_name, &limits, &used, &takes) {
        return Err(Failure::forbidden(kind, name, &why).into());
    }
    add(&mut used, &takes);
    subtract(&mut used, &gives);
    let object: Value = serde_json::from_slice(&entry.value).map_err(|error| damaged(&error))?;
    with_status(object, &limits, &used).put(view, entry.key.to_string());
    Ok(())
}

/// A written quota: its usage is recomputed from all objects of the namespace. Runs inside the
/// transaction, so that no concurrent write is missed.
pub(crate) fn measured(
    view: &TransactionView<'_>,
    object: Value,
) -> Result<Encoded, RewriteRefusal> {
    let quota: ResourceQuota = serde_json::from_value(object.clone()).map_err(|error| {
        Failure::bad_request(format!("the ResourceQuota cannot be read: {error}"))
    })?;
    let limits = hard(&quota);
    let namespace = object::meta_text(&object, "namespace");
    let mut used: QuotaUsage = limits
        .keys()
        .map(|resource| (resource.clone(), Quantity::default()))
        .collect();
    for kind in registry::all().iter().filter(|kind| counts(kind, &limits)) {
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
    Ok(with_status(object, &limits, &used))
}

/// True if objects of a kind can count towards any of these limits.
fn counts(kind: &Kind, hard: &QuotaUsage) -> bool {
    // Usage of a pod or a claim depends on the object; every other kind counts by its number of
    // objects.
    kind.namespaced
        && (matches!(kind.kind, "Pod" | "PersistentVolumeClaim" | "Service")
            || usage_of(kind, &json!({}))
                .keys()
                .any(|resource| hard.contains_key(resource)))
}

fn with_status(mut object: Value, hard: &QuotaUsage, used: &QuotaUsage) -> Encoded {
    let text = |usage: &QuotaUsage| -> BTreeMap<String, String> {
        usage
            .iter()
            .map(|(resource, amount)| (resource.clone(), amount.to_string()))
            .collect()
    };
    object["status"] = json!({"hard": text(hard), "used": text(used)});
    Encoded::new(kind_of("", "ResourceQuota"), &object)
}

fn used_of(quota: &ResourceQuota) -> QuotaUsage {
    let used = quota
        .status
        .iter()
        .filter_map(|status| status.used.as_ref())
        .flatten();
    // This module wrote them, so they are valid.
    used.filter_map(|(resource, amount)| {
        Some((resource.clone(), Quantity::parse_k8s(amount).ok()?))
    })
    .collect()
}
