//! The checks of a training job's spec.

use serde_json::Value;

use super::elastic;
use crate::field::{FieldError, FieldErrorKind, Path};
use crate::json;
use crate::numbers::GANG_MEMBERS_MAX;
use crate::registry::meta::{self, NameRule};
use crate::registry::on_failure;
use crate::registry::pod::{check_quantity, check_template, default_template};
use crate::training::{MPI_JOB, ReplicaType, TrainingKind, XGBOOST_JOB};

const RESTART_POLICIES: [&str; 4] = ["Always", "OnFailure", "Never", "ExitCode"];
const CLEAN_POLICIES: [&str; 3] = ["All", "Running", "None"];

/// Checks a new job, or an update.
pub(super) fn validate(kind: &TrainingKind, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::check(new, old, true, NameRule::Dns1035, &mut errors);
    on_failure::check(new, &mut errors);
    let path = Path::new("spec");
    let spec = json::at(new, &["spec"]);
    let policy = path.child("runPolicy");
    run_policy(json::at(spec, &["runPolicy"]), &policy, &mut errors);
    replicas(kind, new, &path.child(kind.replicas_field), &mut errors);
    elastic::check(kind, spec, &path, &mut errors);
    let before = old.map(|old| json::at(old, &["spec"]));
    size(kind, spec, before, &path, &mut errors);
    elastic::check_processes(
        json::at(spec, &["nprocPerNode"]),
        &path.child("nprocPerNode"),
        &mut errors,
    );
    meta::one_of(
        spec,
        "successPolicy",
        &["", "AllWorkers"],
        &path,
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
        "kubeflow.org/mpi-operator",
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

fn replicas(kind: &TrainingKind, job: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let types: Vec<&str> = kind.roles.iter().map(|role| role.key()).collect();
    if kind.replica_specs(job).next().is_none() {
        errors.push(FieldError::required(path, "must be specified"));
    }
    let has = |role: ReplicaType| kind.replica_specs(job).any(|(key, _)| key == role.key());
    if has(ReplicaType::Chief) && has(ReplicaType::Master) {
        errors.push(FieldError::forbidden(
            &path.key("Master"),
            "must not be used with Chief: a job has one of them",
        ));
    }
    if kind.kind == MPI_JOB.kind && !has(ReplicaType::Launcher) {
        errors.push(FieldError::required(
            &path.key("Launcher"),
            "a job has one launcher, which runs mpirun",
        ));
    }
    if kind.kind == XGBOOST_JOB.kind && !has(ReplicaType::Master) {
        errors.push(FieldError::required(
            &path.key("Master"),
            "a job has one master, which runs the tracker",
        ));
    }
    for (key, replica) in kind.replica_specs(job) {
        let path = path.key(key);
        let Some(role) = kind.roles.iter().find(|role| role.key() == key) else {
            errors.push(FieldError::not_supported(&path, key.as_str(), &types));
            continue;
        };
        meta::one_of(replica, "restartPolicy", &RESTART_POLICIES, &path, errors);
        let count = json::int(replica, &["replicas"]);
        if role.is_single() && count != Some(1) {
            errors.push(FieldError::forbidden(&path.child("replicas"), "must be 1"));
        }
        meta::not_negative(replica, "replicas", &path, errors);
        template(replica, &path.child("template"), errors);
    }
}

/// Checks a replica's template in the form of the later pod, while the job stays as written.
fn template(replica: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if json::items(replica, &["template", "spec", "containers"]).is_empty() {
        let spec = path.child("spec");
        errors.push(FieldError::required(
            &spec.child("containers"),
            "must be specified",
        ));
        return;
    }
    let mut template = json::at(replica, &["template"]).clone();
    default_template(&mut template);
    let mut faults = Vec::new();
    check_template(&template, path, &mut faults);
    errors.extend(faults.into_iter().filter(|fault| !left_to_the_pod(fault)));
}

/// The training operator does not check volumes: it accepts a job whose container mounts an undeclared volume, the API
/// refuses the pod, and an event on the job reports this. Existing manifests rely on it.
fn left_to_the_pod(fault: &FieldError) -> bool {
    fault.kind == FieldErrorKind::NotFound && fault.path.contains(".volumeMounts[")
}

/// Checks that the job is no larger than a gang may be. A number that was stored before that bound stays: the other
/// fields of its object can still be changed, and its finalizers removed.
fn size(
    kind: &TrainingKind,
    spec: &Value,
    before: Option<&Value>,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    let changed_count = |way: &[&str]| {
        let had = before.and_then(|before| json::int(before, way));
        json::int(spec, way).filter(|count| had != Some(*count))
    };
    // What the other replica types take; a number that is not in order is refused where it stands.
    let of = |role: &ReplicaType| {
        let replica = json::at(spec, &[kind.replicas_field, role.key()]);
        let count = json::int(replica, &["replicas"]).unwrap_or(1);
        if replica.is_null() {
            0
        } else {
            count.clamp(0, GANG_MEMBERS_MAX)
        }
    };
    let specs = path.child(kind.replicas_field);
    for role in kind.roles {
        let others = kind.roles.iter().filter(|other| *other != role).map(of);
        let most = (GANG_MEMBERS_MAX - others.sum::<i64>()).max(0);
        let detail =
            || format!("must be at most {most}, because a job has at most {GANG_MEMBERS_MAX} pods");
        let replica = specs.key(role.key());
        if !role.is_single()
            && let Some(count) = changed_count(&[kind.replicas_field, role.key(), "replicas"])
            && count > most
        {
            errors.push(FieldError::invalid(
                &replica.child("replicas"),
                count,
                detail(),
            ));
        }
        if *role != ReplicaType::Worker {
            continue;
        }
        let elastic = path.child("elasticPolicy");
        for key in ["minReplicas", "maxReplicas"] {
            if let Some(count) = changed_count(&["elasticPolicy", key])
                && count > most
            {
                errors.push(FieldError::invalid(&elastic.child(key), count, detail()));
            }
        }
    }
}
