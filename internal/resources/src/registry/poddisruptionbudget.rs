//! PodDisruptionBudget: how many of the pods that a selector matches must stay healthy during evictions.

use serde_json::Value;

use super::columns::{AGE, NAME, column};
use super::meta::{self, NameRule};
use super::{Kind, TableColumn};
use crate::field::{FieldError, Path};
use crate::json;

const COLUMNS: &[TableColumn] = &[
    NAME,
    column(
        "Min Available",
        "string",
        "How many must be available.",
        |budget, _| bound(budget, "minAvailable"),
    ),
    column(
        "Max Unavailable",
        "string",
        "How many may be unavailable.",
        |budget, _| bound(budget, "maxUnavailable"),
    ),
    column(
        "Allowed Disruptions",
        "integer",
        "How many may be evicted now.",
        |budget, _| Value::from(json::int(budget, &["status", "disruptionsAllowed"]).unwrap_or(0)),
    ),
    AGE,
];

pub(super) const KIND: Kind = Kind {
    group: "policy",
    kind: "PodDisruptionBudget",
    plural: "poddisruptionbudgets",
    singular: "poddisruptionbudget",
    list_kind: "PodDisruptionBudgetList",
    short_names: &["pdb"],
    schema: "io.k8s.api.policy.v1.PodDisruptionBudget",
    status: true,
    generation: true,
    validate,
    validate_status: |new, _| meta::conditions(new),
    columns: COLUMNS,
    ..Kind::BASE
};

fn bound(budget: &Value, name: &str) -> Value {
    match json::at(budget, &["spec", name]) {
        Value::Null => Value::from("N/A"),
        Value::String(text) => Value::from(text.clone()),
        number => Value::from(number.to_string()),
    }
}

fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::check(new, old, true, NameRule::Subdomain, &mut errors);
    let spec = json::at(new, &["spec"]);
    let path = Path::new("spec");
    let (least, missing) = (
        json::at(spec, &["minAvailable"]),
        json::at(spec, &["maxUnavailable"]),
    );
    if !least.is_null() && !missing.is_null() {
        errors.push(FieldError::invalid(
            &path,
            spec.clone(),
            "minAvailable and maxUnavailable cannot be both set",
        ));
    }
    for (name, value) in [("minAvailable", least), ("maxUnavailable", missing)] {
        if let Some(fault) = fault(value) {
            errors.push(FieldError::invalid(&path.child(name), value.clone(), fault));
        }
    }
    let selector = json::at(spec, &["selector"]);
    if !selector.is_null() {
        meta::selector(selector, &path.child("selector"), &mut errors);
    }
    let policy = json::at(spec, &["unhealthyPodEvictionPolicy"]);
    if let Some(policy) = policy.as_str()
        && !matches!(policy, "IfHealthyBudget" | "AlwaysAllow")
    {
        errors.push(FieldError::not_supported(
            &path.child("unhealthyPodEvictionPolicy"),
            policy,
            &["AlwaysAllow", "IfHealthyBudget"],
        ));
    }
    errors
}

/// Why a number or a percentage is invalid.
fn fault(value: &Value) -> Option<&'static str> {
    match value {
        Value::Null => None,
        Value::String(text) => {
            let number = text.strip_suffix('%').and_then(|n| n.parse::<u32>().ok());
            match number {
                Some(0..=100) => None,
                Some(_) => Some("must not be greater than 100%"),
                None => Some(
                    "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')",
                ),
            }
        }
        other => match other.as_i64() {
            Some(0..) => None,
            _ => Some("must be greater than or equal to 0"),
        },
    }
}
