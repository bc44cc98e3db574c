//! What may change of a JobSet: whether it is suspended, when it is deleted, and, while it is suspended, where its pods
//! may run.

use serde_json::Value;

use super::super::meta;
use crate::field::{FieldError, Path};
use crate::json;

const FIXED: [&str; 6] = [
    "network",
    "successPolicy",
    "failurePolicy",
    "startupPolicy",
    "managedBy",
    "coordinator",
];
/// The fields of a pod's template that may change while the JobSet is suspended, as in JobSet's webhook.
const PLACEMENT: [(&str, &str); 5] = [
    ("metadata", "labels"),
    ("metadata", "annotations"),
    ("spec", "nodeSelector"),
    ("spec", "tolerations"),
    ("spec", "schedulingGates"),
];

pub(super) fn check(new: &Value, old: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    meta::immutable(new, old, &FIXED, path, errors);
    let held = [new, old]
        .iter()
        .any(|spec| json::truth(spec, &["suspend"]));
    let (now, before) = (
        json::at(new, &["replicatedJobs"]),
        json::at(old, &["replicatedJobs"]),
    );
    let mut masked = before.clone();
    if held {
        let jobs = masked.as_array_mut().into_iter().flatten();
        for (job, now) in jobs.zip(json::items(now, &[])) {
            mask(job, now);
        }
    }
    if !json::same(now, &masked) {
        let detail = "field is immutable; while the JobSet is suspended, labels, annotations, nodeSelector, tolerations \
                      and schedulingGates of its pods may change";
        errors.push(FieldError::invalid(
            &path.child("replicatedJobs"),
            now.clone(),
            detail,
        ));
    }
}

/// Takes over the fields that may change.
fn mask(job: &mut Value, now: &Value) {
    let pod = ["template", "spec", "template"];
    let mut at = job;
    for step in pod {
        let Some(next) = json::object(at, step) else {
            return;
        };
        at = next;
    }
    for (parent, key) in PLACEMENT {
        let value = json::at(now, &["template", "spec", "template", parent, key]);
        match json::object(at, parent).and_then(Value::as_object_mut) {
            Some(map) if value.is_null() => drop(map.remove(key)),
            Some(map) => drop(map.insert(key.to_owned(), value.clone())),
            None => {}
        }
    }
}
