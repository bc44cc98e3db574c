//! RayJob: KubeRay's checks, and refusals of what Muster does not run.

use kube::CustomResourceExt as _;
use serde_json::Value;

use super::columns::{AGE, NAME, of};
use super::meta;
use super::raycluster::{MANAGERS, RAY, check_later_pod, check_owner, check_spec, default_spec};
use super::{Kind, Source, TableColumn};
use crate::field::{FieldError, Path};
use crate::json;
use crate::kinds;
use crate::names::RAY_CLUSTER;
use crate::ray_program;

const K8S_JOB_MODE: &str = "K8sJobMode";
const HTTP_MODE: &str = "HTTPMode";
const SIDECAR_MODE: &str = "SidecarMode";
const INTERACTIVE_MODE: &str = "InteractiveMode";
const MODES: [&str; 4] = [K8S_JOB_MODE, HTTP_MODE, SIDECAR_MODE, INTERACTIVE_MODE];
const POLICIES: [&str; 4] = ["DeleteCluster", "DeleteWorkers", "DeleteSelf", "DeleteNone"];
/// The longest entrypoint and runtime environment, in bytes: they become variables of the submitting container.
const TEXT_MAX: usize = 100_000;
/// The most rules of deletion.
const RULES_MAX: usize = 32;

const COLUMNS: &[TableColumn] = &[
    NAME,
    of(
        "job status",
        "string",
        "The state of the program in Ray.",
        Source::Field(&["status", "jobStatus"]),
    ),
    of(
        "deployment status",
        "string",
        "The phase of the job.",
        Source::Field(&["status", "jobDeploymentStatus"]),
    ),
    of(
        "ray cluster name",
        "string",
        "The cluster that it runs on.",
        Source::Field(&["status", "rayClusterName"]),
    ),
    of(
        "start time",
        "string",
        "When the attempt began.",
        Source::Field(&["status", "startTime"]),
    ),
    of(
        "end time",
        "string",
        "When the job ended.",
        Source::Field(&["status", "endTime"]),
    ),
    AGE,
];

pub(super) const KIND: Kind = Kind {
    kind: "RayJob",
    plural: "rayjobs",
    singular: "rayjob",
    list_kind: "RayJobList",
    definition: Some(kinds::RayJob::crd),
    schema: "io.ray.v1.RayJob",
    default: |job| {
        if let Some(spec) = json::child(job, "spec") {
            json::fill_text(spec, "submissionMode", K8S_JOB_MODE);
            if let Some(cluster) = json::child(spec, "rayClusterSpec") {
                default_spec(cluster);
            }
        }
    },
    validate,
    columns: COLUMNS,
    ..RAY
};

fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    check_owner(new, old, &mut errors);
    let path = Path::new("spec");
    let spec = json::at(new, &["spec"]);
    let before = old.map(|old| json::at(old, &["spec"]));
    meta::one_of(spec, "submissionMode", &MODES, &path, &mut errors);
    meta::one_of(spec, "managedBy", &MANAGERS, &path, &mut errors);
    for key in ["backoffLimit", "ttlSecondsAfterFinished"] {
        meta::not_negative(spec, key, &path, &mut errors);
    }
    for key in ["activeDeadlineSeconds", "preRunningDeadlineSeconds"] {
        if let Some(seconds) = json::int(spec, &[key]).filter(|seconds| *seconds < 1) {
            let detail = "must be greater than or equal to 1";
            errors.push(FieldError::invalid(&path.child(key), seconds, detail));
        }
    }
    let submitter = path.child("submitterConfig");
    let config = json::at(spec, &["submitterConfig"]);
    meta::not_negative(config, "backoffLimit", &submitter, &mut errors);
    where_it_runs(spec, before, &path, &mut errors);
    what_it_runs(spec, &path, &mut errors);
    match json::text(spec, &["submissionMode"]) {
        HTTP_MODE => by_http(spec, &path, &mut errors),
        SIDECAR_MODE => by_the_head(spec, &path, &mut errors),
        _ => {}
    }
    after_its_end(spec, &path, &mut errors);
    let template = json::at(spec, &["submitterPodTemplate"]);
    check_later_pod(template, &path.child("submitterPodTemplate"), &mut errors);
    if let Some(before) = before {
        let fixed = [
            "managedBy",
            "submissionMode",
            "clusterSelector",
            "entrypoint",
            "jobId",
            "runtimeEnvYAML",
        ];
        meta::immutable(spec, before, &fixed, &path, &mut errors);
    }
    errors
}

