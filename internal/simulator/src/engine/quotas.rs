//! ResourceQuotas of namespaces, as admission counts them: a gang whose pods would exceed a quota
//! is not admitted until others have ended.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use resources::admission::quota::{QuotaUsage, matches_scopes, usage_of};
use resources::quantity::Quantity;
use resources::registry;
use resources::report::{PlacementReport, WaitReason};

use crate::engine::objects::Made;

/// A quota without room for a gang.
#[derive(Debug, thiserror::Error)]
#[error(
    "quota {quota} of namespace {namespace} allows {resource}: {allowed}, of which {used} are used; with this it would be {would}"
)]
pub(crate) struct OverQuota {
    quota: String,
    namespace: String,
    resource: String,
    allowed: Quantity,
    used: Quantity,
    would: Quantity,
}

/// One quota and its current use.
struct QuotaUse {
    quota: ResourceQuota,
    hard: QuotaUsage,
    used: QuotaUsage,
}

/// All quotas, by namespace.
#[derive(Default)]
pub(crate) struct NamespaceQuotas {
    by_namespace: BTreeMap<String, Vec<QuotaUse>>,
}

impl NamespaceQuotas {
    pub(crate) fn new(quotas: &[ResourceQuota]) -> NamespaceQuotas {
        let mut all = NamespaceQuotas::default();
        for quota in quotas {
            let namespace = quota
                .metadata
                .namespace
                .clone()
                .unwrap_or_else(|| "default".to_owned());
            let hard = quota
                .spec
                .as_ref()
                .and_then(|spec| spec.hard.clone())
                .unwrap_or_default();
            let hard = hard.iter().filter_map(|(name, amount)| {
                Some((name.clone(), Quantity::parse_k8s(amount).ok()?))
            });
            all.by_namespace
                .entry(namespace)
                .or_default()
                .push(QuotaUse {
                    hard: hard.collect(),
                    quota: quota.clone(),
                    used: QuotaUsage::new(),
                });
        }
        all
    }

    /// Whether this namespace has quotas.
    pub(crate) fn bind(&self, namespace: &str) -> bool {
        self.by_namespace.contains_key(namespace)
    }

    /// Counts a gang's pods, or returns the quota that has no room for them.
    pub(crate) fn take(&mut self, namespace: &str, pods: &[Pod]) -> Result<(), Box<OverQuota>> {
        self.count(namespace, pods, true)
    }

    /// Stops counting a gang's pods.
    pub(crate) fn give_back(&mut self, namespace: &str, pods: &[Pod]) {
        let _ = self.count(namespace, pods, false);
    }

    fn count(&mut self, namespace: &str, pods: &[Pod], up: bool) -> Result<(), Box<OverQuota>> {
        let Some(all) = self.by_namespace.get_mut(namespace) else {
            return Ok(());
        };
        let Some(kind) = registry::by_kind("", "v1", "Pod") else {
            return Ok(());
        };
        // Requests that only limits imply count too: the API defaults them.
        let values = pods.iter().filter_map(|pod| {
            let mut value = serde_json::to_value(pod).ok()?;
            (kind.default)(&mut value);
            Some(value)
        });
        let values: Vec<serde_json::Value> = values.collect();
        let mut changed = Vec::new();
        for held in all.iter() {
            let mut used = held.used.clone();
            for value in values
                .iter()
                .filter(|value| matches_scopes(&held.quota, kind, value))
            {
                for (name, amount) in usage_of(kind, value) {
                    let own = used.entry(name).or_default();
                    *own = if up { *own + amount } else { *own - amount };
                }
            }
            if up {
                for (name, allowed) in &held.hard {
                    let (had, would) = (get(&held.used, name), get(&used, name));
                    if would > *allowed && would > had {
                        let quota = held.quota.metadata.name.clone();
                        return Err(Box::new(OverQuota {
                            quota: quota.unwrap_or_default(),
                            namespace: namespace.to_owned(),
                            resource: name.clone(),
                            allowed: *allowed,
                            used: had,
                            would,
                        }));
                    }
                }
            }
            changed.push(used);
        }
        for (held, used) in all.iter_mut().zip(changed) {
            held.used = used;
        }
        Ok(())
    }
}

fn get(usage: &QuotaUsage, name: &str) -> Quantity {
    usage.get(name).copied().unwrap_or_default()
}

/// The report on a gang that a quota does not admit.
pub(crate) fn over(
    namespace: &str,
    name: &str,
    queue: &str,
    made: &Made,
    reason: &OverQuota,
) -> PlacementReport {
    PlacementReport {
        namespace: namespace.to_owned(),
        group: name.to_owned(),
        queue: queue.to_owned(),
        members_wanted: made.pods.len(),
        verdict: WaitReason::QuotaExceeded,
        binding: reason.to_string(),
        would_fit: "work of the namespace that ends, or a larger quota".to_owned(),
        ..PlacementReport::default()
    }
}
