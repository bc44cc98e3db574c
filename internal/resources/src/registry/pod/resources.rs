//! Validation of requests and limits, and the quality of service class.

use serde_json::Value;

use crate::field::{FieldError, Path};
use crate::json;
use crate::quantity::{Quantity, QuantityError};
use crate::registry::resourcequota::is_standard;
use crate::syntax;

const NEGATIVE: &str = "must be greater than or equal to 0";

/// True for a resource of Kubernetes' own.
fn is_native(name: &str) -> bool {
    !name.contains('/')
        || name
            .split_once('/')
            .is_some_and(|(prefix, _)| prefix.contains("kubernetes.io"))
}

/// True for an extended resource (`nvidia.com/gpu`).
pub(crate) fn is_extended(name: &str) -> bool {
    !is_native(name)
        && !name.starts_with("requests.")
        && syntax::qualified_name(&format!("requests.{name}")).is_empty()
}

fn is_hugepages(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// True if the resource may be overcommitted.
pub(crate) fn is_overcommittable(name: &str) -> bool {
    is_native(name) && !is_hugepages(name)
}

fn is_container_resource(name: &str) -> bool {
    matches!(name, "cpu" | "memory" | "ephemeral-storage") || is_hugepages(name)
}

/// Checks the names and quantities of a resource list, each on its own.
pub fn resource_list(list: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    for (name, value) in json::members(list, &[]) {
        let path = path.key(name);
        container_name(name, &path, errors);
        quantity(name, value, &path, errors);
    }
}

/// Checks only quantities.
pub(super) fn quantities(list: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    for (name, value) in json::members(list, &[]) {
        quantity(name, value, &path.key(name), errors);
    }
}

/// Checks one quantity: readable, not negative, whole for devices.
pub(crate) fn quantity(name: &str, value: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    match json::quantity_of(value) {
        None => {
            let why = value
                .as_str()
                .and_then(|t| t.parse::<Quantity>().err())
                .unwrap_or(QuantityError::Format);
            errors.push(FieldError::invalid(path, value.clone(), why.to_string()));
        }
        Some(quantity) if quantity.is_negative() => {
            errors.push(FieldError::invalid(path, quantity.to_string(), NEGATIVE));
        }
        Some(quantity) if is_integer(name) && !quantity.is_whole() => {
            errors.push(FieldError::invalid(
                path,
                quantity.to_string(),
                "must be an integer",
            ));
        }
        Some(_) => {}
    }
}

fn is_integer(name: &str) -> bool {
    let counted = name
        .strip_prefix("requests.")
        .or_else(|| name.strip_prefix("limits."))
        .unwrap_or(name);
    is_extended(counted)
        || matches!(
            name,
            "pods"
                | "services"
                | "secrets"
                | "configmaps"
                | "persistentvolumeclaims"
                | "resourcequotas"
                | "replicationcontrollers"
                | "services.nodeports"
                | "services.loadbalancers"
        )
        || name.starts_with("count/")
}

fn container_name(name: &str, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let faults = syntax::qualified_name(name);
    if !faults.is_empty() {
        errors.extend(
            faults
                .into_iter()
                .map(|fault| FieldError::invalid(path, name, fault)),
        );
    } else if !name.contains('/') {
        if !is_container_resource(name) {
            if name != "storage" && !is_standard(name) {
                errors.push(FieldError::invalid(
                    path,
                    name,
                    "must be a standard resource type or fully qualified",
                ));
            }
            errors.push(FieldError::invalid(
                path,
                name,
                "must be a standard resource for containers",
            ));
        }
    } else if !is_native(name) && !is_extended(name) {
        errors.push(FieldError::invalid(
            path,
            name,
            "doesn't follow extended resource name standard",
        ));
    }
}

/// Checks a container's (or a pod's) `resources`.
pub(super) fn check(resources: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let (limits, requests) = (
        json::at(resources, &["limits"]),
        json::at(resources, &["requests"]),
    );
    let (limits_path, requests_path) = (path.child("limits"), path.child("requests"));
    resource_list(limits, &limits_path, errors);
    for (name, value) in json::members(requests, &[]) {
        let key = requests_path.key(name);
        container_name(name, &key, errors);
        quantity(name, value, &key, errors);
        let Some(request) = json::quantity_of(value) else {
            continue;
        };
        match limits.get(name.as_str()) {
            Some(limit) => {
                let Some(limit) = json::quantity_of(limit) else {
                    continue;
                };
                let words = if !is_overcommittable(name) && request != limit {
                    "must be equal to"
                } else if request > limit {
                    "must be less than or equal to"
                } else {
                    continue;
                };
                errors.push(FieldError::invalid(
                    &requests_path,
                    request.to_string(),
                    format!("{words} {name} limit of {limit}"),
                ));
            }
            None if !is_overcommittable(name) => {
                errors.push(FieldError::required(
                    &limits_path,
                    "Limit must be set for non overcommitable resources",
                ));
            }
            None => {}
        }
    }
    let names = || {
        json::members(limits, &[])
            .chain(json::members(requests, &[]))
            .map(|(name, _)| name.as_str())
    };
    if names().any(is_hugepages) && !names().any(|name| matches!(name, "cpu" | "memory")) {
        errors.push(FieldError::forbidden(
            path,
            "HugePages require cpu or memory",
        ));
    }
}

/// `Guaranteed`, `Burstable` or `BestEffort`, by Kubernetes' rule.
pub fn qos_class(spec: &Value) -> &'static str {
    let mut any = false;
    let mut guaranteed = true;
    let level = json::at(spec, &["resources"]);
    let containers = json::items(spec, &["containers"])
        .iter()
        .chain(json::items(spec, &["initContainers"]));
    let all: Vec<&Value> = if level.is_null() {
        containers.map(|c| json::at(c, &["resources"])).collect()
    } else {
        vec![level]
    };
    for resources in all {
        for name in ["cpu", "memory"] {
            let amount = |of: &str| {
                json::quantity_of(json::at(resources, &[of, name])).filter(|q| !q.is_zero())
            };
            let (limit, request) = (amount("limits"), amount("requests"));
            any |= limit.is_some() || request.is_some();
            guaranteed &= limit.is_some() && (request.is_none() || request == limit);
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}
