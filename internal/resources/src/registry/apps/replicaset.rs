//! ReplicaSet, `apps/v1`: a number of equal pods. Deployments create them.

use serde_json::Value;

use super::super::columns::{AGE, NAME, column};
use super::super::meta::{self, NameRule};
use super::super::{Kind, ScalePaths, TableColumn};
use super::{CONTAINERS, IMAGES, SET_SELECTOR, check_spec, default_spec, number, zeros};
use crate::field::{FieldError, Path};
use crate::json;

const COLUMNS: &[TableColumn] = &[
    NAME,
    column("Desired", "integer", "Desired pods.", |set, _| {
        number(set, &["spec", "replicas"])
    }),
    column("Current", "integer", "Pods that exist.", |set, _| {
        number(set, &["status", "replicas"])
    }),
    column("Ready", "integer", "Pods that are ready.", |set, _| {
        number(set, &["status", "readyReplicas"])
    }),
    AGE,
    CONTAINERS,
    IMAGES,
    SET_SELECTOR,
];

pub(in super::super) const KIND: Kind = Kind {
    group: "apps",
    kind: "ReplicaSet",
    plural: "replicasets",
    singular: "replicaset",
    list_kind: "ReplicaSetList",
    short_names: &["rs"],
    categories: &["all"],
    schema: "io.k8s.api.apps.v1.ReplicaSet",
    status: true,
    scale: Some(ScalePaths {
        spec_replicas: ".spec.replicas",
        status_replicas: ".status.replicas",
        label_selector: Some(".spec.selector"),
    }),
    generation: true,
    default,
    validate,
    validate_status: |new, _| meta::conditions(new),
    prepare: |new, old| meta::with_status(new, old, zeros(&["replicas"])),
    columns: COLUMNS,
    fields: &[("status.replicas", |set| {
        json::int(set, &["status", "replicas"])
            .unwrap_or(0)
            .to_string()
    })],
    ..Kind::BASE
};

fn default(set: &mut Value) {
    let labels = json::at(set, &["spec", "template", "metadata", "labels"]).clone();
    let bare = json::members(set, &["metadata", "labels"]).next().is_none();
    if bare
        && labels.as_object().is_some_and(|map| !map.is_empty())
        && let Some(meta) = json::object(set, "metadata").and_then(Value::as_object_mut)
    {
        meta.insert("labels".to_owned(), labels);
    }
    if let Some(spec) = json::object(set, "spec") {
        json::fill(spec, "replicas", 1);
        default_spec(spec);
    }
}

fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::check(new, old, true, NameRule::Subdomain, &mut errors);
    let path = Path::new("spec");
    let spec = json::at(new, &["spec"]);
    check_spec(spec, &path, "deployment", "ReplicaSet", &mut errors);
    if let Some(old) = old {
        let before = json::at(old, &["spec"]);
        meta::immutable(spec, before, &["selector"], &path, &mut errors);
    }
    errors
}
