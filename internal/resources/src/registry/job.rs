//! Job, `batch/v1`: a number of pods that run to completion.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::columns::{AGE, NAME, column, instant, or_none, wide};
use super::meta::{self, NameRule};
use super::on_failure;
use super::pod::{check_template, default_template};
use super::{Kind, TableColumn};
use crate::field::{FieldError, Path};
use crate::json;
use crate::names;
use crate::selector::LabelSelector;
use crate::span::human_duration;
use crate::syntax;

const BACKOFF_LIMIT: i64 = 6;
const PARALLELISM_MAX: i64 = 100_000;
const LIMITS: [&str; 7] = [
    "parallelism",
    "completions",
    "activeDeadlineSeconds",
    "backoffLimit",
    "ttlSecondsAfterFinished",
    "backoffLimitPerIndex",
    "maxFailedIndexes",
];
const FIXED: [&str; 6] = [
    "selector",
    "completionMode",
    "podFailurePolicy",
    "backoffLimitPerIndex",
    "managedBy",
    "successPolicy",
];

const COLUMNS: &[TableColumn] = &[
    NAME,
    column("Status", "string", "Status of the job.", |job, _| {
        Value::from(status(job))
    }),
    column(
        "Completions",
        "string",
        "Pods that succeeded, of those wanted.",
        |job, _| completions(job),
    ),
    column(
        "Duration",
        "string",
        "Time required to complete the job.",
        duration,
    ),
    AGE,
    wide(
        "Containers",
        "string",
        "Names of each container in the template.",
        |job, _| containers(job, "name"),
    ),
    wide(
        "Images",
        "string",
        "Images referenced by each container in the template.",
        |job, _| containers(job, "image"),
    ),
    wide(
        "Selector",
        "string",
        "Which pods are the job's.",
        |job, _| {
            let pairs: Vec<String> = json::texts(job, &["spec", "selector", "matchLabels"])
                .into_iter()
                .map(|(k, v)| format!("{k}={v}"))
                .collect();
            or_none(&pairs.join(","))
        },
    ),
];

pub(super) const KIND: Kind = Kind {
    group: "batch",
    kind: "Job",
    plural: "jobs",
    singular: "job",
    list_kind: "JobList",
    categories: &["all"],
    schema: "io.k8s.api.batch.v1.Job",
    status: true,
    generation: true,
    default,
    validate,
    prepare: |new, old| meta::with_status(new, old, json!({})),
    columns: COLUMNS,
    fields: &[("status.successful", |job| {
        json::int(job, &["status", "succeeded"])
            .unwrap_or(0)
            .to_string()
    })],
    ..Kind::BASE
};

fn default(job: &mut Value) {
    let name = json::text(job, &["metadata", "name"]).to_owned();
    let uid = json::text(job, &["metadata", "uid"]).to_owned();
    let Some(spec) = json::object(job, "spec") else {
        return;
    };
    if !json::has(spec, &["completions"]) && !json::has(spec, &["parallelism"]) {
        json::fill(spec, "completions", 1);
    }
    json::fill(spec, "parallelism", 1);
    let per_index = json::has(spec, &["backoffLimitPerIndex"]);
    json::fill(
        spec,
        "backoffLimit",
        if per_index {
            i64::from(i32::MAX)
        } else {
            BACKOFF_LIMIT
        },
    );
    json::fill_text(spec, "completionMode", "NonIndexed");
    json::fill(spec, "suspend", false);
    json::fill(spec, "manualSelector", false);
    let replace = if json::has(spec, &["podFailurePolicy"]) {
        "Failed"
    } else {
        "TerminatingOrFailed"
    };
    json::fill_text(spec, "podReplacementPolicy", replace);
    if let Some(template) = json::object(spec, "template") {
        default_template(template);
    }
    if !uid.is_empty() && !json::truth(spec, &["manualSelector"]) {
        generate_selector(spec, &name, &uid);
    }
    let labels = json::at(spec, &["template", "metadata", "labels"]).clone();
    let bare = json::members(job, &["metadata", "labels"]).next().is_none();
    if bare
        && labels.as_object().is_some_and(|map| !map.is_empty())
        && let Some(meta) = json::object(job, "metadata").and_then(Value::as_object_mut)
    {
        meta.insert("labels".to_owned(), labels);
    }
}

/// Sets the labels that mark pods as this job's, and the selector for them.
fn generate_selector(spec: &mut Value, name: &str, uid: &str) {
    if let Some(labels) = json::object(spec, "template")
        .and_then(|template| json::object(template, "metadata"))
        .and_then(|meta| json::object(meta, "labels"))
    {
        for (key, value) in [
            (names::BATCH_JOB_NAME, name),
            (names::LEGACY_JOB_NAME, name),
            (names::BATCH_CONTROLLER_UID, uid),
            (names::LEGACY_CONTROLLER_UID, uid),
        ] {
            json::fill(labels, key, value);
        }
    }
    json::fill(
        spec,
        "selector",
        json!({ "matchLabels": { names::BATCH_CONTROLLER_UID: uid } }),
    );
}

fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::check(new, old, true, NameRule::Subdomain, &mut errors);
    on_failure::refuse(new, old, "spec.podFailurePolicy", &mut errors);
    let path = Path::new("spec");
    let spec = json::at(new, &["spec"]);
    check_selector(new, spec, &path, &mut errors);
    check_numbers(spec, &path, &mut errors);
    check_mode(new, spec, &path, &mut errors);
    let modes = ["Failed", "TerminatingOrFailed"];
    meta::one_of(spec, "podReplacementPolicy", &modes, &path, &mut errors);
    let template_path = path.child("template");
    check_template(json::at(spec, &["template"]), &template_path, &mut errors);
    check_restart_policy(spec, &template_path, &mut errors);
    if let Some(old) = old {
        check_change(spec, json::at(old, &["spec"]), &path, &mut errors);
    }
    errors
}

/// Checks the numbers of a Job's spec.
pub(super) fn check_numbers(spec: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    for key in LIMITS {
        meta::not_negative(spec, key, path, errors);
    }
}

/// Checks that the pods of a Job's spec can complete; `path` is the template's.
pub(super) fn check_restart_policy(spec: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let path = path.child("spec");
    let path = path.child("restartPolicy");
    match json::text(spec, &["template", "spec", "restartPolicy"]) {
        "" | "Always" => {
            let detail = "valid values: \"OnFailure\", \"Never\"";
            errors.push(FieldError::required(&path, detail));
        }
        "OnFailure" if json::has(spec, &["podFailurePolicy"]) => {
            let detail = "only \"Never\" is supported when podFailurePolicy is specified";
            errors.push(FieldError::invalid(&path, "OnFailure", detail));
        }
        "OnFailure" | "Never" => {}
        other => errors.push(FieldError::not_supported(
            &path,
            other,
            &["OnFailure", "Never"],
        )),
    }
}

fn check_selector(job: &Value, spec: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let selector = json::at(spec, &["selector"]);
    if selector.is_null() {
        errors.push(FieldError::required(&path.child("selector"), ""));
        return;
    }
    meta::selector(selector, &path.child("selector"), errors);
    let labels = json::texts(spec, &["template", "metadata", "labels"]);
    let parsed = serde_json::from_value(selector.clone())
        .ok()
        .and_then(|s| LabelSelector::from_k8s(&s).ok());
    if parsed.is_some_and(|selector| !selector.matches(&labels)) {
        let template = path.child("template");
        let meta = template.child("metadata");
        let value = json::at(spec, &["template", "metadata", "labels"]).clone();
        let detail = "`selector` does not match template `labels`";
        errors.push(FieldError::invalid(&meta.child("labels"), value, detail));
    }
    if json::truth(spec, &["manualSelector"]) {
        return;
    }
    let expected = [
        (
            names::LEGACY_CONTROLLER_UID,
            json::text(job, &["metadata", "uid"]),
        ),
        (
            names::LEGACY_JOB_NAME,
            json::text(job, &["metadata", "name"]),
        ),
    ];
    for (key, value) in expected {
        if labels.get(key).map(String::as_str) != Some(value) {
            let template = path.child("template");
            let meta = template.child("metadata");
            let all = json::at(spec, &["template", "metadata", "labels"]).clone();
            errors.push(FieldError::invalid(
                &meta.child("labels"),
                all,
                format!("must be '{value}' for key '{key}'"),
            ));
        }
    }
}

