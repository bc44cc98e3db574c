//! PyTorchJob: the training operator's defaults and checks, except two: a container need not be called `pytorch` (the
//! first container trains), and it need not name an image.

use kube::CustomResourceExt as _;
use serde_json::Value;

use super::columns::{AGE, NAME, of, or_none, wide};
use super::meta::{self, NameRule};
use super::pod::{check_quantity, check_template, default_template};
use super::{Kind, ScalePaths, Source, TableColumn};
use crate::field::{FieldError, FieldErrorKind, Path};
use crate::json;
use crate::kinds;
use crate::names;
use crate::numbers::GANG_MEMBERS_MAX;

const TYPES: [&str; 2] = ["Master", "Worker"];
const RESTART_POLICIES: [&str; 4] = ["Always", "OnFailure", "Never", "ExitCode"];
const CLEAN_POLICIES: [&str; 3] = ["All", "Running", "None"];
const REPLICAS: [&str; 2] = ["spec", "pytorchReplicaSpecs"];

const COLUMNS: &[TableColumn] = &[
    NAME,
    of(
        "State",
        "string",
        "The state of the job.",
        Source::Approximated(
            |job, _| Value::from(state(job)),
            ".status.conditions[-1:].type",
        ),
    ),
    AGE,
    wide(
        "Ready",
        "string",
        "Replicas that run or are done, of all.",
        |job, _| Value::from(ready(job)),
    ),
    wide("Queue", "string", "The queue it waits in.", |job, _| {
        or_none(queue(job))
    }),
];

pub(super) const KIND: Kind = Kind {
    group: "kubeflow.org",
    kind: "PyTorchJob",
    plural: "pytorchjobs",
    singular: "pytorchjob",
    list_kind: "PyTorchJobList",
    categories: &["all"],
    definition: Some(kinds::PyTorchJob::crd),
    schema: "org.kubeflow.v1.PyTorchJob",
    status: true,
    scale: Some(ScalePaths {
        spec_replicas: ".spec.pytorchReplicaSpecs.Worker.replicas",
        status_replicas: ".status.replicaStatuses.Worker.active",
        label_selector: Some(".status.replicaStatuses.Worker.selector"),
    }),
    generation: true,
    default,
    validate,
    prepare: meta::without_status,
    columns: COLUMNS,
    ..Kind::BASE
};

fn default(job: &mut Value) {
    let Some(spec) = json::object(job, "spec") else {
        return;
    };
    if let Some(policy) = json::object(spec, "runPolicy") {
        json::fill_text(policy, "cleanPodPolicy", "None");
        json::fill(policy, "suspend", false);
        if let Some(scheduling) = json::child(policy, "schedulingPolicy") {
            json::canonical_quantities(scheduling, "minResources");
        }
    }
    if let Some(specs) = spec
        .get_mut("pytorchReplicaSpecs")
        .and_then(Value::as_object_mut)
    {
        for right in TYPES {
            let written = specs
                .keys()
                .find(|key| key.eq_ignore_ascii_case(right) && key.as_str() != right)
                .cloned();
            if let Some(written) = written
                && !specs.contains_key(right)
                && let Some(value) = specs.remove(&written)
            {
                specs.insert(right.to_owned(), value);
            }
        }
        for (_, replica) in specs.iter_mut() {
            json::fill(replica, "replicas", 1);
            json::fill_text(replica, "restartPolicy", "OnFailure");
        }
    }
    let workers = json::at(spec, &["pytorchReplicaSpecs", "Worker", "replicas"]).clone();
    let old_processes = json::int(spec, &["elasticPolicy", "nProcPerNode"]).is_some();
    if let Some(elastic) = json::child(spec, "elasticPolicy") {
        let (min, max) = (
            json::at(elastic, &["minReplicas"]).clone(),
            json::at(elastic, &["maxReplicas"]).clone(),
        );
        let fallback = if workers.is_null() {
            Value::from(1)
        } else {
            workers
        };
        json::fill(
            elastic,
            "minReplicas",
            if max.is_null() { fallback.clone() } else { max },
        );
        json::fill(
            elastic,
            "maxReplicas",
            if min.is_null() { fallback } else { min },
        );
        json::fill_text(elastic, "rdzvBackend", "c10d");
    }
    if !old_processes {
        json::fill(spec, "nprocPerNode", "auto");
    }
}

fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::check(new, old, true, NameRule::Dns1035, &mut errors);
    let path = Path::new("spec");
    let spec = json::at(new, &["spec"]);
    let policy = path.child("runPolicy");
    run_policy(json::at(spec, &["runPolicy"]), &policy, &mut errors);
    replicas(new, &path.child("pytorchReplicaSpecs"), &mut errors);
    elastic(spec, &path, &mut errors);
    let before = old.map(|old| json::at(old, &["spec"]));
    size(spec, before, &path, &mut errors);
    processes(
        json::at(spec, &["nprocPerNode"]),
        &path.child("nprocPerNode"),
        &mut errors,
    );
    if let Some(old) = old {
        let before = json::at(old, &["spec", "runPolicy"]);
        meta::immutable(
            json::at(spec, &["runPolicy"]),
            before,
            &["managedBy"],
            &policy,
            &mut errors,
        );
    }
    errors
}

