//! JobSet: the defaults and checks of its webhook, and refusals of what Muster does not run. A template's pods are
//! checked in the form of the later pods, while the JobSet stays as written.

mod policies;
mod update;

use std::collections::BTreeSet;

use k8s_openapi::api::batch::v1::JobTemplateSpec;
use kube::CustomResourceExt as _;
use serde_json::{Value, json};

use super::columns::{AGE, NAME, of};
use super::job::{check_mode, check_numbers, check_restart_policy};
use super::meta::{self, NameRule};
use super::on_failure;
use super::pod::{check_template, default_template};
use super::{Kind, Source, TableColumn};
use crate::field::{FieldError, Path};
use crate::jobset::EXCLUSIVE_TOPOLOGY;
use crate::json;
use crate::kinds;
use crate::numbers::GANG_MEMBERS_MAX;
use crate::syntax;

/// The longest host name, which a pod has from its JobSet, its job, and two indexes.
const HOST_NAME_MAX: usize = 63;
/// The characters that a pod's generated name has after those of its host name.
const SUFFIX: usize = 6;
/// The most jobs of one JobSet.
const JOBS_MAX: usize = 100;
/// The most Jobs of all jobs of one JobSet together.
const REPLICAS_MAX: i64 = 5_000;
/// The longest `managedBy`.
const MANAGER_MAX: usize = 63;
const STATUSES: [&str; 2] = ["Ready", "Complete"];

const COLUMNS: &[TableColumn] = &[
    NAME,
    of(
        "TerminalState",
        "string",
        "Final state of JobSet",
        Source::Field(&["status", "terminalState"]),
    ),
    of(
        "Restarts",
        "string",
        "Number of restarts",
        Source::Field(&["status", "restarts"]),
    ),
    of(
        "Suspended",
        "string",
        "JobSet suspended",
        Source::Field(&["spec", "suspend"]),
    ),
    AGE,
];

pub(super) const KIND: Kind = Kind {
    group: crate::jobset::GROUP,
    version: "v1alpha2",
    kind: crate::jobset::KIND,
    plural: "jobsets",
    singular: "jobset",
    list_kind: "JobSetList",
    definition: Some(kinds::JobSet::crd),
    schema: "io.x-k8s.jobset.v1alpha2.JobSet",
    status: true,
    generation: true,
    default: |job_set| {
        if let Some(spec) = json::object(job_set, "spec") {
            default_spec(spec);
        }
    },
    validate,
    prepare: meta::without_status,
    columns: COLUMNS,
    ..Kind::BASE
};

/// The defaults of JobSet's webhook.
fn default_spec(spec: &mut Value) {
    json::fill(spec, "successPolicy", json!({"operator": "All"}));
    json::fill(
        spec,
        "startupPolicy",
        json!({"startupPolicyOrder": "AnyOrder"}),
    );
    if let Some(network) = json::object(spec, "network") {
        json::fill(network, "enableDNSHostnames", true);
        json::fill(network, "publishNotReadyAddresses", true);
    }
    for job in json::list(spec, "replicatedJobs") {
        json::fill(job, "replicas", 1);
        json::fill_text(job, "groupName", "default");
        let Some(template) = json::object(job, "template") else {
            continue;
        };
        if let Some(spec) = json::object(template, "spec") {
            json::fill_text(spec, "completionMode", "Indexed");
            let pod = json::object(spec, "template").and_then(|pod| json::object(pod, "spec"));
            if let Some(pod) = pod {
                json::fill_text(pod, "restartPolicy", "OnFailure");
            }
        }
    }
    policies::default(spec);
}

fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::check(new, old, true, NameRule::Dns1035, &mut errors);
    on_failure::refuse(new, old, "spec.failurePolicy", &mut errors);
    let path = Path::new("spec");
    let spec = json::at(new, &["spec"]);
    refuse_exclusive(
        json::at(new, &["metadata"]),
        &Path::new("metadata"),
        &mut errors,
    );
    let name = json::text(new, &["metadata", "name"]);
    let before = old.map(|old| json::at(old, &["spec"]));
    check_spec(spec, before, name, &path, &mut errors);
    if let Some(before) = before {
        update::check(spec, before, &path, &mut errors);
    }
    errors
}