/// Checks the fields that depend on the completion mode of a Job's spec.
pub(super) fn check_mode(job: &Value, spec: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    meta::one_of(
        spec,
        "completionMode",
        &["NonIndexed", "Indexed"],
        path,
        errors,
    );
    let number = |key: &str| json::int(spec, &[key]);
    if number("maxFailedIndexes").is_some() && number("backoffLimitPerIndex").is_none() {
        let detail = "when maxFailedIndexes is specified";
        errors.push(FieldError::required(
            &path.child("backoffLimitPerIndex"),
            detail,
        ));
    }
    if json::text(spec, &["completionMode"]) != "Indexed" {
        for key in ["backoffLimitPerIndex", "maxFailedIndexes", "successPolicy"] {
            let value = json::at(spec, &[key]);
            if !value.is_null() {
                errors.push(FieldError::invalid(
                    &path.child(key),
                    value.clone(),
                    "requires indexed completion mode",
                ));
            }
        }
        return;
    }
    match number("completions") {
        None => errors.push(FieldError::required(
            &path.child("completions"),
            "when completion mode is Indexed",
        )),
        Some(count) if count > 0 => {
            let name = json::text(job, &["metadata", "name"]);
            let host = format!("{name}-{}", count - 1);
            if !syntax::dns1123_label(&host).is_empty() {
                let detail = format!("will not able to create pod with invalid DNS label: {host}");
                errors.push(FieldError::invalid("metadata.name", name, detail));
            }
        }
        Some(_) => {}
    }
    if let Some(many) = number("parallelism").filter(|n| *n > PARALLELISM_MAX) {
        let detail = format!(
            "must be less than or equal to {PARALLELISM_MAX} when completion mode is Indexed"
        );
        errors.push(FieldError::invalid(
            &path.child("parallelism"),
            many,
            detail,
        ));
    }
    if let (Some(failed), Some(all)) = (number("maxFailedIndexes"), number("completions"))
        && failed > all
    {
        let detail = "must be less than or equal to completions";
        errors.push(FieldError::invalid(
            &path.child("maxFailedIndexes"),
            failed,
            detail,
        ));
    }
}

fn check_change(new: &Value, old: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let indexed = json::text(new, &["completionMode"]) == "Indexed";
    let (now, before) = (
        json::int(new, &["completions"]),
        json::int(old, &["completions"]),
    );
    if now != before {
        let value = json::at(new, &["completions"]).clone();
        if !indexed {
            errors.push(FieldError::invalid(
                &path.child("completions"),
                value,
                meta::IMMUTABLE,
            ));
        } else if now.is_none() || now != json::int(new, &["parallelism"]) {
            let detail = "can only be modified in tandem with .spec.parallelism such that parallelism == completions";
            errors.push(FieldError::invalid(
                &path.child("completions"),
                value,
                detail,
            ));
        }
    }
    meta::immutable(new, old, &FIXED, path, errors);
    // A suspended job may still be placed elsewhere.
    let held = json::truth(old, &["suspend"]);
    if !same_template(
        json::at(new, &["template"]),
        json::at(old, &["template"]),
        held,
    ) {
        let value = json::at(new, &["template"]).clone();
        errors.push(FieldError::invalid(
            &path.child("template"),
            value,
            meta::IMMUTABLE,
        ));
    }
}

fn same_template(new: &Value, old: &Value, held: bool) -> bool {
    if json::same(new, old) {
        return true;
    }
    if !held {
        return false;
    }
    let mut before = old.clone();
    for (parent, key) in [
        ("spec", "nodeSelector"),
        ("spec", "tolerations"),
        ("spec", "schedulingGates"),
        ("spec", "affinity"),
        ("metadata", "annotations"),
        ("metadata", "labels"),
    ] {
        if let Some(map) = json::object(&mut before, parent) {
            map[key] = json::at(new, &[parent, key]).clone();
        }
    }
    json::same(new, &before)
}

fn condition(job: &Value, kind: &str) -> bool {
    json::items(job, &["status", "conditions"])
        .iter()
        .any(|c| json::text(c, &["type"]) == kind && json::text(c, &["status"]) == "True")
}

fn status(job: &Value) -> &'static str {
    if condition(job, "Complete") {
        "Complete"
    } else if condition(job, "Failed") {
        "Failed"
    } else if json::has(job, &["metadata", "deletionTimestamp"]) {
        "Terminating"
    } else if condition(job, "Suspended") {
        "Suspended"
    } else if condition(job, "FailureTarget") {
        "FailureTarget"
    } else if condition(job, "SuccessCriteriaMet") {
        "SuccessCriteriaMet"
    } else {
        "Running"
    }
}

fn completions(job: &Value) -> Value {
    let done = json::int(job, &["status", "succeeded"]).unwrap_or(0);
    let parallelism = json::int(job, &["spec", "parallelism"]).unwrap_or(0);
    Value::from(match json::int(job, &["spec", "completions"]) {
        Some(wanted) => format!("{done}/{wanted}"),
        None if parallelism > 1 => format!("{done}/1 of {parallelism}"),
        None => format!("{done}/1"),
    })
}

fn duration(job: &Value, now: Timestamp) -> Value {
    let Some(start) = instant(json::at(job, &["status", "startTime"])) else {
        return Value::from("");
    };
    let end = instant(json::at(job, &["status", "completionTime"])).unwrap_or(now);
    Value::from(human_duration(end.as_second() - start.as_second()))
}

fn containers(job: &Value, key: &str) -> Value {
    let texts: Vec<&str> = json::items(job, &["spec", "template", "spec", "containers"])
        .iter()
        .map(|c| json::text(c, &[key]))
        .collect();
    Value::from(texts.join(","))
}
