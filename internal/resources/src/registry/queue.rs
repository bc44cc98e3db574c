//! Queue: Volcano's defaults and checks. `guaranteed`, which many manifests use for `guarantee.resource`, is stored as
//! written.

use kube::CustomResourceExt as _;
use serde_json::{Value, json};

use super::columns::{NAME, of, only_wide};
use super::meta::{self, NameRule};
use super::pod::check_quantity;
use super::{Kind, Source, TableColumn};
use crate::field::{FieldError, Path};
use crate::json;
use crate::kinds;
use crate::syntax;

const WEIGHT_MAX: i64 = 65_535;
const LISTS: [&[&str]; 4] = [
    &["capability"],
    &["deserved"],
    &["guaranteed"],
    &["guarantee", "resource"],
];

const COLUMNS: &[TableColumn] = &[
    NAME,
    of(
        "Weight",
        "integer",
        "The queue's weight among its siblings.",
        Source::Approximated(
            |queue, _| Value::from(json::int(queue, &["spec", "weight"]).unwrap_or(1)),
            ".spec.weight",
        ),
    ),
    of(
        "State",
        "string",
        "Whether the queue takes work.",
        Source::Field(&["status", "state"]),
    ),
    of(
        "Inqueue",
        "integer",
        "Gangs that are admitted and not placed yet.",
        Source::Count(&["status", "inqueue"]),
    ),
    of(
        "Pending",
        "integer",
        "Gangs waiting.",
        Source::Count(&["status", "pending"]),
    ),
    of(
        "Running",
        "integer",
        "Gangs running.",
        Source::Count(&["status", "running"]),
    ),
    only_wide(of(
        "Share",
        "string",
        "The largest part of the cluster that it holds of any resource.",
        Source::Field(&["status", "share"]),
    )),
    only_wide(of(
        "Parent",
        "string",
        "The queue it is part of.",
        Source::Field(&["spec", "parent"]),
    )),
];

pub(super) const KIND: Kind = Kind {
    group: "scheduling.volcano.sh",
    version: "v1beta1",
    kind: "Queue",
    plural: "queues",
    singular: "queue",
    list_kind: "QueueList",
    short_names: &["q", "queue-v1beta1"],
    namespaced: false,
    definition: Some(kinds::Queue::crd),
    schema: "sh.volcano.scheduling.v1beta1.Queue",
    status: true,
    generation: true,
    default,
    validate,
    prepare: |new, old| meta::with_status(new, old, json!({ "state": "Open" })),
    columns: COLUMNS,
    fields: &[("spec.parent", |queue| {
        json::text(queue, &["spec", "parent"]).to_owned()
    })],
    ..Kind::BASE
};

fn default(queue: &mut Value) {
    let Some(spec) = json::object(queue, "spec") else {
        return;
    };
    json::fill_number(spec, "weight", 1);
    json::fill(spec, "reclaimable", true);
    for list in ["capability", "deserved", "guaranteed"] {
        json::canonical_quantities(spec, list);
    }
    if let Some(guarantee) = json::child(spec, "guarantee") {
        json::canonical_quantities(guarantee, "resource");
    }
}

fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::check(new, old, false, NameRule::Subdomain, &mut errors);
    let path = Path::new("spec");
    let spec = json::at(new, &["spec"]);
    if let Some(weight) = json::int(spec, &["weight"])
        && !(1..=WEIGHT_MAX).contains(&weight)
    {
        let detail = if weight < 1 {
            "queue weight must be a positive integer".to_owned()
        } else {
            syntax::in_range(1, WEIGHT_MAX)
        };
        errors.push(FieldError::invalid(&path.child("weight"), weight, detail));
    }
    for list in LISTS {
        for (name, value) in json::members(spec, list) {
            check_quantity(
                name,
                value,
                &path.child(&list.join(".")).key(name),
                &mut errors,
            );
        }
    }
    let guarantee: &[&str] = if json::has(spec, &["guarantee", "resource"]) {
        &["guarantee", "resource"]
    } else {
        &["guaranteed"]
    };
    at_most(
        spec,
        ("deserved", &["deserved"]),
        ("capability", &["capability"]),
        &path,
        &mut errors,
    );
    at_most(
        spec,
        ("guarantee", guarantee),
        ("capability", &["capability"]),
        &path,
        &mut errors,
    );
    at_most(
        spec,
        ("guarantee", guarantee),
        ("deserved", &["deserved"]),
        &path,
        &mut errors,
    );
    let name = json::text(new, &["metadata", "name"]);
    let parent = json::text(spec, &["parent"]);
    if !parent.is_empty() {
        for fault in syntax::dns1123_subdomain(parent) {
            errors.push(FieldError::invalid(&path.child("parent"), parent, fault));
        }
        if parent == name {
            errors.push(FieldError::invalid(
                &path.child("parent"),
                parent,
                "a queue cannot be its own parent",
            ));
        }
    }
    meta::selector(
        json::at(spec, &["namespaceSelector"]),
        &path.child("namespaceSelector"),
        &mut errors,
    );
    meta::one_of(
        spec,
        "dequeueStrategy",
        &["fifo", "traverse"],
        &path,
        &mut errors,
    );
    errors
}

/// Reports resources of which `less` has more than `more`, if both name them.
fn at_most(
    spec: &Value,
    less: (&str, &[&str]),
    more: (&str, &[&str]),
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    for (name, value) in json::members(spec, less.1) {
        let Some(bound) = json::at(spec, more.1).get(name) else {
            continue;
        };
        if let (Some(amount), Some(bound)) = (json::quantity_of(value), json::quantity_of(bound))
            && amount > bound
        {
            let detail = format!(
                "{} should be less than or equal to {} {bound}",
                less.0, more.0
            );
            errors.push(FieldError::invalid(
                &path.child(less.0).key(name),
                amount.to_string(),
                detail,
            ));
        }
    }
}
