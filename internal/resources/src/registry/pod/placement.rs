//! Validation of a pod's placement constraints: affinity, tolerations, topology spread, scheduling gates.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::field::{FieldError, Path};
use crate::json;
use crate::registry::meta;
use crate::syntax;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

pub(super) fn affinity(affinity: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let node_path = path.child("nodeAffinity");
    let node = json::at(affinity, &["nodeAffinity"]);
    let required = json::at(node, &[REQUIRED]);
    if !required.is_null() {
        let path = node_path.child(REQUIRED);
        let terms_path = path.child("nodeSelectorTerms");
        let terms = json::items(required, &["nodeSelectorTerms"]);
        if terms.is_empty() {
            errors.push(FieldError::required(
                &terms_path,
                "must have at least one node selector term",
            ));
        }
        for (i, term) in terms.iter().enumerate() {
            node_term(term, &terms_path.index(i), errors);
        }
    }
    preferred(node, &node_path, "preference", node_term, errors);
    for key in ["podAffinity", "podAntiAffinity"] {
        let path = path.child(key);
        let wishes = json::at(affinity, &[key]);
        let list = path.child(REQUIRED);
        for (i, term) in json::items(wishes, &[REQUIRED]).iter().enumerate() {
            pod_term(term, &list.index(i), errors);
        }
        preferred(wishes, &path, "podAffinityTerm", pod_term, errors);
    }
}

