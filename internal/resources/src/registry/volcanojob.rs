//! Volcano's Job: the checks of its admission. The controller that runs the job sets the defaults, so that objects are
//! the same on a Kubernetes cluster, where the API server checks only the definition's schema. A task's `command` and
//! `args` may be one string, as users write them: it is stored as written and counts as a list of one.

use std::collections::BTreeSet;

use kube::CustomResourceExt as _;
use serde_json::{Value, json};

use super::columns::{AGE, NAME, of, only_wide};
use super::meta::{self, NameRule};
use super::on_failure;
use super::pod::{check_template, default_template};
use super::{Kind, Source, TableColumn};
use crate::field::{FieldError, Path};
use crate::go_duration;
use crate::json;
use crate::kinds;
use crate::numbers::GANG_MEMBERS_MAX;
use crate::syntax;

const ACTIONS: [&str; 9] = [
    "AbortJob",
    "RestartJob",
    "RestartTask",
    "RestartPod",
    "RestartPartition",
    "TerminateJob",
    "CompleteJob",
    "ResumeJob",
    "SyncJob",
];
const EVENTS: [&str; 9] = [
    "*",
    "PodFailed",
    "PodEvicted",
    "PodPending",
    "PodRunning",
    "Unknown",
    "TaskCompleted",
    "TaskFailed",
    "JobUnknown",
];
const PLUGINS: [&str; 7] = ["env", "svc", "ssh", "pytorch", "tensorflow", "mpi", "ray"];

const COLUMNS: &[TableColumn] = &[
    NAME,
    of(
        "STATUS",
        "string",
        "The phase of the job.",
        Source::Field(&["status", "state", "phase"]),
    ),
    of(
        "minAvailable",
        "integer",
        "Pods that must start together.",
        Source::Field(&["spec", "minAvailable"]),
    ),
    of(
        "RUNNINGS",
        "integer",
        "Pods running.",
        Source::Field(&["status", "running"]),
    ),
    AGE,
    only_wide(of(
        "QUEUE",
        "string",
        "The queue it waits in.",
        Source::Field(&["spec", "queue"]),
    )),
];

pub(super) const KIND: Kind = Kind {
    group: "batch.volcano.sh",
    version: "v1alpha1",
    kind: "Job",
    plural: "jobs",
    singular: "job",
    list_kind: "JobList",
    short_names: &["vcjob", "vj"],
    definition: Some(kinds::VolcanoJob::crd),
    schema: "sh.volcano.batch.v1alpha1.Job",
    status: true,
    generation: true,
    validate,
    prepare: meta::without_status,
    columns: COLUMNS,
    ..Kind::BASE
};

/// The same kind under the version that some manifests use.
pub(super) const V1BETA1: Kind = Kind {
    version: "v1beta1",
    schema: "sh.volcano.batch.v1beta1.Job",
    stored: Some("v1alpha1"),
    ..KIND
};

fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::check(new, old, true, NameRule::Subdomain, &mut errors);
    on_failure::refuse(new, old, "spec.policies", &mut errors);
    let path = Path::new("spec");
    let spec = json::at(new, &["spec"]);
    for key in ["minAvailable", "maxRetry", "ttlSecondsAfterFinished"] {
        meta::not_negative(spec, key, &path, &mut errors);
    }
    let queue = json::text(spec, &["queue"]);
    if !queue.is_empty() {
        for fault in syntax::dns1123_subdomain(queue) {
            errors.push(FieldError::invalid(&path.child("queue"), queue, fault));
        }
    }
    let before = old.map_or(0, |old| pods_of(json::at(old, &["spec"])));
    tasks(spec, before, &path, &mut errors);
    policies(spec, &path, &mut errors);
    let plugins = path.child("plugins");
    for (name, _) in json::members(spec, &["plugins"]) {
        if !PLUGINS.contains(&name.as_str()) {
            errors.push(FieldError::not_supported(&plugins, name.as_str(), &PLUGINS));
        }
    }
    errors
}

/// The total number of pods of the tasks.
fn pods_of(spec: &Value) -> i64 {
    let replicas = json::items(spec, &["tasks"]).iter();
    let replicas = replicas.map(|task| json::int(task, &["replicas"]).unwrap_or(1));
    replicas.fold(0, i64::saturating_add)
}

