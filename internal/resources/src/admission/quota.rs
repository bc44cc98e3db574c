//! Quotas: the usage of an object, the quotas that match it, and kube-apiserver's messages for an exceeded quota.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{ResourceQuota, ScopedResourceSelectorRequirement};
use serde_json::Value;

use crate::json;
use crate::quantity::Quantity;
use crate::registry::Kind;
use crate::registry::pod::{is_extended, qos_class};

/// Amounts keyed by quota resource names: `pods`, `requests.cpu`, `count/jobs.batch`.
pub type QuotaUsage = BTreeMap<String, Quantity>;

/// If one of these is limited, every container must set it: a rule of Kubernetes' first quotas.
const MUST_SPECIFY: [&str; 6] = [
    "cpu",
    "memory",
    "requests.cpu",
    "requests.memory",
    "limits.cpu",
    "limits.memory",
];
/// Kinds whose number may be limited by their plural alone.
const COUNTED: [&str; 7] = [
    "configmaps",
    "persistentvolumeclaims",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "services",
    "pods",
];

/// The usage of an object. A pod that has ended counts only as an object.
pub fn usage_of(kind: &Kind, object: &Value) -> QuotaUsage {
    let one = Quantity::from_value(1);
    let mut usage = QuotaUsage::new();
    usage.insert(format!("count/{}", kind.qualified()), one);
    if !kind.group.is_empty() {
        return usage;
    }
    if kind.plural == "pods" {
        if !has_ended(object) {
            usage.insert("pods".to_owned(), one);
            pod_usage(object, &mut usage);
        }
        return usage;
    }
    if COUNTED.contains(&kind.plural) {
        usage.insert(kind.plural.to_owned(), one);
    }
    match kind.plural {
        "persistentvolumeclaims" => {
            if let Some(size) = json::quantity_of(json::at(
                object,
                &["spec", "resources", "requests", "storage"],
            )) {
                usage.insert("requests.storage".to_owned(), size);
                let class = json::text(object, &["spec", "storageClassName"]);
                if !class.is_empty() {
                    let prefix = format!("{class}.storageclass.storage.k8s.io");
                    usage.insert(format!("{prefix}/requests.storage"), size);
                    usage.insert(format!("{prefix}/persistentvolumeclaims"), one);
                }
            }
        }
        "services" => match json::text(object, &["spec", "type"]) {
            "LoadBalancer" => {
                usage.insert("services.loadbalancers".to_owned(), one);
            }
            "NodePort" => {
                let ports = json::items(object, &["spec", "ports"]).len();
                let ports = i64::try_from(ports).unwrap_or(i64::MAX);
                usage.insert("services.nodeports".to_owned(), Quantity::from_value(ports));
            }
            _ => {}
        },
        _ => {}
    }
    usage
}

fn has_ended(pod: &Value) -> bool {
    matches!(
        json::text(pod, &["status", "phase"]),
        "Succeeded" | "Failed"
    )
}

/// A pod's requests and limits under the resource names of quotas.
fn pod_usage(pod: &Value, usage: &mut QuotaUsage) {
    for (list, prefix) in [("requests", "requests."), ("limits", "limits.")] {
        for (name, amount) in super::limits::pod_total(pod, list) {
            let native = matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage");
            let huge = name.starts_with("hugepages-");
            if list == "requests" && (native || huge) {
                usage.insert(name.clone(), amount);
            }
            // Kubernetes does not count limits of extended resources; a quota that names them is enforced here.
            if native || is_extended(&name) || (huge && list == "requests") {
                usage.insert(format!("{prefix}{name}"), amount);
            }
        }
    }
}

/// True if the quota matches this object. All its scopes must match, and only pods have scopes.
pub fn matches_scopes(quota: &ResourceQuota, kind: &Kind, object: &Value) -> bool {
    let Some(spec) = &quota.spec else { return true };
    let scopes = spec.scopes.iter().flatten();
    let selected = spec
        .scope_selector
        .iter()
        .filter_map(|s| s.match_expressions.as_ref())
        .flatten();
    let mut all = scopes
        .map(|name| ScopedResourceSelectorRequirement {
            scope_name: name.clone(),
            operator: "Exists".to_owned(),
            values: None,
        })
        .chain(selected.cloned())
        .peekable();
    if all.peek().is_none() {
        return true;
    }
    kind.group.is_empty() && kind.plural == "pods" && all.all(|scope| pod_in_scope(&scope, object))
}

