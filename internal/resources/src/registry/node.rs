//! Node: taints are checked; `allocatable` defaults to `capacity`.

use std::collections::BTreeSet;

use serde_json::Value;

use super::columns::{AGE, NAME, column, or_none, wide};
use super::meta::{self, NameRule};
use super::{Kind, TableColumn};
use crate::field::{FieldError, Path};
use crate::json;
use crate::syntax;

const ROLE_PREFIX: &str = "node-role.kubernetes.io/";
const ROLE: &str = "kubernetes.io/role";
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

const COLUMNS: &[TableColumn] = &[
    NAME,
    column("Status", "string", "The status of the node", |node, _| {
        status(node)
    }),
    column("Roles", "string", "The roles of the node", |node, _| {
        roles(node)
    }),
    AGE,
    column(
        "Version",
        "string",
        "The version of the node's agent.",
        |node, _| info(node, "kubeletVersion", ""),
    ),
    wide(
        "Internal-IP",
        "string",
        "Where the node is reached.",
        |node, _| address(node, "InternalIP"),
    ),
    wide(
        "External-IP",
        "string",
        "Where the node is reached from outside.",
        |node, _| address(node, "ExternalIP"),
    ),
    wide("OS-Image", "string", "The operating system.", |node, _| {
        info(node, "osImage", "<unknown>")
    }),
    wide("Kernel-Version", "string", "The kernel.", |node, _| {
        info(node, "kernelVersion", "<unknown>")
    }),
    wide(
        "Container-Runtime",
        "string",
        "What runs containers.",
        |node, _| info(node, "containerRuntimeVersion", "<unknown>"),
    ),
];

pub(super) const KIND: Kind = Kind {
    kind: "Node",
    plural: "nodes",
    singular: "node",
    list_kind: "NodeList",
    short_names: &["no"],
    namespaced: false,
    schema: "io.k8s.api.core.v1.Node",
    status: true,
    default,
    validate,
    columns: COLUMNS,
    fields: &[("spec.unschedulable", |node| {
        json::truth(node, &["spec", "unschedulable"]).to_string()
    })],
    ..Kind::BASE
};

fn default(node: &mut Value) {
    if let Some(status) = json::child(node, "status") {
        let capacity = json::at(status, &["capacity"]).clone();
        if !capacity.is_null() {
            json::fill(status, "allocatable", capacity);
        }
        json::canonical_quantities(status, "capacity");
        json::canonical_quantities(status, "allocatable");
    }
}

fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::check(new, old, false, NameRule::Subdomain, &mut errors);
    let spec = Path::new("spec");
    let list = spec.child("taints");
    let mut seen = BTreeSet::new();
    for (i, taint) in json::items(new, &["spec", "taints"]).iter().enumerate() {
        let path = list.index(i);
        let (key, effect) = (json::text(taint, &["key"]), json::text(taint, &["effect"]));
        meta::label_key(key, &path.child("key"), &mut errors);
        let faults = syntax::label_value(json::text(taint, &["value"]));
        if !faults.is_empty() {
            errors.push(FieldError::invalid(
                &path.child("value"),
                json::text(taint, &["value"]),
                faults.join(";"),
            ));
        }
        if effect.is_empty() {
            errors.push(FieldError::required(&path.child("effect"), ""));
        }
        meta::one_of(taint, "effect", &EFFECTS, &path, &mut errors);
        if !seen.insert((key, effect)) {
            errors.push(FieldError::duplicate(&path, taint.clone()));
        }
    }
    errors
}

fn status(node: &Value) -> Value {
    let ready = json::items(node, &["status", "conditions"])
        .iter()
        .find(|c| json::text(c, &["type"]) == "Ready");
    let word = match ready.map(|c| json::text(c, &["status"])) {
        None => "Unknown",
        Some("True") => "Ready",
        Some(_) => "NotReady",
    };
    let held = if json::truth(node, &["spec", "unschedulable"]) {
        ",SchedulingDisabled"
    } else {
        ""
    };
    Value::from(format!("{word}{held}"))
}

fn roles(node: &Value) -> Value {
    let roles: BTreeSet<String> = json::members(node, &["metadata", "labels"])
        .filter_map(|(key, value)| match key.strip_prefix(ROLE_PREFIX) {
            Some(role) if !role.is_empty() => Some(role.to_owned()),
            _ if key == ROLE => value.as_str().filter(|v| !v.is_empty()).map(str::to_owned),
            _ => None,
        })
        .collect();
    or_none(&roles.into_iter().collect::<Vec<_>>().join(","))
}

fn info(node: &Value, key: &str, absent: &str) -> Value {
    let text = json::text(node, &["status", "nodeInfo", key]);
    Value::from(if text.is_empty() { absent } else { text })
}

fn address(node: &Value, kind: &str) -> Value {
    let found = json::items(node, &["status", "addresses"])
        .iter()
        .find(|a| json::text(a, &["type"]) == kind);
    or_none(found.map_or("", |a| json::text(a, &["address"])))
}