/// Checks the tasks; a job that was stored with more pods than the bound can keep that many.
fn tasks(spec: &Value, before: i64, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let list = path.child("tasks");
    let tasks = json::items(spec, &["tasks"]);
    if tasks.is_empty() {
        errors.push(FieldError::required(&list, "a job has at least one task"));
        return;
    }
    let mut seen = BTreeSet::new();
    for (i, task) in tasks.iter().enumerate() {
        let path = list.index(i);
        let name = json::text(task, &["name"]);
        if !name.is_empty() {
            for fault in syntax::dns1123_label(name) {
                errors.push(FieldError::invalid(&path.child("name"), name, fault));
            }
            if !seen.insert(name) {
                errors.push(FieldError::duplicate(&path.child("name"), name));
            }
        }
        for key in ["replicas", "minAvailable"] {
            meta::not_negative(task, key, &path, errors);
        }
        let replicas = json::int(task, &["replicas"]).unwrap_or(1);
        at_most(task, replicas, "replicas", &path, errors);
        policies(task, &path, errors);
        template(
            json::at(task, &["template"]),
            &path.child("template"),
            errors,
        );
    }
    let all = pods_of(spec);
    at_most(spec, all, "the replicas of all tasks,", path, errors);
    if all > before.max(GANG_MEMBERS_MAX) {
        let detail = format!(
            "the replicas of all tasks together must be at most {GANG_MEMBERS_MAX}, the most pods that a job has"
        );
        errors.push(FieldError::invalid(&list, all, detail));
    }
}

/// Reports a `minAvailable` that exceeds the number of pods.
fn at_most(of: &Value, most: i64, what: &str, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if let Some(least) = json::int(of, &["minAvailable"]).filter(|least| *least > most) {
        let detail = format!("must be less than or equal to {what} {most}");
        errors.push(FieldError::invalid(
            &path.child("minAvailable"),
            least,
            detail,
        ));
    }
}

fn policies(of: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let list = path.child("policies");
    for (i, policy) in json::items(of, &["policies"]).iter().enumerate() {
        let path = list.index(i);
        meta::one_of(policy, "action", &ACTIONS, &path, errors);
        meta::one_of(policy, "event", &EVENTS, &path, errors);
        for (j, event) in json::items(policy, &["events"]).iter().enumerate() {
            let event = event.as_str().unwrap_or_default();
            if !EVENTS.contains(&event) {
                let path = path.child("events");
                errors.push(FieldError::not_supported(&path.index(j), event, &EVENTS));
            }
        }
        let timeout = json::text(policy, &["timeout"]);
        if json::has(policy, &["timeout"]) && go_duration::parse(timeout).is_none() {
            let path = path.child("timeout");
            errors.push(FieldError::invalid(&path, timeout, go_duration::FORM));
        }
        let code = json::int(policy, &["exitCode"]);
        let event = json::has(policy, &["event"]) || json::has(policy, &["events"]);
        match code {
            Some(0) => errors.push(FieldError::invalid(
                &path.child("exitCode"),
                0,
                "0 is no error: name another code",
            )),
            Some(_) if event => errors.push(FieldError::forbidden(
                &path.child("exitCode"),
                "may not be specified together with `event` or `events`",
            )),
            None if !event => errors.push(FieldError::required(
                &path.child("event"),
                "one of `event`, `events` and `exitCode` must be specified",
            )),
            _ => {}
        }
    }
}

fn template(template: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if json::items(template, &["spec", "containers"]).is_empty() {
        let spec = path.child("spec");
        errors.push(FieldError::required(
            &spec.child("containers"),
            "must be specified",
        ));
        return;
    }
    // Checked in the form of the later pod, while the job stays as written.
    let mut template = template.clone();
    if let Some(spec) = json::child(&mut template, "spec") {
        for list in ["initContainers", "containers"] {
            json::list(spec, list).for_each(words_as_lists);
        }
    }
    default_template(&mut template);
    check_template(&template, path, errors);
}