fn pod_in_scope(scope: &ScopedResourceSelectorRequirement, pod: &Value) -> bool {
    let spec = json::at(pod, &["spec"]);
    match scope.scope_name.as_str() {
        "Terminating" => json::int(spec, &["activeDeadlineSeconds"]).is_some(),
        "NotTerminating" => json::int(spec, &["activeDeadlineSeconds"]).is_none(),
        "BestEffort" => qos_class(spec) == "BestEffort",
        "NotBestEffort" => qos_class(spec) != "BestEffort",
        "CrossNamespacePodAffinity" => crosses_namespaces(spec),
        "PriorityClass" => {
            let class = json::text(spec, &["priorityClassName"]);
            let among = scope.values.iter().flatten().any(|value| value == class);
            match scope.operator.as_str() {
                "Exists" => !class.is_empty(),
                "DoesNotExist" => class.is_empty(),
                "In" => among,
                "NotIn" => !among,
                _ => false,
            }
        }
        _ => false,
    }
}

fn crosses_namespaces(spec: &Value) -> bool {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
    let crosses = |term: &Value| {
        !json::items(term, &["namespaces"]).is_empty() || json::has(term, &["namespaceSelector"])
    };
    ["podAffinity", "podAntiAffinity"].iter().any(|key| {
        let wishes = json::at(spec, &["affinity", key]);
        json::items(wishes, &[REQUIRED]).iter().any(crosses)
            || json::items(wishes, &[PREFERRED])
                .iter()
                .any(|p| crosses(json::at(p, &["podAffinityTerm"])))
    })
}

/// The amounts that a quota allows, from its spec.
pub fn hard(quota: &ResourceQuota) -> QuotaUsage {
    let hard = quota
        .spec
        .iter()
        .filter_map(|spec| spec.hard.as_ref())
        .flatten();
    hard.filter_map(|(name, quantity)| Some((name.clone(), Quantity::parse_k8s(quantity).ok()?)))
        .collect()
}

/// The message if `used` plus `requested` exceeds `hard`; `None` if it fits. Only resources that `hard` names and that
/// are requested count.
pub fn exceeded(
    name: &str,
    hard: &QuotaUsage,
    used: &QuotaUsage,
    requested: &QuotaUsage,
) -> Option<String> {
    let nothing = Quantity::ZERO;
    let over: BTreeSet<&String> = requested
        .iter()
        .filter(|(resource, amount)| {
            !amount.is_zero()
                && hard.get(*resource).is_some_and(|most| {
                    used.get(*resource).copied().unwrap_or(nothing) + **amount > *most
                })
        })
        .map(|(resource, _)| resource)
        .collect();
    if over.is_empty() {
        return None;
    }
    let list = |amounts: &QuotaUsage| {
        let texts: Vec<String> = over
            .iter()
            .map(|resource| {
                format!(
                    "{resource}={}",
                    amounts.get(*resource).copied().unwrap_or(nothing)
                )
            })
            .collect();
        texts.join(",")
    };
    Some(format!(
        "exceeded quota: {name}, requested: {}, used: {}, limited: {}",
        list(requested),
        list(used),
        list(hard)
    ))
}

/// The message if a quota limits cpu or memory and a container of the pod does not set it.
pub fn must_specify(name: &str, hard: &QuotaUsage, kind: &Kind, pod: &Value) -> Option<String> {
    if !kind.group.is_empty() || kind.plural != "pods" || json::has(pod, &["spec", "resources"]) {
        return None;
    }
    let containers = || {
        json::items(pod, &["spec", "containers"])
            .iter()
            .chain(json::items(pod, &["spec", "initContainers"]))
    };
    let mut missing: Vec<String> = Vec::new();
    let limited: BTreeSet<&str> = MUST_SPECIFY
        .into_iter()
        .filter(|resource| hard.contains_key(*resource))
        .collect();
    for resource in limited {
        let (list, plain) = match resource.split_once('.') {
            Some((list, plain)) => (list, plain),
            None => ("requests", resource),
        };
        let silent: BTreeSet<&str> = containers()
            .filter(|c| !json::has(c, &["resources", list, plain]))
            .map(|c| json::text(c, &["name"]))
            .collect();
        if !silent.is_empty() {
            let names: Vec<&str> = silent.into_iter().collect();
            missing.push(format!("{resource} for: {}", names.join(",")));
        }
    }
    (!missing.is_empty())
        .then(|| format!("failed quota: {name}: must specify {}", missing.join("; ")))
}

/// Adds one usage to another.
pub fn add(usage: &mut QuotaUsage, more: &QuotaUsage) {
    for (name, amount) in more {
        let sum = usage.get(name).copied().unwrap_or_default() + *amount;
        usage.insert(name.clone(), sum);
    }
}

/// Subtracts one usage from another; no amount falls below zero.
pub fn subtract(usage: &mut QuotaUsage, less: &QuotaUsage) {
    for (name, amount) in less {
        let rest = usage.get(name).copied().unwrap_or_default() - *amount;
        usage.insert(name.clone(), rest.max(Quantity::ZERO));
    }
}

#[cfg(test)]
#[path = "quota_tests.rs"]
mod tests;