/// Validates the preferred terms of one kind of affinity: each has a weight, and a term under `key`.
fn preferred(
    wishes: &Value,
    path: &Path<'_>,
    key: &str,
    check: fn(&Value, &Path<'_>, &mut Vec<FieldError>),
    errors: &mut Vec<FieldError>,
) {
    let list = path.child(PREFERRED);
    for (i, preferred) in json::items(wishes, &[PREFERRED]).iter().enumerate() {
        let path = list.index(i);
        weight(preferred, &path, errors);
        check(json::at(preferred, &[key]), &path.child(key), errors);
    }
}

fn weight(preferred: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let weight = json::int(preferred, &["weight"]).unwrap_or(0);
    if !(1..=100).contains(&weight) {
        errors.push(FieldError::invalid(
            &path.child("weight"),
            weight,
            "must be in the range 1-100",
        ));
    }
}

fn node_term(term: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let list = path.child("matchExpressions");
    for (i, expression) in json::items(term, &["matchExpressions"]).iter().enumerate() {
        requirement(expression, &list.index(i), errors);
    }
    let list = path.child("matchFields");
    for (i, expression) in json::items(term, &["matchFields"]).iter().enumerate() {
        let path = list.index(i);
        let key = json::text(expression, &["key"]);
        if key != "metadata.name" {
            errors.push(FieldError::invalid(
                &path.child("key"),
                key,
                "not a valid field selector key",
            ));
        }
    }
}

fn requirement(expression: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let values = json::items(expression, &["values"]);
    match json::text(expression, &["operator"]) {
        "In" | "NotIn" => {
            if values.is_empty() {
                errors.push(FieldError::required(
                    &path.child("values"),
                    "must be specified when `operator` is 'In' or 'NotIn'",
                ));
            }
        }
        "Exists" | "DoesNotExist" => {
            if !values.is_empty() {
                errors.push(FieldError::forbidden(
                    &path.child("values"),
                    "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
                ));
            }
        }
        "Gt" | "Lt" => {
            if values.len() != 1 {
                errors.push(FieldError::required(
                    &path.child("values"),
                    "must be specified single value when `operator` is 'Lt' or 'Gt'",
                ));
            }
        }
        other => errors.push(FieldError::invalid(
            &path.child("operator"),
            other,
            "not a valid selector operator",
        )),
    }
    meta::label_key(json::text(expression, &["key"]), &path.child("key"), errors);
    for (i, value) in values.iter().filter_map(Value::as_str).enumerate() {
        for fault in syntax::label_value(value) {
            errors.push(FieldError::invalid(
                &path.child("values").index(i),
                value,
                fault,
            ));
        }
    }
}

fn pod_term(term: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    for key in ["labelSelector", "namespaceSelector"] {
        meta::selector(json::at(term, &[key]), &path.child(key), errors);
    }
    for name in json::items(term, &["namespaces"])
        .iter()
        .filter_map(Value::as_str)
    {
        for fault in syntax::dns1123_label(name) {
            errors.push(FieldError::invalid(&path.child("namespaces"), name, fault));
        }
    }
    let key = json::text(term, &["topologyKey"]);
    if key.is_empty() {
        errors.push(FieldError::required(
            &path.child("topologyKey"),
            "can not be empty",
        ));
    } else {
        meta::label_key(key, &path.child("topologyKey"), errors);
    }
}

pub(super) fn tolerations(tolerations: &[Value], path: &Path<'_>, errors: &mut Vec<FieldError>) {
    for (i, toleration) in tolerations.iter().enumerate() {
        let path = path.index(i);
        let text = |key: &str| json::text(toleration, &[key]);
        let (key, operator, effect, value) =
            (text("key"), text("operator"), text("effect"), text("value"));
        if !key.is_empty() {
            meta::label_key(key, &path.child("key"), errors);
        } else if operator != "Exists" {
            errors.push(FieldError::invalid(
                &path.child("operator"),
                operator,
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
            ));
        }
        if json::has(toleration, &["tolerationSeconds"]) && effect != "NoExecute" {
            errors.push(FieldError::invalid(
                &path.child("effect"),
                effect,
                "effect must be 'NoExecute' when `tolerationSeconds` is set",
            ));
        }
        match operator {
            "" | "Equal" => {
                let faults = syntax::label_value(value);
                if !faults.is_empty() {
                    errors.push(FieldError::invalid(
                        &path.child("operator"),
                        value,
                        faults.join(";"),
                    ));
                }
            }
            "Exists" if !value.is_empty() => errors.push(FieldError::invalid(
                &path.child("operator"),
                value,
                "value must be empty when `operator` is 'Exists'",
            )),
            "Exists" => {}
            other => {
                errors.push(FieldError::not_supported(
                    &path.child("operator"),
                    other,
                    &["Equal", "Exists"],
                ));
            }
        }
        meta::one_of(
            toleration,
            "effect",
            &["NoSchedule", "PreferNoSchedule", "NoExecute"],
            &path,
            errors,
        );
    }
}

pub(super) fn spread(constraints: &[Value], path: &Path<'_>, errors: &mut Vec<FieldError>) {
    for (i, constraint) in constraints.iter().enumerate() {
        let path = path.index(i);
        let skew = json::int(constraint, &["maxSkew"]).unwrap_or(0);
        if skew <= 0 {
            errors.push(FieldError::invalid(
                &path.child("maxSkew"),
                skew,
                "must be greater than zero",
            ));
        }
        let key = json::text(constraint, &["topologyKey"]);
        if key.is_empty() {
            errors.push(FieldError::required(
                &path.child("topologyKey"),
                "can not be empty",
            ));
        } else {
            meta::label_key(key, &path.child("topologyKey"), errors);
        }
        let when = json::text(constraint, &["whenUnsatisfiable"]);
        if !matches!(when, "DoNotSchedule" | "ScheduleAnyway") {
            errors.push(FieldError::not_supported(
                &path.child("whenUnsatisfiable"),
                when,
                &["DoNotSchedule", "ScheduleAnyway"],
            ));
        }
        let again = constraints[i + 1..].iter().any(|other| {
            json::text(other, &["topologyKey"]) == key
                && json::text(other, &["whenUnsatisfiable"]) == when
        });
        if again {
            let path = path.child("{topologyKey, whenUnsatisfiable}");
            errors.push(FieldError::duplicate(&path, format!("{{{key}, {when}}}")));
        }
        meta::selector(
            json::at(constraint, &["labelSelector"]),
            &path.child("labelSelector"),
            errors,
        );
    }
}

pub(super) fn gates(gates: &[Value], path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let mut seen = BTreeSet::new();
    for (i, gate) in gates.iter().enumerate() {
        let name = json::text(gate, &["name"]);
        meta::label_key(name, &path.index(i), errors);
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(&path.index(i), name));
        }
    }
}