fn words_as_lists(container: &mut Value) {
    for key in ["command", "args"] {
        if let Some(word) = container.get_mut(key)
            && word.is_string()
        {
            *word = json!([word.take()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(task: &Value, more: &Value) -> Vec<String> {
        let mut one = json!({"name": "worker", "replicas": 2, "template": {"spec": {"containers": [
            {"name": "c", "image": "x", "command": "train.sh"}]}}});
        for (key, value) in task.as_object().unwrap() {
            one[key] = value.clone();
        }
        let mut spec = json!({"tasks": [one]});
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        let job = json!({"metadata": {"name": "j", "namespace": "team"}, "spec": spec});
        let errors = (KIND.validate)(&job, None);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_volcano_refuses_is_refused_with_its_field_and_what_would_be_right() {
        assert!(job(&json!({}), &json!({"minAvailable": 2})).is_empty());
        let none = json!({});
        let table = [
            (
                none.clone(),
                json!({"minAvailable": 3}),
                "spec.minAvailable: Invalid value: 3: must be less than or equal to the replicas of all tasks, 2",
            ),
            (
                json!({"minAvailable": 3}),
                none.clone(),
                "spec.tasks[0].minAvailable: Invalid value: 3: must be less than or equal to replicas 2",
            ),
            (
                json!({"policies": [{"action": "RestartJob"}]}),
                none.clone(),
                "spec.tasks[0].policies[0].event: Required value: one of `event`, `events` and `exitCode` must be specified",
            ),
            (
                none.clone(),
                json!({"policies": [{"event": "PodFailed", "exitCode": 3, "action": "AbortJob"}]}),
                "spec.policies[0].exitCode: Forbidden: may not be specified together with `event` or `events`",
            ),
            (
                none.clone(),
                json!({"policies": [{"event": "PodPending", "timeout": "10 minutes", "action": "AbortJob"}]}),
                "spec.policies[0].timeout: Invalid value: \"10 minutes\": must be a duration of numbers with the units h, m, s and ms, such as \"90s\" or \"1h30m\"",
            ),
            (
                json!({"policies": [{"event": "PodPending", "timeout": "-5s", "action": "AbortJob"}]}),
                none.clone(),
                "spec.tasks[0].policies[0].timeout: Invalid value: \"-5s\": must be a duration of numbers with the units h, m, s and ms, such as \"90s\" or \"1h30m\"",
            ),
            (
                none.clone(),
                json!({"plugins": {"horovod": []}}),
                "spec.plugins: Unsupported value: \"horovod\": supported values: \"env\", \"svc\", \"ssh\", \"pytorch\", \"tensorflow\", \"mpi\", \"ray\"",
            ),
            (
                json!({"template": {}}),
                none.clone(),
                "spec.tasks[0].template.spec.containers: Required value: must be specified",
            ),
        ];
        for (task, more, text) in table {
            assert_eq!(job(&task, &more), [text]);
        }
    }

    #[test]
    fn all_tasks_together_have_no_more_pods_than_a_gang_may() {
        let sized = |replicas: i64| job(&json!({"replicas": replicas}), &json!({}));
        assert!(sized(GANG_MEMBERS_MAX).is_empty());
        for many in [GANG_MEMBERS_MAX + 1, i64::from(i32::MAX), i64::MAX] {
            let text = format!(
                "spec.tasks: Invalid value: {many}: the replicas of all tasks together must be at most 20000, the most pods that a job has"
            );
            assert_eq!(sized(many), [text]);
        }
        let container = json!({"spec": {"containers": [{"name": "c", "image": "x"}]}});
        let task = |name: &str| json!({"name": name, "replicas": i64::MAX, "template": container});
        assert_eq!(
            job(&json!({}), &json!({"tasks": [task("a"), task("b")]})).len(),
            1
        );
    }

    #[test]
    fn two_tasks_have_two_names() {
        let task = json!({"name": "a", "template": {"spec": {"containers": [{"name": "c", "image": "x"}]}}});
        let errors = job(&json!({}), &json!({"tasks": [task, task]}));
        assert_eq!(errors, ["spec.tasks[1].name: Duplicate value: \"a\""]);
    }
}
