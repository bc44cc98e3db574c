//! The kinds of `apps/v1` that keep pods running. Owns what they share: the checks of selector, template and numbers, and
//! their columns.

mod claims;
mod controllerrevision;
mod daemonset;
mod deployment;
mod replicaset;
mod statefulset;

use serde_json::{Value, json};

use super::TableColumn;
use super::columns::{column, or_none, wide};
use super::meta;
use super::pod::{check_template, default_template};
use crate::field::{FieldError, Path};
use crate::json;
use crate::selector::LabelSelector;

pub(super) use claims::{add_claim_volumes, check_claim_templates, check_retention};
pub(super) use controllerrevision::KIND as CONTROLLER_REVISION;
pub(super) use daemonset::KIND as DAEMON_SET;
pub(super) use deployment::KIND as DEPLOYMENT;
pub(super) use replicaset::KIND as REPLICA_SET;
pub(super) use statefulset::KIND as STATEFUL_SET;

/// The revisions that are kept if the spec names no number.
const REVISION_HISTORY: i64 = 10;

/// Pods that are ready, of those wanted.
const READY: TableColumn = column(
    "Ready",
    "string",
    "Number of the pod with ready state",
    |object, _| {
        let ready = json::int(object, &["status", "readyReplicas"]).unwrap_or(0);
        let desired = json::int(object, &["spec", "replicas"]).unwrap_or(0);
        Value::from(format!("{ready}/{desired}"))
    },
);
/// The names of the template's containers.
const CONTAINERS: TableColumn = wide(
    "Containers",
    "string",
    "Names of each container in the template.",
    |object, _| containers(object, "name"),
);
/// The images of the template's containers.
const IMAGES: TableColumn = wide(
    "Images",
    "string",
    "Images referenced by each container in the template.",
    |object, _| containers(object, "image"),
);
/// The selector of a set.
const SET_SELECTOR: TableColumn = wide(
    "Selector",
    "string",
    "Which pods are the set's.",
    |set, _| selector(set),
);

/// Sets the defaults that all these kinds share.
fn default_spec(spec: &mut Value) {
    if let Some(template) = json::object(spec, "template") {
        default_template(template);
    }
}

/// Checks the selector, the template and the numbers; `word` is the kind in messages, `owner` in those about the
/// template.
fn check_spec(
    spec: &Value,
    path: &Path<'_>,
    word: &str,
    owner: &str,
    errors: &mut Vec<FieldError>,
) {
    for key in ["replicas", "minReadySeconds", "revisionHistoryLimit"] {
        meta::not_negative(spec, key, path, errors);
    }
    let selector = json::at(spec, &["selector"]);
    let selector_path = path.child("selector");
    if selector.is_null() {
        errors.push(FieldError::required(&selector_path, ""));
    } else {
        meta::selector(selector, &selector_path, errors);
        let parts = [
            json::at(selector, &["matchLabels"]),
            json::at(selector, &["matchExpressions"]),
        ];
        if parts.iter().all(|part| json::same(part, &Value::Null)) {
            let detail = format!("empty selector is invalid for {word}");
            errors.push(FieldError::invalid(
                &selector_path,
                selector.clone(),
                detail,
            ));
        }
    }
    let template = json::at(spec, &["template"]);
    let template_path = path.child("template");
    let labels = json::texts(template, &["metadata", "labels"]);
    if parsed(selector)
        .is_some_and(|selector| !selector.is_everything() && !selector.matches(&labels))
    {
        let meta = template_path.child("metadata");
        let value = json::at(template, &["metadata", "labels"]).clone();
        let detail = "`selector` does not match template `labels`";
        errors.push(FieldError::invalid(&meta.child("labels"), value, detail));
    }
    check_template(template, &template_path, errors);
    let pod_path = template_path.child("spec");
    let policy = json::text(template, &["spec", "restartPolicy"]);
    if policy != "Always" {
        let path = pod_path.child("restartPolicy");
        errors.push(FieldError::not_supported(&path, policy, &["Always"]));
    }
    if json::has(template, &["spec", "activeDeadlineSeconds"]) {
        let path = pod_path.child("activeDeadlineSeconds");
        let detail = format!("activeDeadlineSeconds in {owner} is not Supported");
        errors.push(FieldError::forbidden(&path, detail));
    }
}

/// Checks a number or a percentage; an absent one is valid.
pub(super) fn check_amount(
    value: &Value,
    key: &str,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    let amount = json::at(value, &[key]);
    let fault = match amount {
        Value::Null => None,
        Value::String(text) => {
            let number = text.strip_suffix('%').unwrap_or_default();
            let fine = !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit());
            (!fine).then_some(
                "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')",
            )
        }
        other => match other.as_i64() {
            Some(0..) => None,
            _ => Some("must be greater than or equal to 0"),
        },
    };
    if let Some(fault) = fault {
        errors.push(FieldError::invalid(&path.child(key), amount.clone(), fault));
    }
}

/// Reports a percentage over 100.
pub(super) fn check_percentage(
    value: &Value,
    key: &str,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    let amount = json::at(value, &[key]);
    let percentage = amount.as_str().and_then(|text| text.strip_suffix('%'));
    let above = percentage.is_some_and(|number| number.parse::<u32>().map_or(true, |n| n > 100));
    if above && percentage.is_some_and(|text| text.bytes().all(|digit| digit.is_ascii_digit())) {
        errors.push(FieldError::invalid(
            &path.child(key),
            amount.clone(),
            "must not be greater than 100%",
        ));
    }
}

/// True if a number or percentage is absent or zero.
pub(super) fn is_zero(value: &Value) -> bool {
    match value {
        Value::String(text) => text
            .trim_end_matches('%')
            .bytes()
            .all(|digit| digit == b'0'),
        other => other.as_i64().unwrap_or(0) == 0,
    }
}

/// The number at a path; zero if absent.
fn number(object: &Value, path: &[&str]) -> Value {
    Value::from(json::int(object, path).unwrap_or(0))
}

/// The names or images of a template's containers.
fn containers(object: &Value, key: &str) -> Value {
    let all = json::items(object, &["spec", "template", "spec", "containers"]);
    let texts: Vec<&str> = all.iter().map(|c| json::text(c, &[key])).collect();
    Value::from(texts.join(","))
}

/// A selector, if it is valid.
fn parsed(selector: &Value) -> Option<LabelSelector> {
    let selector = serde_json::from_value(selector.clone()).ok()?;
    LabelSelector::from_k8s(&selector).ok()
}

/// The selector as text.
fn selector(object: &Value) -> Value {
    parsed(json::at(object, &["spec", "selector"])).map_or_else(
        || Value::from("<invalid>"),
        |selector| or_none(&selector.to_string()),
    )
}

/// A status of these counts, all zero.
fn zeros(keys: &[&str]) -> Value {
    let mut status = json!({});
    for key in keys {
        status[*key] = 0.into();
    }
    status
}

#[cfg(test)]
mod tests;
