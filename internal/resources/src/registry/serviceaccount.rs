//! ServiceAccount: an identity for pods and programs that bindings may name. The API server issues its tokens.

use serde_json::Value;

use super::columns::{AGE, NAME, column};
use super::meta::{self, NameRule};
use super::{Kind, TableColumn};
use crate::json;

const COLUMNS: &[TableColumn] = &[
    NAME,
    column(
        "Secrets",
        "string",
        "How many secrets its pods may use.",
        |object, _| Value::from(json::items(object, &["secrets"]).len()),
    ),
    AGE,
];

pub(super) const KIND: Kind = Kind {
    kind: "ServiceAccount",
    plural: "serviceaccounts",
    singular: "serviceaccount",
    list_kind: "ServiceAccountList",
    short_names: &["sa"],
    schema: "io.k8s.api.core.v1.ServiceAccount",
    extra_subresources: &["token"],
    validate: |new, old| {
        let mut errors = Vec::new();
        meta::check(new, old, true, NameRule::Subdomain, &mut errors);
        errors
    },
    columns: COLUMNS,
    ..Kind::BASE
};
