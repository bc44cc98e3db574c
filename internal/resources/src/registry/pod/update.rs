//! The fields of an existing pod that may change: images, the deadline (only down), tolerations (only more), scheduling
//! gates (only fewer), and, while gated, additions to a node selector.

use serde_json::Value;

use crate::field::{FieldError, Path};
use crate::json;
use crate::syntax;

const MAY_CHANGE: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

pub(super) fn check(new: &Value, old: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    for key in ["containers", "initContainers"] {
        if json::items(new, &[key]).len() != json::items(old, &[key]).len() {
            errors.push(FieldError::forbidden(
                &path.child(key),
                "pod updates may not add or remove containers",
            ));
            return;
        }
    }
    if !deadline(new, old, path, errors) {
        return;
    }
    tolerations(new, old, path, errors);
    gates(new, old, path, errors);
    if json::same(new, old) {
        return;
    }
    let mut changed: Vec<&str> = Vec::new();
    let gated = !json::items(old, &["schedulingGates"]).is_empty();
    let keys = json::members(new, &[])
        .chain(json::members(old, &[]))
        .map(|(key, _)| key.as_str());
    for key in keys {
        if changed.contains(&key) {
            continue;
        }
        let (now, before) = (json::at(new, &[key]), json::at(old, &[key]));
        let fine = match key {
            "activeDeadlineSeconds" | "tolerations" | "schedulingGates" => true,
            "containers" | "initContainers" => same_but_images(now, before),
            "terminationGracePeriodSeconds" => {
                now == before || (before.as_i64().is_some_and(|n| n < 0) && now.as_i64() == Some(1))
            }
            "nodeSelector" if gated => only_added(now, before),
            _ => json::same(now, before),
        };
        if !fine {
            changed.push(key);
        }
    }
    if !changed.is_empty() {
        let list: Vec<String> = changed
            .iter()
            .map(|key| path.child(key).to_string())
            .collect();
        errors.push(FieldError::forbidden(
            path,
            format!("{MAY_CHANGE}\nchanged: {}", list.join(", ")),
        ));
    }
}

fn same_but_images(new: &Value, old: &Value) -> bool {
    let (new, old) = (new.as_array(), old.as_array());
    new.into_iter()
        .flatten()
        .zip(old.into_iter().flatten())
        .all(|(now, before)| {
            if json::same(now, before) {
                return true;
            }
            let mut now = now.clone();
            if let Some(map) = now.as_object_mut() {
                match before.get("image") {
                    Some(image) => map.insert("image".to_owned(), image.clone()),
                    None => map.remove("image"),
                };
                // Defaulting adds the pull policy together with the first image.
                if before.get("imagePullPolicy").is_none() {
                    map.remove("imagePullPolicy");
                }
            }
            json::same(&now, before)
        })
}

fn only_added(new: &Value, old: &Value) -> bool {
    json::members(old, &[]).all(|(key, value)| new.get(key) == Some(value))
}

/// Returns whether the rest is worth checking.
fn deadline(new: &Value, old: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) -> bool {
    let path = path.child("activeDeadlineSeconds");
    let (now, before) = (
        json::int(new, &["activeDeadlineSeconds"]),
        json::int(old, &["activeDeadlineSeconds"]),
    );
    match (now, before) {
        (Some(now), _) if !(0..=i64::from(i32::MAX)).contains(&now) => {
            errors.push(FieldError::invalid(
                &path,
                now,
                syntax::in_range(0, i64::from(i32::MAX)),
            ));
            false
        }
        (Some(now), Some(before)) if now > before => {
            errors.push(FieldError::invalid(
                &path,
                now,
                "must be less than or equal to previous value",
            ));
            false
        }
        (None, Some(_)) => {
            let detail = "must not update from a positive integer to nil value";
            errors.push(FieldError::invalid(&path, Value::Null, detail));
            true
        }
        _ => true,
    }
}

fn tolerations(new: &Value, old: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let now = json::items(new, &["tolerations"]);
    let kept = json::items(old, &["tolerations"]).iter().all(|before| {
        now.iter().any(|now| {
            ["key", "operator", "value", "effect"]
                .iter()
                .all(|key| json::text(now, &[key]) == json::text(before, &[key]))
        })
    });
    if !kept {
        errors.push(FieldError::forbidden(
            &path.child("tolerations"),
            "existing toleration can not be modified except its tolerationSeconds",
        ));
    }
}

fn gates(new: &Value, old: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let before = json::items(old, &["schedulingGates"]);
    let list = path.child("schedulingGates");
    for (i, gate) in json::items(new, &["schedulingGates"]).iter().enumerate() {
        let name = json::text(gate, &["name"]);
        if !before.iter().any(|old| json::text(old, &["name"]) == name) {
            let detail =
                format!("only deletion is allowed, but found new scheduling gate '{name}'");
            errors.push(FieldError::forbidden(&list.index(i).child("name"), detail));
        }
    }
}

/// Checks a write to a pod's /status.
pub(super) fn check_status(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let path = Path::new("status");
    if json::text(new, &["spec", "nodeName"]) != json::text(old, &["spec", "nodeName"]) {
        errors.push(FieldError::forbidden(
            &path.child("nodeName"),
            "may not be changed directly",
        ));
    }
    let nominated = json::text(new, &["status", "nominatedNodeName"]);
    if !nominated.is_empty() && nominated != json::text(old, &["status", "nominatedNodeName"]) {
        for fault in syntax::dns1123_subdomain(nominated) {
            errors.push(FieldError::invalid(
                &path.child("nominatedNodeName"),
                nominated,
                fault,
            ));
        }
    }
    let conditions = path.child("conditions");
    for (i, condition) in json::items(new, &["status", "conditions"])
        .iter()
        .enumerate()
    {
        let kind = json::text(condition, &["type"]);
        for fault in syntax::qualified_name(kind) {
            errors.push(FieldError::invalid(
                &conditions.index(i).child("Type"),
                kind,
                fault,
            ));
        }
    }
    errors
}
