//! Elastic policies: their defaults, and the checks of their bounds.

use serde_json::Value;

use crate::field::{FieldError, Path};
use crate::json;
use crate::registry::meta;
use crate::training::{PYTORCH_JOB, TrainingKind};

/// Fills in absent bounds: an absent one is the other, or the workers that the job asks for.
pub(super) fn default_bounds(kind: &TrainingKind, job: &mut Value) {
    let Some(spec) = json::object(job, "spec") else {
        return;
    };
    let workers = json::at(spec, &[kind.replicas_field, "Worker", "replicas"]).clone();
    let Some(elastic) = json::child(spec, "elasticPolicy") else {
        return;
    };
    let (min, max) = (
        json::at(elastic, &["minReplicas"]).clone(),
        json::at(elastic, &["maxReplicas"]).clone(),
    );
    let fallback = if workers.is_null() {
        Value::from(1)
    } else {
        workers
    };
    let or = |given: Value| {
        if given.is_null() {
            fallback.clone()
        } else {
            given
        }
    };
    json::fill(elastic, "minReplicas", or(max));
    json::fill(elastic, "maxReplicas", or(min));
}

/// The defaults of a PyTorchJob's elastic policy and of `nprocPerNode`.
pub(super) fn default_torch(job: &mut Value) {
    default_bounds(&PYTORCH_JOB, job);
    let Some(spec) = json::object(job, "spec") else {
        return;
    };
    let old_processes = json::int(spec, &["elasticPolicy", "nProcPerNode"]).is_some();
    if let Some(elastic) = json::child(spec, "elasticPolicy") {
        json::fill_text(elastic, "rdzvBackend", "c10d");
    }
    if !old_processes {
        json::fill(spec, "nprocPerNode", "auto");
    }
}

/// Checks an elastic policy.
pub(super) fn check(
    kind: &TrainingKind,
    spec: &Value,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    let policy = json::at(spec, &["elasticPolicy"]);
    if policy.is_null() {
        return;
    }
    let elastic = path.child("elasticPolicy");
    let (min, max) = (
        json::int(policy, &["minReplicas"]),
        json::int(policy, &["maxReplicas"]),
    );
    for (key, value) in [("minReplicas", min), ("maxReplicas", max)] {
        if let Some(value) = value.filter(|n| *n < 1) {
            errors.push(FieldError::invalid(
                &elastic.child(key),
                value,
                "must be greater than or equal to 1",
            ));
        }
    }
    if let (Some(min), Some(max)) = (min, max)
        && min > max
    {
        let detail = format!("must be less than or equal to maxReplicas {max}");
        errors.push(FieldError::invalid(
            &elastic.child("minReplicas"),
            min,
            detail,
        ));
    }
    if let Some(workers) = json::int(spec, &[kind.replicas_field, "Worker", "replicas"])
        && let Some(max) = max
        && workers > max
    {
        let specs = path.child(kind.replicas_field);
        let worker = specs.key("Worker");
        let detail = format!("must be less than or equal to elasticPolicy.maxReplicas {max}");
        errors.push(FieldError::invalid(
            &worker.child("replicas"),
            workers,
            detail,
        ));
    }
    let backend = json::text(policy, &["rdzvBackend"]);
    if !matches!(backend, "" | "c10d" | "etcd" | "etcd-v2" | "static") {
        let known = ["c10d", "etcd", "etcd-v2", "static"];
        errors.push(FieldError::not_supported(
            &elastic.child("rdzvBackend"),
            backend,
            &known,
        ));
    }
    if let Some(port) = json::int(policy, &["rdzvPort"]) {
        for fault in crate::syntax::port_number(port) {
            errors.push(FieldError::invalid(&elastic.child("rdzvPort"), port, fault));
        }
    }
    meta::not_negative(policy, "maxRestarts", &elastic, errors);
    if json::int(policy, &["nProcPerNode"]).is_some() && json::has(spec, &["nprocPerNode"]) {
        errors.push(FieldError::forbidden(
            &elastic.child("nProcPerNode"),
            "must not be used with spec.nprocPerNode",
        ));
    }
}

/// Checks `nprocPerNode`.
pub(super) fn check_processes(value: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let fine = match value {
        Value::Null => true,
        Value::String(text) => {
            matches!(text.as_str(), "auto" | "cpu" | "gpu")
                || text.parse::<u32>().is_ok_and(|n| n > 0)
        }
        Value::Number(number) => number.as_i64().is_some_and(|n| n > 0),
        _ => false,
    };
    if !fine {
        errors.push(FieldError::invalid(
            path,
            value.clone(),
            "must be auto, cpu, gpu or a number greater than 0",
        ));
    }
}
