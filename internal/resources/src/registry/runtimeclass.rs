//! RuntimeClass: a name for a container runtime configuration.

use serde_json::Value;

use super::columns::{AGE, NAME, column};
use super::meta::{self, NameRule};
use super::{Kind, TableColumn};
use crate::field::FieldError;
use crate::json;
use crate::syntax;

const COLUMNS: &[TableColumn] = &[
    NAME,
    column(
        "Handler",
        "string",
        "What runs the containers.",
        |class, _| json::at(class, &["handler"]).clone(),
    ),
    AGE,
];

pub(super) const KIND: Kind = Kind {
    group: "node.k8s.io",
    kind: "RuntimeClass",
    plural: "runtimeclasses",
    singular: "runtimeclass",
    list_kind: "RuntimeClassList",
    namespaced: false,
    schema: "io.k8s.api.node.v1.RuntimeClass",
    default: |class| {
        if let Some(overhead) = json::child(class, "overhead") {
            json::canonical_quantities(overhead, "podFixed");
        }
    },
    validate,
    columns: COLUMNS,
    ..Kind::BASE
};

fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::check(new, old, false, NameRule::Subdomain, &mut errors);
    let handler = json::text(new, &["handler"]);
    for fault in syntax::dns1123_label(handler) {
        errors.push(FieldError::invalid("handler", handler, fault));
    }
    if old.is_some_and(|old| json::text(old, &["handler"]) != handler) {
        errors.push(FieldError::invalid("handler", handler, meta::IMMUTABLE));
    }
    errors
}
