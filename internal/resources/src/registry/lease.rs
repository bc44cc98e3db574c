//! Lease: the holder of a resource, and since when; a node renews its lease to show that it is
//! alive.

use serde_json::Value;

use super::columns::{AGE, NAME, column};
use super::meta::{self, NameRule};
use super::{Kind, TableColumn};
use crate::field::FieldError;
use crate::json;

const COLUMNS: &[TableColumn] = &[
    NAME,
    column(
        "Holder",
        "string",
        "The holder of the lease.",
        |lease, _| Value::from(json::text(lease, &["spec", "holderIdentity"])),
    ),
    AGE,
];

pub(super) const KIND: Kind = Kind {
    group: "coordination.k8s.io",
    kind: "Lease",
    plural: "leases",
    singular: "lease",
    list_kind: "LeaseList",
    schema: "io.k8s.api.coordination.v1.Lease",
    validate,
    columns: COLUMNS,
    ..Kind::BASE
};

fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::check(new, old, true, NameRule::Subdomain, &mut errors);
    if let Some(seconds) = json::int(new, &["spec", "leaseDurationSeconds"]).filter(|n| *n <= 0) {
        errors.push(FieldError::invalid(
            "spec.leaseDurationSeconds",
            seconds,
            "must be greater than 0",
        ));
    }
    if let Some(count) = json::int(new, &["spec", "leaseTransitions"]).filter(|n| *n < 0) {
        errors.push(FieldError::invalid(
            "spec.leaseTransitions",
            count,
            "must be greater than or equal to 0",
        ));
    }
    errors
}