fn run_policy(policy: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    meta::one_of(policy, "cleanPodPolicy", &CLEAN_POLICIES, path, errors);
    for key in [
        "ttlSecondsAfterFinished",
        "activeDeadlineSeconds",
        "backoffLimit",
    ] {
        meta::not_negative(policy, key, path, errors);
    }
    let manager = json::text(policy, &["managedBy"]);
    let managers = [
        "kubeflow.org/training-operator",
        "kueue.x-k8s.io/multikueue",
    ];
    if !manager.is_empty() && !managers.contains(&manager) {
        errors.push(FieldError::not_supported(
            &path.child("managedBy"),
            manager,
            &managers,
        ));
    }
    let scheduling = json::at(policy, &["schedulingPolicy"]);
    let path = path.child("schedulingPolicy");
    for key in ["minAvailable", "scheduleTimeoutSeconds"] {
        meta::not_negative(scheduling, key, &path, errors);
    }
    for (name, value) in json::members(scheduling, &["minResources"]) {
        check_quantity(name, value, &path.child("minResources").key(name), errors);
    }
}

fn replicas(job: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if json::members(job, &REPLICAS).next().is_none() {
        errors.push(FieldError::required(path, "must be specified"));
    }
    for (kind, replica) in json::members(job, &REPLICAS) {
        let path = path.key(kind);
        if !TYPES.contains(&kind.as_str()) {
            errors.push(FieldError::not_supported(&path, kind.as_str(), &TYPES));
            continue;
        }
        meta::one_of(replica, "restartPolicy", &RESTART_POLICIES, &path, errors);
        let count = json::int(replica, &["replicas"]);
        if kind == "Master" && count != Some(1) {
            errors.push(FieldError::forbidden(&path.child("replicas"), "must be 1"));
        }
        meta::not_negative(replica, "replicas", &path, errors);
        let template_path = path.child("template");
        if json::items(replica, &["template", "spec", "containers"]).is_empty() {
            let spec = template_path.child("spec");
            errors.push(FieldError::required(
                &spec.child("containers"),
                "must be specified",
            ));
            continue;
        }
        // Checked in the form of the later pod, while the job stays as written.
        let mut template = json::at(replica, &["template"]).clone();
        default_template(&mut template);
        let mut faults = Vec::new();
        check_template(&template, &template_path, &mut faults);
        errors.extend(faults.into_iter().filter(|fault| !left_to_the_pod(fault)));
    }
}

/// The training operator does not check volumes: it accepts a job whose container mounts an undeclared volume, the API
/// refuses the pod, and an event on the job reports this. Existing manifests rely on it.
fn left_to_the_pod(fault: &FieldError) -> bool {
    fault.kind == FieldErrorKind::NotFound && fault.path.contains(".volumeMounts[")
}

fn elastic(spec: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
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
    if let Some(workers) = json::int(spec, &["pytorchReplicaSpecs", "Worker", "replicas"])
        && let Some(max) = max
        && workers > max
    {
        let specs = path.child("pytorchReplicaSpecs");
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

/// Checks that the job is no larger than a gang may be. A number that was stored before that bound stays: the other
/// fields of its object can still be changed, and its finalizers removed.
fn size(spec: &Value, before: Option<&Value>, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let said = |way: &[&str]| {
        let had = before.and_then(|before| json::int(before, way));
        json::int(spec, way).filter(|count| had != Some(*count))
    };
    let master = i64::from(json::has(spec, &["pytorchReplicaSpecs", "Master"]));
    let most = GANG_MEMBERS_MAX - master;
    let detail =
        || format!("must be at most {most}, because a job has at most {GANG_MEMBERS_MAX} pods");
    let specs = path.child("pytorchReplicaSpecs");
    let worker = specs.key("Worker");
    if let Some(count) = said(&["pytorchReplicaSpecs", "Worker", "replicas"])
        && count > most
    {
        errors.push(FieldError::invalid(
            &worker.child("replicas"),
            count,
            detail(),
        ));
    }
    let elastic = path.child("elasticPolicy");
    for key in ["minReplicas", "maxReplicas"] {
        if let Some(count) = said(&["elasticPolicy", key])
            && count > most
        {
            errors.push(FieldError::invalid(&elastic.child(key), count, detail()));
        }
    }
}

fn processes(value: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
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

fn state(job: &Value) -> &str {
    let conditions = json::items(job, &["status", "conditions"]);
    let last = conditions
        .iter()
        .rev()
        .find(|c| json::text(c, &["status"]) == "True")
        .or(conditions.last());
    last.map_or("", |c| json::text(c, &["type"]))
}

fn ready(job: &Value) -> String {
    let wanted: i64 = json::members(job, &REPLICAS)
        .map(|(_, r)| json::int(r, &["replicas"]).unwrap_or(1))
        .fold(0, i64::saturating_add);
    let there: i64 = json::members(job, &["status", "replicaStatuses"])
        .map(|(_, s)| {
            let count = |key: &str| json::int(s, &[key]).unwrap_or(0);
            count("active").saturating_add(count("succeeded"))
        })
        .fold(0, i64::saturating_add);
    format!("{there}/{wanted}")
}

/// A job's queue: its scheduling policy's, else its label's or annotation's, else the default.
fn queue(job: &Value) -> &str {
    let asked = [
        json::text(job, &["spec", "runPolicy", "schedulingPolicy", "queue"]),
        json::text(job, &["metadata", "labels", names::QUEUE_NAME]),
        json::text(job, &["metadata", "annotations", names::QUEUE_NAME]),
    ];
    asked
        .into_iter()
        .find(|name| !name.is_empty())
        .unwrap_or(names::DEFAULT_QUEUE)
}
