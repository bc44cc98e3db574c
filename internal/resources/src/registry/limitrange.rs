//! LimitRange: defaults and bounds for the requests of a namespace's containers and pods.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Kind;
use super::columns::NAME_AND_AGE;
use super::meta::{self, NameRule};
use super::pod::{check_quantity, is_overcommittable};
use crate::field::{FieldError, Path};
use crate::json;
use crate::quantity::Quantity;
use crate::syntax;

const LISTS: [&str; 5] = [
    "max",
    "min",
    "default",
    "defaultRequest",
    "maxLimitRequestRatio",
];
const TYPES: [&str; 3] = ["Container", "PersistentVolumeClaim", "Pod"];

pub(super) const KIND: Kind = Kind {
    kind: "LimitRange",
    plural: "limitranges",
    singular: "limitrange",
    list_kind: "LimitRangeList",
    short_names: &["limits"],
    schema: "io.k8s.api.core.v1.LimitRange",
    default,
    validate,
    columns: NAME_AND_AGE,
    ..Kind::BASE
};

fn default(range: &mut Value) {
    let Some(spec) = json::child(range, "spec") else {
        return;
    };
    json::fill(spec, "limits", Value::Array(Vec::new()));
    for item in json::list(spec, "limits") {
        for list in LISTS {
            json::canonical_quantities(item, list);
        }
        if json::text(item, &["type"]) != "Container" {
            continue;
        }
        // The limit defaults to the maximum; the request to the limit, else to the minimum.
        for (to, from) in [
            ("default", "max"),
            ("defaultRequest", "default"),
            ("defaultRequest", "min"),
        ] {
            let values: Vec<(String, Value)> = json::members(item, &[from])
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect();
            if values.is_empty() {
                continue;
            }
            if let Some(target) = json::object(item, to) {
                for (name, value) in values {
                    json::fill(target, &name, value);
                }
            }
        }
    }
}

fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::check(new, old, true, NameRule::Subdomain, &mut errors);
    let spec = Path::new("spec");
    let list = spec.child("limits");
    let mut types = BTreeSet::new();
    for (i, item) in json::items(new, &["spec", "limits"]).iter().enumerate() {
        let path = list.index(i);
        let kind = json::text(item, &["type"]);
        for fault in syntax::qualified_name(kind) {
            errors.push(FieldError::invalid(&path.child("type"), kind, fault));
        }
        if !kind.is_empty() && !kind.contains('/') && !TYPES.contains(&kind) {
            let detail = "must be a standard limit type or fully qualified";
            errors.push(FieldError::invalid(&path.child("type"), kind, detail));
        }
        if !types.insert(kind) {
            errors.push(FieldError::duplicate(&path.child("type"), kind));
        }
        for key in LISTS {
            let path = path.child(key);
            if kind == "Pod"
                && key.starts_with("default")
                && json::members(item, &[key]).next().is_some()
            {
                errors.push(FieldError::forbidden(
                    &path,
                    "may not be specified when `type` is 'Pod'",
                ));
                continue;
            }
            for (name, value) in json::members(item, &[key]) {
                for fault in syntax::qualified_name(name) {
                    errors.push(FieldError::invalid(&path.key(name), name.as_str(), fault));
                }
                if key != "maxLimitRequestRatio" {
                    check_quantity(name, value, &path.key(name), &mut errors);
                }
            }
        }
        if kind == "PersistentVolumeClaim"
            && !json::has(item, &["min", "storage"])
            && !json::has(item, &["max", "storage"])
        {
            errors.push(FieldError::required(
                &path.child("limits"),
                "either minimum or maximum storage value is required, but neither was provided",
            ));
        }
        let names: BTreeSet<&String> = LISTS
            .iter()
            .flat_map(|key| json::members(item, &[*key]))
            .map(|(k, _)| k)
            .collect();
        for name in names {
            check_item(item, name, &path, &mut errors);
        }
    }
    errors
}

fn check_item(item: &Value, name: &str, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let of = |key: &str| json::quantity_of(json::at(item, &[key, name]));
    let (min, max) = (of("min"), of("max"));
    let (default, request, ratio) = (
        of("default"),
        of("defaultRequest"),
        of("maxLimitRequestRatio"),
    );
    let mut above = |key: &str,
                     bad: Quantity,
                     low: (&str, Option<Quantity>),
                     high: (&str, Option<Quantity>)| {
        if let (Some(a), Some(b)) = (low.1, high.1)
            && a > b
        {
            let detail = format!("{} value {a} is greater than {} value {b}", low.0, high.0);
            errors.push(FieldError::invalid(
                &path.child(key).key(name),
                bad.to_string(),
                detail,
            ));
        }
    };
    let zero = Quantity::ZERO;
    above("min", min.unwrap_or(zero), ("min", min), ("max", max));
    above(
        "defaultRequest",
        request.unwrap_or(zero),
        ("min", min),
        ("default request", request),
    );
    above(
        "defaultRequest",
        request.unwrap_or(zero),
        ("default request", request),
        ("max", max),
    );
    above(
        "defaultRequest",
        request.unwrap_or(zero),
        ("default request", request),
        ("default limit", default),
    );
    above(
        "default",
        min.unwrap_or(zero),
        ("min", min),
        ("default", default),
    );
    above(
        "default",
        max.unwrap_or(zero),
        ("default", default),
        ("max", max),
    );
    if let Some(ratio) = ratio {
        let path = path.child("maxLimitRequestRatio");
        let path = path.key(name);
        if ratio < Quantity::from_value(1) {
            errors.push(FieldError::invalid(
                &path,
                ratio.to_string(),
                format!("ratio {ratio} is less than 1"),
            ));
        }
        if let (Some(min), Some(max)) = (min, max)
            && !min.is_zero()
        {
            let most = max.as_f64() / min.as_f64();
            if ratio.as_f64() > most {
                let detail = format!("ratio {ratio} is greater than max/min = {most:.6}");
                errors.push(FieldError::invalid(&path, ratio.to_string(), detail));
            }
        }
    }
    if let (Some(default), Some(request)) = (default, request)
        && !is_overcommittable(name)
        && default != request
    {
        let detail = format!(
            "default value {default} must equal to defaultRequest value {request} in {name}"
        );
        errors.push(FieldError::invalid(
            &path.child("defaultRequest").key(name),
            request.to_string(),
            detail,
        ));
    }
}