/// Checks the spec of a JobSet of this name; of a runtime's template, which has no name yet, pods' names are checked
/// later.
pub(super) fn check_spec(
    spec: &Value,
    before: Option<&Value>,
    name: &str,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    meta::not_negative(spec, "ttlSecondsAfterFinished", path, errors);
    manager(spec, path, errors);
    if !json::items(spec, &["volumeClaimPolicies"]).is_empty() {
        let detail = "Muster does not make these claims; create PersistentVolumeClaims and name them in the templates' volumes";
        errors.push(FieldError::forbidden(
            &path.child("volumeClaimPolicies"),
            detail,
        ));
    }
    network(spec, name, path, errors);
    let list = path.child("replicatedJobs");
    let jobs = json::items(spec, &["replicatedJobs"]);
    if jobs.is_empty() {
        let detail = "a JobSet has at least one job";
        errors.push(FieldError::required(&list, detail));
        return;
    }
    if jobs.len() > JOBS_MAX {
        errors.push(FieldError::too_many(&list, jobs.len(), JOBS_MAX));
        return;
    }
    let mut known = BTreeSet::new();
    for (i, job) in jobs.iter().enumerate() {
        replicated_job(job, i, name, &known, &list.index(i), errors);
        let own = json::text(job, &["name"]);
        if !known.insert(own) {
            let at = list.index(i);
            errors.push(FieldError::duplicate(&at.child("name"), own));
        }
    }
    sizes(spec, before, &list, errors);
    policies::check(spec, &known, path, errors);
}

/// Bounds the Jobs and the pods of all jobs; a JobSet that was stored with more can keep that many.
fn sizes(spec: &Value, before: Option<&Value>, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let totals = |spec: &Value| {
        let object = json!({ "spec": { "replicatedJobs": json::at(spec, &["replicatedJobs"]) } });
        let pods = crate::jobset::replicated_jobs(&object);
        let pods = pods
            .iter()
            .fold(0_i64, |sum, job| sum.saturating_add(job.pods));
        let replicas = json::items(spec, &["replicatedJobs"]).iter();
        let replicas = replicas.map(|job| json::int(job, &["replicas"]).unwrap_or(1));
        (
            replicas.fold(0_i64, |sum, one| sum.saturating_add(one.max(0))),
            pods,
        )
    };
    let (jobs, pods) = totals(spec);
    let (jobs_before, pods_before) = before.map_or((0, 0), totals);
    if jobs > jobs_before.max(REPLICAS_MAX) {
        let detail = format!("the replicas of all jobs together must be at most {REPLICAS_MAX}");
        errors.push(FieldError::invalid(path, jobs, detail));
    }
    if pods > pods_before.max(GANG_MEMBERS_MAX) {
        let detail = format!(
            "the pods of all jobs together must be at most {GANG_MEMBERS_MAX}, the most members of a gang"
        );
        errors.push(FieldError::invalid(path, pods, detail));
    }
}

fn manager(spec: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let manager = json::text(spec, &["managedBy"]);
    if manager.is_empty() {
        return;
    }
    let path = path.child("managedBy");
    if manager.len() > MANAGER_MAX {
        errors.push(FieldError::too_long(&path, MANAGER_MAX));
    }
    let domain = manager.split_once('/').filter(|(_, rest)| !rest.is_empty());
    if domain.is_none_or(|(domain, _)| !syntax::dns1123_subdomain(domain).is_empty()) {
        let detail = "must be a domain and a path, such as acme.io/foo";
        errors.push(FieldError::invalid(&path, manager, detail));
    }
}

fn network(spec: &Value, name: &str, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let subdomain = json::text(spec, &["network", "subdomain"]);
    let path = path.child("network");
    if !subdomain.is_empty() {
        // It is the name of a Service, too.
        for fault in syntax::dns1035_label(subdomain) {
            errors.push(FieldError::invalid(
                &path.child("subdomain"),
                subdomain,
                fault,
            ));
        }
    } else if name.len() > HOST_NAME_MAX {
        errors.push(FieldError::too_long("metadata.name", HOST_NAME_MAX));
    }
}

