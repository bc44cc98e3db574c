//! DaemonSet, `apps/v1`: one pod on each node that its template fits.

use serde_json::Value;

use super::super::columns::{AGE, NAME, column, or_none};
use super::super::meta::{self, NameRule};
use super::super::{Kind, TableColumn};
use super::{
    CONTAINERS, IMAGES, REVISION_HISTORY, SET_SELECTOR, check_amount, check_percentage, check_spec,
    default_spec, is_zero, number, zeros,
};
use crate::field::{FieldError, Path};
use crate::json;

const STRATEGIES: [&str; 2] = ["RollingUpdate", "OnDelete"];

const COLUMNS: &[TableColumn] = &[
    NAME,
    column(
        "Desired",
        "integer",
        "Nodes that should run the pod.",
        |set, _| number(set, &["status", "desiredNumberScheduled"]),
    ),
    column(
        "Current",
        "integer",
        "Nodes of these that have the pod.",
        |set, _| number(set, &["status", "currentNumberScheduled"]),
    ),
    column("Ready", "integer", "Nodes whose pod is ready.", |set, _| {
        number(set, &["status", "numberReady"])
    }),
    column(
        "Up-to-date",
        "integer",
        "Nodes whose pod has the desired template.",
        |set, _| number(set, &["status", "updatedNumberScheduled"]),
    ),
    column(
        "Available",
        "integer",
        "Nodes whose pod is ready for at least minReadySeconds.",
        |set, _| number(set, &["status", "numberAvailable"]),
    ),
    column(
        "Node Selector",
        "string",
        "The labels that a node must have.",
        |set, _| {
            let path = ["spec", "template", "spec", "nodeSelector"];
            let pairs: Vec<String> = json::texts(set, &path)
                .into_iter()
                .map(|(key, value)| format!("{key}={value}"))
                .collect();
            or_none(&pairs.join(","))
        },
    ),
    AGE,
    CONTAINERS,
    IMAGES,
    SET_SELECTOR,
];

pub(in super::super) const KIND: Kind = Kind {
    group: "apps",
    kind: "DaemonSet",
    plural: "daemonsets",
    singular: "daemonset",
    list_kind: "DaemonSetList",
    short_names: &["ds"],
    categories: &["all"],
    schema: "io.k8s.api.apps.v1.DaemonSet",
    status: true,
    generation: true,
    default,
    validate,
    validate_status: |new, _| meta::conditions(new),
    prepare: |new, old| {
        let counts = [
            "currentNumberScheduled",
            "desiredNumberScheduled",
            "numberMisscheduled",
            "numberReady",
        ];
        meta::with_status(new, old, zeros(&counts));
    },
    columns: COLUMNS,
    ..Kind::BASE
};

fn default(set: &mut Value) {
    let Some(spec) = json::object(set, "spec") else {
        return;
    };
    if let Some(strategy) = json::object(spec, "updateStrategy") {
        json::fill_text(strategy, "type", "RollingUpdate");
        if json::text(strategy, &["type"]) == "RollingUpdate"
            && let Some(rolling) = json::object(strategy, "rollingUpdate")
        {
            json::fill(rolling, "maxUnavailable", 1);
            json::fill(rolling, "maxSurge", 0);
        }
    }
    json::fill(spec, "revisionHistoryLimit", REVISION_HISTORY);
    default_spec(spec);
}

fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::check(new, old, true, NameRule::Subdomain, &mut errors);
    let path = Path::new("spec");
    let spec = json::at(new, &["spec"]);
    check_spec(spec, &path, "daemonset", "DaemonSet", &mut errors);
    strategy(spec, &path, &mut errors);
    if let Some(old) = old {
        let before = json::at(old, &["spec"]);
        meta::immutable(spec, before, &["selector"], &path, &mut errors);
    }
    errors
}

fn strategy(spec: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let path = path.child("updateStrategy");
    let strategy = json::at(spec, &["updateStrategy"]);
    match json::text(strategy, &["type"]) {
        "OnDelete" => {}
        "RollingUpdate" => {
            let rolling = json::at(strategy, &["rollingUpdate"]);
            let path = path.child("rollingUpdate");
            for key in ["maxUnavailable", "maxSurge"] {
                check_amount(rolling, key, &path, errors);
                check_percentage(rolling, key, &path, errors);
            }
            let surge = json::at(rolling, &["maxSurge"]);
            let unavailable = !is_zero(json::at(rolling, &["maxUnavailable"]));
            match (unavailable, !is_zero(surge)) {
                (true, true) => errors.push(FieldError::invalid(
                    &path.child("maxSurge"),
                    surge.clone(),
                    "may not be set when maxUnavailable is non-zero",
                )),
                (false, false) => errors.push(FieldError::required(
                    &path.child("maxUnavailable"),
                    "cannot be 0 when maxSurge is 0",
                )),
                _ => {}
            }
        }
        other => errors.push(FieldError::not_supported(
            &path.child("type"),
            other,
            &STRATEGIES,
        )),
    }
}