/// The job's own cluster, or the one that it selects.
fn where_it_runs(
    spec: &Value,
    before: Option<&Value>,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    let cluster = path.child("rayClusterSpec");
    let selector = path.child("clusterSelector");
    let selects = json::members(spec, &["clusterSelector"]).next().is_some();
    match json::at(spec, &["rayClusterSpec"]) {
        Value::Null if !selects => {
            let detail = "give it, or name an existing cluster in clusterSelector";
            errors.push(FieldError::required(&cluster, detail));
        }
        Value::Null => {}
        _ if selects => {
            let detail =
                "a job that selects a cluster has none of its own: leave one of the two out";
            errors.push(FieldError::forbidden(&cluster, detail));
        }
        own => {
            let before = before.map(|before| json::at(before, &["rayClusterSpec"]));
            check_spec(own, before, &cluster, errors);
        }
    }
    if !selects {
        return;
    }
    if json::text(spec, &["clusterSelector", RAY_CLUSTER]).is_empty() {
        let detail = format!("name the cluster in the key {RAY_CLUSTER}");
        errors.push(FieldError::required(&selector, detail));
    }
    let refused = [
        ("suspend", json::truth(spec, &["suspend"])),
        (
            "shutdownAfterJobFinishes",
            json::truth(spec, &["shutdownAfterJobFinishes"]),
        ),
        (
            "backoffLimit",
            json::int(spec, &["backoffLimit"]).is_some_and(|limit| limit > 0),
        ),
    ];
    for (key, _) in refused.into_iter().filter(|(_, given)| *given) {
        let detail = "the cluster that clusterSelector names is not the job's to delete: leave this field out";
        errors.push(FieldError::forbidden(&path.child(key), detail));
    }
}

fn what_it_runs(spec: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let interactive = json::text(spec, &["submissionMode"]) == INTERACTIVE_MODE;
    if json::text(spec, &["entrypoint"]).is_empty() && !interactive {
        let detail = "the command that the cluster's head runs";
        errors.push(FieldError::required(&path.child("entrypoint"), detail));
    }
    if interactive && json::int(spec, &["backoffLimit"]).is_some_and(|limit| limit > 0) {
        let detail = "in InteractiveMode the server does not submit the job: leave this field out";
        errors.push(FieldError::forbidden(&path.child("backoffLimit"), detail));
    }
    for key in ["entrypoint", "runtimeEnvYAML", "entrypointResources"] {
        if json::text(spec, &[key]).len() > TEXT_MAX {
            errors.push(FieldError::too_long(&path.child(key), TEXT_MAX));
        }
    }
    let resources = json::text(spec, &["entrypointResources"]);
    let readable = serde_json::from_str::<std::collections::BTreeMap<String, f64>>(resources);
    if !resources.is_empty() && readable.is_err() {
        let detail = "must be a JSON object of numbers, such as {\"accelerator\": 1}";
        errors.push(FieldError::invalid(
            &path.child("entrypointResources"),
            resources,
            detail,
        ));
    }
    for key in ["entrypointNumCpus", "entrypointNumGpus"] {
        let number = json::at(spec, &[key]).as_f64();
        if let Some(number) = number.filter(|number| *number < 0.0) {
            let detail = "must be greater than or equal to 0";
            errors.push(FieldError::invalid(&path.child(key), number, detail));
        }
    }
}

/// What the server submits itself must be JSON, and the name a part of an address.
fn by_http(spec: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let id = json::text(spec, &["jobId"]);
    if !id.is_empty() && !ray_program::is_id(id) {
        let detail = "in HTTPMode it must have letters, digits, '-', '_' and '.' only, and at most 253 of them";
        errors.push(FieldError::invalid(&path.child("jobId"), id, detail));
    }
    let text = json::text(spec, &["runtimeEnvYAML"]);
    if text.len() <= TEXT_MAX
        && let Err(refusal) = ray_program::runtime_env(text)
    {
        let start: String = text.chars().take(100).collect();
        let field = path.child("runtimeEnvYAML");
        errors.push(FieldError::invalid(&field, start, refusal.to_string()));
    }
}

