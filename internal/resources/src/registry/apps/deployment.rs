//! Deployment, `apps/v1`: pods of a template, replaced step by step when the template changes.

use serde_json::{Value, json};

use super::super::columns::{AGE, NAME, column, wide};
use super::super::meta::{self, NameRule};
use super::super::{Kind, ScalePaths, TableColumn};
use super::{
    CONTAINERS, IMAGES, READY, REVISION_HISTORY, check_amount, check_percentage, check_spec,
    default_spec, is_zero, number, selector,
};
use crate::field::{FieldError, Path};
use crate::json;

/// How long a rollout may go without progress, in seconds.
const PROGRESS_DEADLINE: i64 = 600;
const STRATEGIES: [&str; 2] = ["Recreate", "RollingUpdate"];

const COLUMNS: &[TableColumn] = &[
    NAME,
    READY,
    column(
        "Up-to-date",
        "string",
        "Pods that have the desired template.",
        |deployment, _| number(deployment, &["status", "updatedReplicas"]),
    ),
    column(
        "Available",
        "string",
        "Pods that are ready for at least minReadySeconds.",
        |deployment, _| number(deployment, &["status", "availableReplicas"]),
    ),
    AGE,
    CONTAINERS,
    IMAGES,
    wide(
        "Selector",
        "string",
        "Which pods are the deployment's.",
        |deployment, _| selector(deployment),
    ),
];

pub(in super::super) const KIND: Kind = Kind {
    group: "apps",
    kind: "Deployment",
    plural: "deployments",
    singular: "deployment",
    list_kind: "DeploymentList",
    short_names: &["deploy"],
    categories: &["all"],
    schema: "io.k8s.api.apps.v1.Deployment",
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
    prepare: |new, old| meta::with_status(new, old, json!({})),
    columns: COLUMNS,
    ..Kind::BASE
};

fn default(deployment: &mut Value) {
    let Some(spec) = json::object(deployment, "spec") else {
        return;
    };
    json::fill(spec, "replicas", 1);
    if let Some(strategy) = json::object(spec, "strategy") {
        json::fill_text(strategy, "type", "RollingUpdate");
        if json::text(strategy, &["type"]) == "RollingUpdate"
            && let Some(rolling) = json::object(strategy, "rollingUpdate")
        {
            json::fill(rolling, "maxUnavailable", "25%");
            json::fill(rolling, "maxSurge", "25%");
        }
    }
    json::fill(spec, "revisionHistoryLimit", REVISION_HISTORY);
    json::fill(spec, "progressDeadlineSeconds", PROGRESS_DEADLINE);
    default_spec(spec);
}

fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::check(new, old, true, NameRule::Subdomain, &mut errors);
    let path = Path::new("spec");
    let spec = json::at(new, &["spec"]);
    check_spec(spec, &path, "deployment", "ReplicaSet", &mut errors);
    strategy(spec, &path, &mut errors);
    meta::not_negative(spec, "progressDeadlineSeconds", &path, &mut errors);
    let least = json::int(spec, &["minReadySeconds"]).unwrap_or(0);
    if let Some(deadline) = json::int(spec, &["progressDeadlineSeconds"])
        && deadline <= least
    {
        errors.push(FieldError::invalid(
            &path.child("progressDeadlineSeconds"),
            deadline,
            "must be greater than minReadySeconds",
        ));
    }
    if let Some(old) = old {
        let before = json::at(old, &["spec"]);
        meta::immutable(spec, before, &["selector"], &path, &mut errors);
    }
    errors
}

fn strategy(spec: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let path = path.child("strategy");
    let strategy = json::at(spec, &["strategy"]);
    let rolling = json::at(strategy, &["rollingUpdate"]);
    let rolling_path = path.child("rollingUpdate");
    match json::text(strategy, &["type"]) {
        "Recreate" if !rolling.is_null() => errors.push(FieldError::forbidden(
            &rolling_path,
            "may not be specified when strategy `type` is 'Recreate'",
        )),
        "Recreate" => {}
        "RollingUpdate" => {
            check_amount(rolling, "maxUnavailable", &rolling_path, errors);
            check_amount(rolling, "maxSurge", &rolling_path, errors);
            let unavailable = json::at(rolling, &["maxUnavailable"]);
            if is_zero(unavailable) && is_zero(json::at(rolling, &["maxSurge"])) {
                errors.push(FieldError::invalid(
                    &rolling_path.child("maxUnavailable"),
                    unavailable.clone(),
                    "may not be 0 when `maxSurge` is 0",
                ));
            }
            check_percentage(rolling, "maxUnavailable", &rolling_path, errors);
        }
        other => errors.push(FieldError::not_supported(
            &path.child("type"),
            other,
            &STRATEGIES,
        )),
    }
}
