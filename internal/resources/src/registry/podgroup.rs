//! PodGroup: the gang. Volcano's defaults and checks.

use kube::CustomResourceExt as _;
use serde_json::{Value, json};

use super::columns::{AGE, NAME, of, only_wide};
use super::meta::{self, NameRule};
use super::pod::check_quantity;
use super::{Kind, Source, TableColumn};
use crate::field::{FieldError, Path};
use crate::json;
use crate::kinds;
use crate::names;
use crate::syntax;

const COLUMNS: &[TableColumn] = &[
    NAME,
    of(
        "STATUS",
        "string",
        "The phase of the gang.",
        Source::Field(&["status", "phase"]),
    ),
    of(
        "minMember",
        "integer",
        "Members that must start together.",
        Source::Field(&["spec", "minMember"]),
    ),
    of(
        "RUNNINGS",
        "integer",
        "Members running.",
        Source::Count(&["status", "running"]),
    ),
    AGE,
    only_wide(of(
        "QUEUE",
        "string",
        "The queue it waits in.",
        Source::Field(&["spec", "queue"]),
    )),
];

pub(super) const KIND: Kind = Kind {
    group: "scheduling.volcano.sh",
    version: "v1beta1",
    kind: "PodGroup",
    plural: "podgroups",
    singular: "podgroup",
    list_kind: "PodGroupList",
    short_names: &["pg", "podgroup-v1beta1"],
    definition: Some(kinds::PodGroup::crd),
    schema: "sh.volcano.scheduling.v1beta1.PodGroup",
    status: true,
    generation: true,
    default,
    validate,
    prepare: |new, old| meta::with_status(new, old, json!({ "phase": "Pending" })),
    columns: COLUMNS,
    fields: &[("spec.queue", |group| {
        json::text(group, &["spec", "queue"]).to_owned()
    })],
    ..Kind::BASE
};

fn default(group: &mut Value) {
    let Some(spec) = json::object(group, "spec") else {
        return;
    };
    json::fill(spec, "minMember", 1);
    json::fill_text(spec, "queue", names::DEFAULT_QUEUE);
    json::canonical_quantities(spec, "minResources");
}

fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::check(new, old, true, NameRule::Subdomain, &mut errors);
    let path = Path::new("spec");
    let spec = json::at(new, &["spec"]);
    meta::not_negative(spec, "minMember", &path, &mut errors);
    let tasks = path.child("minTaskMember");
    for (task, count) in json::members(spec, &["minTaskMember"]) {
        if let Some(count) = count.as_i64().filter(|n| *n < 0) {
            let detail = "must be greater than or equal to 0";
            errors.push(FieldError::invalid(&tasks.key(task), count, detail));
        }
    }
    let queue = json::text(spec, &["queue"]);
    for fault in syntax::dns1123_subdomain(queue) {
        errors.push(FieldError::invalid(&path.child("queue"), queue, fault));
    }
    let resources = path.child("minResources");
    for (name, value) in json::members(spec, &["minResources"]) {
        check_quantity(name, value, &resources.key(name), &mut errors);
    }
    let topology = path.child("networkTopology");
    meta::one_of(
        json::at(spec, &["networkTopology"]),
        "mode",
        &["hard", "soft"],
        &topology,
        &mut errors,
    );
    errors
}
