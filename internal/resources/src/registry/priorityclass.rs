//! PriorityClass: a name for a priority.

use serde_json::Value;

use super::columns::{AGE, NAME, column};
use super::meta::{self, NameRule};
use super::{Kind, TableColumn};
use crate::field::{FieldError, Path};
use crate::json;

/// The highest priority that a user's class may have.
pub const HIGHEST_USER_PRIORITY: i64 = 1_000_000_000;
/// The classes that always exist, and their priorities.
pub const SYSTEM_CLASSES: [(&str, i64); 2] = [
    ("system-node-critical", 2_000_001_000),
    ("system-cluster-critical", 2_000_000_000),
];
const SYSTEM_PREFIX: &str = "system-";

const COLUMNS: &[TableColumn] = &[
    NAME,
    column("Value", "integer", "The priority.", |class, _| {
        Value::from(json::int(class, &["value"]).unwrap_or(0))
    }),
    column(
        "Global-Default",
        "boolean",
        "Is it the priority of pods that name none?",
        |class, _| Value::from(json::truth(class, &["globalDefault"])),
    ),
    AGE,
    column(
        "PreemptionPolicy",
        "string",
        "Whether its pods may evict other pods.",
        |class, _| Value::from(json::text(class, &["preemptionPolicy"])),
    ),
];

pub(super) const KIND: Kind = Kind {
    group: "scheduling.k8s.io",
    kind: "PriorityClass",
    plural: "priorityclasses",
    singular: "priorityclass",
    list_kind: "PriorityClassList",
    short_names: &["pc"],
    namespaced: false,
    schema: "io.k8s.api.scheduling.v1.PriorityClass",
    default: |class| {
        json::fill_text(class, "preemptionPolicy", "PreemptLowerPriority");
        json::fill(class, "value", 0);
    },
    validate,
    columns: COLUMNS,
    ..Kind::BASE
};

fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::check(new, old, false, NameRule::Subdomain, &mut errors);
    let value = json::int(new, &["value"]).unwrap_or(0);
    let name = json::text(new, &["metadata", "name"]);
    if name.starts_with(SYSTEM_PREFIX) {
        let known = SYSTEM_CLASSES.iter().find(|(known, _)| *known == name);
        let fault = match known {
            None => Some(format!("{name} is not a known system priority class")),
            Some((_, right)) if *right != value => {
                Some(format!("value of {name} PriorityClass must be {right}"))
            }
            Some(_) if json::truth(new, &["globalDefault"]) => Some(format!(
                "globalDefault of {name} PriorityClass must be false"
            )),
            Some(_) => None,
        };
        if let Some(fault) = fault {
            errors.push(FieldError::forbidden(
                "metadata.name",
                format!("priority class names with '{SYSTEM_PREFIX}' prefix are reserved for system use only. error: {fault}"),
            ));
        }
    } else if value > HIGHEST_USER_PRIORITY {
        let detail =
            format!("maximum allowed value of a user defined priority is {HIGHEST_USER_PRIORITY}");
        errors.push(FieldError::forbidden("value", detail));
    }
    if let Some(policy) = json::at(new, &["preemptionPolicy"]).as_str()
        && !matches!(policy, "PreemptLowerPriority" | "Never")
    {
        errors.push(FieldError::not_supported(
            "preemptionPolicy",
            policy,
            &["PreemptLowerPriority", "Never"],
        ));
    }
    if let Some(old) = old {
        if json::int(old, &["value"]).unwrap_or(0) != value {
            errors.push(FieldError::forbidden(
                "value",
                "may not be changed in an update.",
            ));
        }
        let now = json::at(new, &["preemptionPolicy"]);
        if !json::same(now, json::at(old, &["preemptionPolicy"])) {
            errors.push(FieldError::invalid(
                &Path::new("preemptionPolicy"),
                now.clone(),
                meta::IMMUTABLE,
            ));
        }
    }
    errors
}
