//! Namespace: has its own name as a label, and is Active until it is deleted.

use serde_json::{Value, json};

use super::columns::{AGE, NAME, column};
use super::meta::{self, NameRule};
use super::{Kind, TableColumn, idle_gpus};
use crate::json;
use crate::pod_security_level::check_labels;

const NAME_LABEL: &str = "kubernetes.io/metadata.name";

const COLUMNS: &[TableColumn] = &[
    NAME,
    column(
        "Status",
        "string",
        "The status of the namespace.",
        |object, _| Value::from(json::text(object, &["status", "phase"])),
    ),
    AGE,
];

pub(super) const KIND: Kind = Kind {
    kind: "Namespace",
    plural: "namespaces",
    singular: "namespace",
    list_kind: "NamespaceList",
    short_names: &["ns"],
    namespaced: false,
    schema: "io.k8s.api.core.v1.Namespace",
    status: true,
    default,
    validate: |new, old| {
        let mut errors = Vec::new();
        meta::check(new, old, false, NameRule::Label, &mut errors);
        check_labels(new, old, &mut errors);
        idle_gpus::check_policy(new, old, &mut errors);
        errors
    },
    prepare,
    columns: COLUMNS,
    fields: &[("status.phase", |namespace| {
        json::text(namespace, &["status", "phase"]).to_owned()
    })],
    ..Kind::BASE
};

fn default(namespace: &mut Value) {
    let name = json::text(namespace, &["metadata", "name"]).to_owned();
    if name.is_empty() {
        return;
    }
    if let Some(labels) =
        json::object(namespace, "metadata").and_then(|meta| json::object(meta, "labels"))
    {
        json::fill(labels, NAME_LABEL, name);
    }
}

fn prepare(namespace: &mut Value, old: Option<&Value>) {
    if old.is_some() {
        return;
    }
    if let Some(map) = namespace.as_object_mut() {
        map.insert("status".to_owned(), json!({ "phase": "Active" }));
    }
    if let Some(spec) = json::object(namespace, "spec") {
        json::fill(spec, "finalizers", json!(["kubernetes"]));
    }
}
