//! ConfigMap: keys and sizes; unchangeable if it sets `immutable`.

use std::collections::BTreeSet;

use serde_json::Value;

use super::columns::{AGE, NAME, column};
use super::meta::{self, NameRule};
use super::{Kind, TableColumn};
use crate::field::{FieldError, Path};
use crate::json;
use crate::syntax;

/// The most bytes of all values of a ConfigMap or Secret together.
pub(super) const DATA_MAX: usize = 1024 * 1024;
const IMMUTABLE: &str = "field is immutable when `immutable` is set";

const COLUMNS: &[TableColumn] = &[
    NAME,
    column("Data", "string", "How many keys.", |object, _| {
        let count = json::members(object, &["data"]).count()
            + json::members(object, &["binaryData"]).count();
        Value::from(count)
    }),
    AGE,
];

pub(super) const KIND: Kind = Kind {
    kind: "ConfigMap",
    plural: "configmaps",
    singular: "configmap",
    list_kind: "ConfigMapList",
    short_names: &["cm"],
    schema: "io.k8s.api.core.v1.ConfigMap",
    validate,
    columns: COLUMNS,
    ..Kind::BASE
};

fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::check(new, old, true, NameRule::Subdomain, &mut errors);
    if let Some(old) = old {
        check_immutable(new, old, &["data", "binaryData"], &mut errors);
    }
    let binary: BTreeSet<&str> = json::members(new, &["binaryData"])
        .map(|(k, _)| k.as_str())
        .collect();
    let mut size = 0;
    for bag in ["data", "binaryData"] {
        let path = Path::new(bag);
        size += check_keys(json::at(new, &[bag]), &path, &mut errors);
        for (key, _) in json::members(new, &[bag]) {
            if bag == "data" && binary.contains(key.as_str()) {
                let detail = "duplicate of key present in binaryData";
                errors.push(FieldError::invalid(&path.key(key), key.as_str(), detail));
            }
        }
    }
    if size > DATA_MAX {
        errors.push(FieldError::too_long("", DATA_MAX));
    }
    errors
}

/// Checks the keys of a map and returns the total size of its values.
pub(super) fn check_keys(bag: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) -> usize {
    let mut size = 0;
    for (key, value) in json::members(bag, &[]) {
        size += value.as_str().map_or(0, str::len);
        for fault in syntax::config_key(key) {
            errors.push(FieldError::invalid(&path.key(key), key.as_str(), fault));
        }
    }
    size
}

/// Reports changes after `immutable` is set.
pub(super) fn check_immutable(
    new: &Value,
    old: &Value,
    bags: &'static [&'static str],
    errors: &mut Vec<FieldError>,
) {
    if !json::truth(old, &["immutable"]) {
        return;
    }
    if !json::truth(new, &["immutable"]) {
        errors.push(FieldError::forbidden("immutable", IMMUTABLE));
    }
    for bag in bags {
        if !json::same(json::at(new, &[bag]), json::at(old, &[bag])) {
            errors.push(FieldError::forbidden(*bag, IMMUTABLE));
        }
    }
}