fn replicated_job(
    job: &Value,
    number: usize,
    job_set: &str,
    earlier: &BTreeSet<&str>,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    let name = json::text(job, &["name"]);
    if name.is_empty() {
        errors.push(FieldError::required(&path.child("name"), "name each job"));
    }
    for fault in syntax::dns1123_label(name)
        .into_iter()
        .filter(|_| !name.is_empty())
    {
        errors.push(FieldError::invalid(&path.child("name"), name, fault));
    }
    let group = json::text(job, &["groupName"]);
    for fault in syntax::dns1035_label(group)
        .into_iter()
        .filter(|_| !group.is_empty())
    {
        errors.push(FieldError::invalid(&path.child("groupName"), group, fault));
    }
    meta::not_negative(job, "replicas", path, errors);
    dependencies(job, number, earlier, path, errors);
    let spec = json::at(job, &["template", "spec"]);
    let last = |count: Option<i64>| count.unwrap_or(1).saturating_sub(1).max(0);
    let (replica, index) = (
        last(json::int(job, &["replicas"])),
        last(json::int(spec, &["completions"])),
    );
    let host = format!("{job_set}-{name}-{replica}-{index}");
    if !job_set.is_empty() && host.len() + SUFFIX > HOST_NAME_MAX {
        let detail = format!(
            "the names of its pods, such as {host}-abcde, would be longer than {HOST_NAME_MAX} characters: use shorter \
             names for the JobSet and its jobs"
        );
        errors.push(FieldError::invalid(&path.child("name"), name, detail));
    }
    job_template(
        json::at(job, &["template"]),
        &path.child("template"),
        errors,
    );
}

fn dependencies(
    job: &Value,
    number: usize,
    earlier: &BTreeSet<&str>,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    let list = path.child("dependsOn");
    let all = json::items(job, &["dependsOn"]);
    if number == 0 && !all.is_empty() {
        let detail = "the first job has none before it to depend on";
        errors.push(FieldError::forbidden(&list, detail));
        return;
    }
    for (i, one) in all.iter().enumerate() {
        let at = list.index(i);
        let name = json::text(one, &["name"]);
        if !earlier.contains(name) {
            let detail = "name a job that stands before this one in replicatedJobs";
            errors.push(FieldError::invalid(&at.child("name"), name, detail));
        }
        if json::text(one, &["status"]).is_empty() {
            errors.push(FieldError::required(
                &at.child("status"),
                "Ready or Complete",
            ));
        }
        meta::one_of(one, "status", &STATUSES, &at, errors);
    }
}

/// Checks the template of a Job as the Job will be.
fn job_template(template: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    refuse_exclusive(
        json::at(template, &["metadata"]),
        &path.child("metadata"),
        errors,
    );
    let spec_path = path.child("spec");
    let pod_path = spec_path.child("template");
    if json::items(template, &["spec", "template", "spec", "containers"]).is_empty() {
        let pod_spec = pod_path.child("spec");
        let detail = "a pod has at least one container";
        errors.push(FieldError::required(&pod_spec.child("containers"), detail));
        return;
    }
    if let Err(error) = serde_json::from_value::<JobTemplateSpec>(template.clone()) {
        let detail = format!("must be a Job's template: {error}");
        errors.push(FieldError::invalid(path, "", detail));
        return;
    }
    let mut later = template.clone();
    if let Some(spec) = json::object(&mut later, "spec") {
        if let Some(pod) = json::object(spec, "template") {
            default_template(pod);
        }
        // The controller fills this in, too.
        if !json::has(spec, &["completions"]) {
            let parallelism = json::int(spec, &["parallelism"]).unwrap_or(1);
            json::fill(spec, "completions", parallelism);
        }
    }
    let spec = json::at(&later, &["spec"]);
    check_numbers(spec, &spec_path, errors);
    // The length of host names is checked with those of the JobSet and the job.
    let job = json!({"metadata": {"name": "job"}});
    check_mode(&job, spec, &spec_path, errors);
    check_template(json::at(spec, &["template"]), &pod_path, errors);
    check_restart_policy(spec, &pod_path, errors);
    for key in ["selector", "managedBy"] {
        if json::has(spec, &[key]) {
            let detail = "the Job's controller sets it; leave it out";
            errors.push(FieldError::forbidden(&spec_path.child(key), detail));
        }
    }
}

fn refuse_exclusive(metadata: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if !json::text(metadata, &["annotations", EXCLUSIVE_TOPOLOGY]).is_empty() {
        let path = path.child("annotations");
        let detail = "Muster does not give each Job a topology domain to itself; leave it out, and use muster.io/topology \
                      to have the JobSet's pods close together";
        errors.push(FieldError::forbidden(&path.key(EXCLUSIVE_TOPOLOGY), detail));
    }
}

#[cfg(test)]
mod tests;