/// A container of the head submits: the job needs a head of its own, which is not started anew. KubeRay's rules.
fn by_the_head(spec: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if json::members(spec, &["clusterSelector"]).next().is_some() {
        let detail = "in SidecarMode a container of the job's own head submits: give rayClusterSpec, or use HTTPMode";
        errors.push(FieldError::forbidden(
            &path.child("clusterSelector"),
            detail,
        ));
    }
    for key in ["submitterPodTemplate", "submitterConfig"] {
        if !json::at(spec, &[key]).is_null() {
            let detail = "in SidecarMode no pod submits: leave this field out, or use K8sJobMode";
            errors.push(FieldError::forbidden(&path.child(key), detail));
        }
    }
    let cluster = json::at(spec, &["rayClusterSpec"]);
    let head = json::at(cluster, &["headGroupSpec", "template"]);
    let own = path.child("rayClusterSpec");
    let group = own.child("headGroupSpec");
    let template = group.child("template");
    if !json::at(cluster, &["headGroupSpec"]).is_null() && head.is_null() {
        let detail = "in SidecarMode the head needs a template of its own";
        errors.push(FieldError::required(&template, detail));
    }
    let policy = json::text(head, &["spec", "restartPolicy"]);
    if !["", "Never"].contains(&policy) {
        let pod = template.child("spec");
        let detail = "in SidecarMode a head that starts anew would submit again: use Never, or leave this field out";
        let field = pod.child("restartPolicy");
        errors.push(FieldError::invalid(&field, policy, detail));
    }
}

fn after_its_end(spec: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let shutdown = json::truth(spec, &["shutdownAfterJobFinishes"]);
    let ttl = json::int(spec, &["ttlSecondsAfterFinished"]).unwrap_or(0);
    if ttl > 0 && !shutdown {
        let detail = "counts only with shutdownAfterJobFinishes: set it to true";
        let field = path.child("ttlSecondsAfterFinished");
        errors.push(FieldError::invalid(&field, ttl, detail));
    }
    let strategy = json::at(spec, &["deletionStrategy"]);
    if strategy.is_null() {
        return;
    }
    let field = path.child("deletionStrategy");
    let rules = json::items(strategy, &["deletionRules"]);
    if rules.len() > RULES_MAX {
        let list = field.child("deletionRules");
        errors.push(FieldError::too_many(&list, rules.len(), RULES_MAX));
        return;
    }
    if shutdown {
        let detail = "use shutdownAfterJobFinishes or deletionStrategy, not both";
        errors.push(FieldError::forbidden(&field, detail));
    }
    for key in ["onSuccess", "onFailure"] {
        let end = json::at(strategy, &[key]);
        if end.is_null() {
            continue;
        }
        if !rules.is_empty() {
            let detail = "use deletionRules or onSuccess and onFailure, not both";
            errors.push(FieldError::forbidden(&field.child(key), detail));
        }
        policy(end, spec, &field.child(key), errors);
    }
    let list = field.child("deletionRules");
    for (i, rule) in rules.iter().enumerate() {
        let at = list.index(i);
        policy(rule, spec, &at, errors);
        let condition = json::at(rule, &["condition"]);
        let at = at.child("condition");
        let ends = ["SUCCEEDED", "FAILED"];
        meta::one_of(condition, "jobStatus", &ends, &at, errors);
        let phases = ["Complete", "Failed"];
        meta::one_of(condition, "jobDeploymentStatus", &phases, &at, errors);
        meta::not_negative(condition, "ttlSeconds", &at, errors);
        let given = |key: &str| !json::text(condition, &[key]).is_empty();
        if given("jobStatus") == given("jobDeploymentStatus") {
            let detail = "give jobStatus or jobDeploymentStatus, and not both";
            errors.push(FieldError::required(&at, detail));
        }
    }
}

