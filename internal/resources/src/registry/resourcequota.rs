//! ResourceQuota: the usage limits of a namespace.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::columns::{AGE, NAME, column};
use super::meta::{self, NameRule};
use super::pod::check_quantity;
use super::{Kind, TableColumn};
use crate::field::{FieldError, Path};
use crate::json;
use crate::syntax;

const SCOPES: [&str; 7] = [
    "BestEffort",
    "CrossNamespacePodAffinity",
    "NotBestEffort",
    "NotTerminating",
    "PriorityClass",
    "Terminating",
    "VolumeAttributesClass",
];
const OPPOSITES: [(&str, &str); 2] = [
    ("BestEffort", "NotBestEffort"),
    ("Terminating", "NotTerminating"),
];

const COLUMNS: &[TableColumn] = &[
    NAME,
    column(
        "Request",
        "string",
        "What is used of what may be requested.",
        |quota, _| used(quota, false),
    ),
    column(
        "Limit",
        "string",
        "What is used of what limits may add up to.",
        |quota, _| used(quota, true),
    ),
    AGE,
];

pub(super) const KIND: Kind = Kind {
    kind: "ResourceQuota",
    plural: "resourcequotas",
    singular: "resourcequota",
    list_kind: "ResourceQuotaList",
    short_names: &["quota"],
    schema: "io.k8s.api.core.v1.ResourceQuota",
    status: true,
    default: |quota| {
        if let Some(spec) = json::child(quota, "spec") {
            json::canonical_quantities(spec, "hard");
        }
    },
    validate,
    prepare: |new, old| meta::with_status(new, old, json!({})),
    columns: COLUMNS,
    ..Kind::BASE
};

/// True if a quota may limit this name without a prefix.
pub(super) fn is_standard(name: &str) -> bool {
    matches!(
        name,
        "cpu"
            | "memory"
            | "ephemeral-storage"
            | "requests.cpu"
            | "requests.memory"
            | "requests.storage"
            | "requests.ephemeral-storage"
            | "limits.cpu"
            | "limits.memory"
            | "limits.ephemeral-storage"
            | "pods"
            | "resourcequotas"
            | "services"
            | "replicationcontrollers"
            | "secrets"
            | "persistentvolumeclaims"
            | "configmaps"
            | "services.nodeports"
            | "services.loadbalancers"
    ) || name.starts_with("hugepages-")
        || name.starts_with("requests.hugepages-")
}

fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::check(new, old, true, NameRule::Subdomain, &mut errors);
    let spec_path = Path::new("spec");
    let spec = json::at(new, &["spec"]);
    let hard = spec_path.child("hard");
    for (name, value) in json::members(spec, &["hard"]) {
        let path = hard.key(name);
        let faults = syntax::qualified_name(name);
        if !faults.is_empty() {
            errors.extend(
                faults
                    .into_iter()
                    .map(|fault| FieldError::invalid(&path, name.as_str(), fault)),
            );
        } else if !name.contains('/') && !is_standard(name) {
            let detail = "must be a standard resource type or fully qualified";
            errors.push(FieldError::invalid(&path, name.as_str(), detail));
            errors.push(FieldError::invalid(
                &path,
                name.as_str(),
                "must be a standard resource for quota",
            ));
        }
        check_quantity(name, value, &path, &mut errors);
    }
    let scopes: BTreeSet<&str> = json::items(spec, &["scopes"])
        .iter()
        .filter_map(Value::as_str)
        .collect();
    for scope in &scopes {
        if !SCOPES.contains(scope) {
            errors.push(FieldError::invalid(
                &spec_path.child("scopes"),
                *scope,
                "unsupported scope",
            ));
        }
    }
    for (one, other) in OPPOSITES {
        if scopes.contains(one) && scopes.contains(other) {
            let value = json::at(spec, &["scopes"]).clone();
            errors.push(FieldError::invalid(
                &spec_path.child("scopes"),
                value,
                "conflicting scopes",
            ));
        }
    }
    if let Some(old) = old {
        let before: BTreeSet<&str> = json::items(old, &["spec", "scopes"])
            .iter()
            .filter_map(Value::as_str)
            .collect();
        if before != scopes {
            let value = json::at(spec, &["scopes"]).clone();
            errors.push(FieldError::invalid(
                &spec_path.child("scopes"),
                value,
                meta::IMMUTABLE,
            ));
        }
    }
    errors
}

fn used(quota: &Value, limits: bool) -> Value {
    // Until its usage is counted for the first time, a quota shows its limits.
    let counted = json::has(quota, &["status", "hard"]);
    let hard = if counted {
        ["status", "hard"]
    } else {
        ["spec", "hard"]
    };
    let texts: Vec<String> = json::members(quota, &hard)
        .filter(|(name, _)| name.starts_with("limits.") == limits)
        .map(|(name, hard)| {
            let used = json::text(quota, &["status", "used", name]);
            let hard = hard
                .as_str()
                .map_or_else(|| hard.to_string(), str::to_owned);
            format!(
                "{name}: {}/{hard}",
                if used.is_empty() { "0" } else { used }
            )
        })
        .collect();
    Value::from(texts.join(", "))
}
