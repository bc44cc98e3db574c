//! ScaledObject: the checks of KEDA's admission.

use kube::CustomResourceExt as _;
use serde_json::Value;

use super::columns::{AGE, NAME, of};
use super::meta::{self, NameRule};
use super::{Kind, Source, TableColumn};
use crate::field::{FieldError, Path};
use crate::json;
use crate::kinds;

/// The default maximum of replicas.
const MAX_REPLICAS: i64 = 100;
const METRIC_TYPES: [&str; 3] = ["AverageValue", "Value", "Utilization"];

const COLUMNS: &[TableColumn] = &[
    NAME,
    of(
        "ScaleTargetName",
        "string",
        "What is scaled.",
        Source::Field(&["spec", "scaleTargetRef", "name"]),
    ),
    of(
        "Min",
        "integer",
        "The fewest replicas.",
        Source::Field(&["spec", "minReplicaCount"]),
    ),
    of(
        "Max",
        "integer",
        "The most replicas.",
        Source::Field(&["spec", "maxReplicaCount"]),
    ),
    of(
        "Ready",
        "string",
        "Whether the object scales its target.",
        Source::Condition("Ready", "status"),
    ),
    AGE,
];

pub(super) const KIND: Kind = Kind {
    group: "keda.sh",
    version: "v1alpha1",
    kind: "ScaledObject",
    plural: "scaledobjects",
    singular: "scaledobject",
    list_kind: "ScaledObjectList",
    short_names: &["so"],
    definition: Some(kinds::ScaledObject::crd),
    schema: "sh.keda.v1alpha1.ScaledObject",
    status: true,
    generation: true,
    validate,
    prepare: meta::without_status,
    columns: COLUMNS,
    ..Kind::BASE
};

fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::check(new, old, true, NameRule::Subdomain, &mut errors);
    let path = Path::new("spec");
    let spec = json::at(new, &["spec"]);
    if json::text(spec, &["scaleTargetRef", "name"]).is_empty() {
        let target = path.child("scaleTargetRef");
        errors.push(FieldError::required(
            &target.child("name"),
            "the name of what is scaled",
        ));
    }
    for key in [
        "pollingInterval",
        "initialCooldownPeriod",
        "cooldownPeriod",
        "minReplicaCount",
        "idleReplicaCount",
    ] {
        meta::not_negative(spec, key, &path, &mut errors);
    }
    let min = json::int(spec, &["minReplicaCount"]).unwrap_or(0);
    let max = json::int(spec, &["maxReplicaCount"]).unwrap_or(MAX_REPLICAS);
    if min > max {
        let detail = format!("must be less than or equal to maxReplicaCount {max}");
        errors.push(FieldError::invalid(
            &path.child("minReplicaCount"),
            min,
            detail,
        ));
    }
    if let Some(idle) = json::int(spec, &["idleReplicaCount"]).filter(|idle| *idle >= min) {
        let detail = format!("must be less than minReplicaCount {min}");
        errors.push(FieldError::invalid(
            &path.child("idleReplicaCount"),
            idle,
            detail,
        ));
    }
    let list = path.child("triggers");
    let triggers = json::items(spec, &["triggers"]);
    if triggers.is_empty() {
        errors.push(FieldError::required(&list, "at least one trigger"));
    }
    for (i, trigger) in triggers.iter().enumerate() {
        let path = list.index(i);
        if json::text(trigger, &["type"]).is_empty() {
            errors.push(FieldError::required(
                &path.child("type"),
                "such as prometheus or cron",
            ));
        }
        meta::one_of(trigger, "metricType", &METRIC_TYPES, &path, &mut errors);
    }
    errors
}