fn policy(of: &Value, spec: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let field = path.child("policy");
    let policy = json::text(of, &["policy"]);
    if policy.is_empty() {
        errors.push(FieldError::required(&field, "what is deleted"));
    }
    meta::one_of(of, "policy", &POLICIES, path, errors);
    let selects = json::members(spec, &["clusterSelector"]).next().is_some();
    if selects && ["DeleteCluster", "DeleteWorkers"].contains(&policy) {
        let detail = "the cluster that clusterSelector names is not the job's to delete";
        errors.push(FieldError::forbidden(&field, detail));
    }
    let scales = json::truth(spec, &["rayClusterSpec", "enableInTreeAutoscaling"]);
    if scales && policy == "DeleteWorkers" {
        let detail = "Ray's autoscaler would create the workers again: use DeleteCluster";
        errors.push(FieldError::forbidden(&field, detail));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::raycluster::OWNER_NAME_MAX;
    use super::*;

    fn errors_of(name: &str, spec: Value) -> Vec<String> {
        let mut job = json!({"metadata": {"name": name, "namespace": "team"}, "spec": spec});
        (KIND.default)(&mut job);
        let errors = (KIND.validate)(&job, None);
        errors.iter().map(ToString::to_string).collect()
    }

    fn with(more: Value) -> Value {
        let pod = json!({"spec": {"containers": [{"name": "ray", "image": "x"}]}});
        let mut spec = json!({"entrypoint": "python x.py",
            "rayClusterSpec": {"headGroupSpec": {"template": pod}}});
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        spec
    }

    #[test]
    fn a_job_has_a_program_and_one_cluster() {
        assert_eq!(errors_of("j", with(json!({}))), [""; 0]);
        let selects = json!({"entrypoint": "x", "clusterSelector": {"ray.io/cluster": "c"}});
        assert_eq!(errors_of("j", selects.clone()), [""; 0]);
        let interactive = with(json!({"entrypoint": null, "submissionMode": "InteractiveMode"}));
        assert_eq!(errors_of("j", interactive), [""; 0]);
        let mut held = selects.clone();
        held["suspend"] = true.into();
        let table = [
            (
                with(json!({"entrypoint": ""})),
                "spec.entrypoint: Required value: the command that the cluster's head runs",
            ),
            (
                json!({"entrypoint": "x"}),
                "spec.rayClusterSpec: Required value: give it, or name an existing cluster in clusterSelector",
            ),
            (
                with(json!({"rayClusterSpec": {}})),
                "spec.rayClusterSpec.headGroupSpec: Required value: a cluster has a head",
            ),
            (
                with(json!({"clusterSelector": {"ray.io/cluster": "c"}})),
                "spec.rayClusterSpec: Forbidden: a job that selects a cluster has none of its own: leave one of the two out",
            ),
            (
                held,
                "spec.suspend: Forbidden: the cluster that clusterSelector names is not the job's to delete: leave this field out",
            ),
            (
                with(json!({"submissionMode": "SSHMode"})),
                "spec.submissionMode: Unsupported value: \"SSHMode\": supported values: \"K8sJobMode\", \"HTTPMode\", \"SidecarMode\", \"InteractiveMode\"",
            ),
            (
                with(json!({"ttlSecondsAfterFinished": 5})),
                "spec.ttlSecondsAfterFinished: Invalid value: 5: counts only with shutdownAfterJobFinishes: set it to true",
            ),
            (
                with(json!({"entrypointResources": "{a: 1}"})),
                "spec.entrypointResources: Invalid value: \"{a: 1}\": must be a JSON object of numbers, such as {\"accelerator\": 1}",
            ),
            (
                with(json!({"activeDeadlineSeconds": 0})),
                "spec.activeDeadlineSeconds: Invalid value: 0: must be greater than or equal to 1",
            ),
        ];
        for (spec, text) in table {
            assert_eq!(errors_of("j", spec), [text]);
        }
        let long = "j".repeat(OWNER_NAME_MAX + 1);
        assert_eq!(errors_of(&long, with(json!({}))).len(), 1);
    }

    #[test]
    fn what_the_server_submits_is_json_with_a_plain_name() {
        let by_http = |more: Value| {
            let mut spec = with(more);
            spec["submissionMode"] = HTTP_MODE.into();
            errors_of("j", spec)
        };
        let env = "env_vars:\n  A: b\n";
        let good = json!({"jobId": "raysubmit_1.a-b", "runtimeEnvYAML": env});
        assert_eq!(by_http(good), [""; 0]);
        let selects = json!({"rayClusterSpec": null, "clusterSelector": {"ray.io/cluster": "c"}});
        assert_eq!(by_http(selects), [""; 0]);
        let table = [
            (
                json!({"jobId": "a/b"}),
                "spec.jobId: Invalid value: \"a/b\": in HTTPMode it must have letters, digits, '-', '_' and '.' only, and at most 253 of them",
            ),
            (
                json!({"runtimeEnvYAML": "- a"}),
                "spec.runtimeEnvYAML: Invalid value: \"- a\": must be YAML of an object, such as `env_vars: {NAME: value}`",
            ),
            (
                json!({"entrypoint": null}),
                "spec.entrypoint: Required value: the command that the cluster's head runs",
            ),
        ];
        for (more, text) in table {
            assert_eq!(by_http(more), [text]);
        }
        // The other modes give both to Ray's own client.
        let other = with(json!({"jobId": "a/b", "runtimeEnvYAML": "- a"}));
        assert_eq!(errors_of("j", other), [""; 0]);
    }

    #[test]
    fn in_sidecar_mode_the_job_has_a_head_that_does_not_start_anew() {
        let by_the_head = |more: Value| {
            let mut spec = with(more);
            spec["submissionMode"] = SIDECAR_MODE.into();
            errors_of("j", spec)
        };
        let pod = |policy: &str| json!({"spec": {"restartPolicy": policy, "containers": [{"name": "ray", "image": "x"}]}});
        let head =
            |policy: &str| json!({"rayClusterSpec": {"headGroupSpec": {"template": pod(policy)}}});
        assert_eq!(by_the_head(json!({"backoffLimit": 2})), [""; 0]);
        assert_eq!(by_the_head(head("Never")), [""; 0]);
        let workers = json!({"rayClusterSpec": {"headGroupSpec": {},
            "workerGroupSpecs": [{"groupName": "w", "template": pod("Always")}]}});
        let table = [
            (
                json!({"rayClusterSpec": null, "clusterSelector": {"ray.io/cluster": "c"}}),
                "spec.clusterSelector: Forbidden: in SidecarMode a container of the job's own head submits: give rayClusterSpec, or use HTTPMode",
            ),
            (
                json!({"submitterPodTemplate": pod("Never")}),
                "spec.submitterPodTemplate: Forbidden: in SidecarMode no pod submits: leave this field out, or use K8sJobMode",
            ),
            (
                json!({"submitterConfig": {"backoffLimit": 1}}),
                "spec.submitterConfig: Forbidden: in SidecarMode no pod submits: leave this field out, or use K8sJobMode",
            ),
            (
                head("Always"),
                "spec.rayClusterSpec.headGroupSpec.template.spec.restartPolicy: Invalid value: \"Always\": in SidecarMode a head that starts anew would submit again: use Never, or leave this field out",
            ),
            (
                workers,
                "spec.rayClusterSpec.headGroupSpec.template: Required value: in SidecarMode the head needs a template of its own",
            ),
        ];
        for (more, text) in table {
            assert_eq!(by_the_head(more), [text]);
        }
    }

    #[test]
    fn what_is_deleted_after_the_end_is_said_in_one_way() {
        let rule = |policy: &str, condition: Value| {
            with(json!({"deletionStrategy": {"deletionRules": [
                {"policy": policy, "condition": condition}]}}))
        };
        let done = json!({"jobStatus": "SUCCEEDED", "ttlSeconds": 3});
        assert_eq!(errors_of("j", rule("DeleteCluster", done.clone())), [""; 0]);
        let fails = |spec: Value, field: &str| {
            let errors = errors_of("j", spec);
            assert!(
                errors.len() == 1 && errors[0].starts_with(field),
                "{errors:?}"
            );
        };
        fails(
            rule("Delete", done.clone()),
            "spec.deletionStrategy.deletionRules[0].policy: Unsupported",
        );
        fails(
            rule("DeleteSelf", json!({})),
            "spec.deletionStrategy.deletionRules[0].condition: Required",
        );
        let mut both = rule("DeleteSelf", done);
        both["shutdownAfterJobFinishes"] = true.into();
        fails(both, "spec.deletionStrategy: Forbidden");
        let mut two = with(json!({"deletionStrategy": {"onSuccess": {"policy": "DeleteNone"}}}));
        assert_eq!(errors_of("j", two.clone()), [""; 0]);
        two["deletionStrategy"]["deletionRules"] =
            json!([{"policy": "DeleteSelf", "condition": {"jobStatus": "FAILED"}}]);
        fails(two, "spec.deletionStrategy.onSuccess: Forbidden");
    }
}
