//! TrainJob: the checks of Kubeflow Trainer's webhook that need no other object. The controller checks the rest, against
//! the runtime.

use kube::CustomResourceExt as _;
use serde_json::{Value, json};

use super::columns::{AGE, NAME, of};
use super::meta::{self, NameRule};
use super::on_failure;
use super::{Kind, Source, TableColumn};
use crate::field::{FieldError, Path};
use crate::jobset;
use crate::json;
use crate::kinds;
use crate::syntax;
use crate::trainer::{
    CLUSTER_RUNTIME, GROUP, KIND as TRAIN_JOB, MANAGER, MULTIKUEUE, NODE, RESERVED_VARIABLES,
    RUNTIME, STEPS,
};

/// The longest name: the names of its pods have more characters.
const NAME_MAX: usize = 63;
/// The most patches.
const PATCHES_MAX: usize = 16;
/// The longest manager's name.
const MANAGER_MAX: usize = 253;
/// The most words of a command, and of its arguments.
const WORDS_MAX: usize = 128;
/// The most variables.
const VARIABLES_MAX: usize = 128;
/// The longest address of data or a model.
const URI_MAX: usize = 2_048;
const FIXED: [&str; 5] = [
    "runtimeRef",
    "initializer",
    "trainer",
    "activeDeadlineSeconds",
    "managedBy",
];
/// The fields of a pod that a patch may set.
const POD_FIELDS: [&str; 11] = [
    "serviceAccountName",
    "volumes",
    "initContainers",
    "containers",
    "imagePullSecrets",
    "securityContext",
    "nodeSelector",
    "affinity",
    "tolerations",
    "schedulingGates",
    "terminationGracePeriodSeconds",
];
/// The fields of a container that a patch may set.
const CONTAINER_FIELDS: [&str; 4] = ["name", "env", "volumeMounts", "securityContext"];

const COLUMNS: &[TableColumn] = &[
    NAME,
    of(
        "State",
        "string",
        "The state of the job.",
        Source::Approximated(
            |job, _| Value::from(jobset::state(json::at(job, &["status"])).unwrap_or_default()),
            ".status.conditions[-1:].type",
        ),
    ),
    AGE,
];

pub(super) const KIND: Kind = Kind {
    group: GROUP,
    version: "v1alpha1",
    kind: TRAIN_JOB,
    plural: "trainjobs",
    singular: "trainjob",
    list_kind: "TrainJobList",
    categories: &["all"],
    definition: Some(kinds::TrainJob::crd),
    schema: "org.kubeflow.trainer.v1alpha1.TrainJob",
    status: true,
    generation: true,
    default: |job| {
        let Some(spec) = json::object(job, "spec") else {
            return;
        };
        json::fill(spec, "suspend", false);
        json::fill_text(spec, "managedBy", MANAGER);
        if let Some(runtime) = json::child(spec, "runtimeRef") {
            json::fill_text(runtime, "apiGroup", GROUP);
            json::fill_text(runtime, "kind", CLUSTER_RUNTIME);
        }
    },
    validate,
    validate_status: |new, _| {
        let mut errors = Vec::new();
        crate::training_progress::validate(json::at(new, &["status"]), &mut errors);
        errors
    },
    prepare: meta::without_status,
    columns: COLUMNS,
    ..Kind::BASE
};

fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::check(new, old, true, NameRule::Dns1035, &mut errors);
    if json::text(new, &["metadata", "name"]).len() > NAME_MAX {
        errors.push(FieldError::too_long("metadata.name", NAME_MAX));
    }
    let instead = "failurePolicy of the runtime's template";
    on_failure::refuse(new, old, instead, &mut errors);
    let path = Path::new("spec");
    let spec = json::at(new, &["spec"]);
    runtime_ref(spec, &path, &mut errors);
    meta::one_of(
        spec,
        "managedBy",
        &[MANAGER, MULTIKUEUE],
        &path,
        &mut errors,
    );
    if let Some(seconds) =
        json::int(spec, &["activeDeadlineSeconds"]).filter(|seconds| *seconds < 1)
    {
        let detail = "must be greater than or equal to 1";
        errors.push(FieldError::invalid(
            &path.child("activeDeadlineSeconds"),
            seconds,
            detail,
        ));
    }
    trainer(
        json::at(spec, &["trainer"]),
        &path.child("trainer"),
        &mut errors,
    );
    let initializer = path.child("initializer");
    for key in ["dataset", "model"] {
        let source = json::at(spec, &["initializer", key]);
        initializer_source(source, &initializer.child(key), &mut errors);
    }
    patches(spec, &path.child("runtimePatches"), &mut errors);
    if let Some(old) = old {
        let before = json::at(old, &["spec"]);
        meta::immutable(spec, before, &FIXED, &path, &mut errors);
        let held = [spec, before]
            .iter()
            .any(|spec| json::truth(spec, &["suspend"]));
        let patches = |spec: &Value| json::at(spec, &["runtimePatches"]).clone();
        if !held && !json::same(&patches(spec), &patches(before)) {
            let detail = "may change only while the TrainJob is suspended: set suspend to true first, or in the same change";
            errors.push(FieldError::forbidden(&path.child("runtimePatches"), detail));
        }
    }
    errors
}

fn runtime_ref(spec: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let path = path.child("runtimeRef");
    let runtime = json::at(spec, &["runtimeRef"]);
    let name = json::text(runtime, &["name"]);
    if name.is_empty() {
        let detail = "name a runtime: `muster get clustertrainingruntimes` lists them";
        errors.push(FieldError::required(&path.child("name"), detail));
    }
    for fault in syntax::dns1123_subdomain(name)
        .into_iter()
        .filter(|_| !name.is_empty())
    {
        errors.push(FieldError::invalid(&path.child("name"), name, fault));
    }
    meta::one_of(runtime, "apiGroup", &[GROUP], &path, errors);
    meta::one_of(runtime, "kind", &[CLUSTER_RUNTIME, RUNTIME], &path, errors);
}

fn trainer(trainer: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    meta::not_negative(trainer, "numNodes", path, errors);
    for key in ["command", "args"] {
        let words = json::items(trainer, &[key]).len();
        if words > WORDS_MAX {
            errors.push(FieldError::too_many(&path.child(key), words, WORDS_MAX));
        }
    }
    let processes = json::at(trainer, &["numProcPerNode"]);
    let word = processes.as_str().unwrap_or_default();
    let words = ["auto", "cpu", "gpu"].contains(&word)
        || word.parse::<u32>().is_ok_and(|number| number > 0);
    if !processes.is_null() && !words && processes.as_i64().is_none_or(|number| number < 1) {
        let detail = "must be a number of at least 1, or \"auto\", \"cpu\" or \"gpu\"";
        errors.push(FieldError::invalid(
            &path.child("numProcPerNode"),
            processes.clone(),
            detail,
        ));
    }
    variables(trainer, path, errors);
    let list = path.child("env");
    for (i, variable) in json::items(trainer, &["env"]).iter().enumerate() {
        let name = json::text(variable, &["name"]);
        if RESERVED_VARIABLES.contains(&name) {
            let at = list.index(i);
            let detail = "the controller sets this variable; leave it out";
            errors.push(FieldError::invalid(&at.child("name"), name, detail));
        }
    }
    // Checked as the resources of the later container.
    let resources = json::at(trainer, &["resourcesPerNode"]);
    if !resources.is_null() {
        let mut container = json!({"name": NODE, "command": ["x"]});
        container["resources"] = resources.clone();
        let template = json!({"spec": {"containers": [container], "restartPolicy": "Never"}});
        let mut found = Vec::new();
        later_pod(template, &path.child("resourcesPerNode"), &mut found);
        let field = |error: &FieldError| error.to_string().contains(".resources.");
        errors.extend(found.into_iter().filter(field));
    }
}

fn later_pod(mut template: Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    super::pod::default_template(&mut template);
    super::pod::check_template(&template, path, errors);
}

fn variables(of: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let list = path.child("env");
    let all = json::items(of, &["env"]);
    if all.len() > VARIABLES_MAX {
        errors.push(FieldError::too_many(&list, all.len(), VARIABLES_MAX));
        return;
    }
    for (i, variable) in all.iter().enumerate() {
        let name = json::text(variable, &["name"]);
        let at = list.index(i);
        for fault in syntax::env_name(name) {
            errors.push(FieldError::invalid(&at.child("name"), name, fault));
        }
    }
}

fn initializer_source(source: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    variables(source, path, errors);
    let uri = json::text(source, &["storageUri"]);
    if uri.len() > URI_MAX {
        errors.push(FieldError::too_long(&path.child("storageUri"), URI_MAX));
        return;
    }
    let scheme = uri.split_once("://").filter(|(_, rest)| !rest.is_empty());
    let good = |scheme: &str| {
        let inner = |c: char| c.is_ascii_alphanumeric() || "+.-".contains(c);
        scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.chars().all(inner)
    };
    if !uri.is_empty() && scheme.is_none_or(|(scheme, _)| !good(scheme)) {
        let detail = "must be an address such as s3://bucket/path or hf://owner/name";
        errors.push(FieldError::invalid(&path.child("storageUri"), uri, detail));
    }
}

fn patches(spec: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let all = json::items(spec, &["runtimePatches"]);
    if all.len() > PATCHES_MAX {
        errors.push(FieldError::too_many(path, all.len(), PATCHES_MAX));
        return;
    }
    let mut known = std::collections::BTreeSet::new();
    for (i, patch) in all.iter().enumerate() {
        let at = path.index(i);
        let manager = json::text(patch, &["manager"]);
        let domain = manager.split_once('/').filter(|(_, rest)| !rest.is_empty());
        let named = domain.is_some_and(|(domain, _)| syntax::dns1123_subdomain(domain).is_empty());
        if !named || manager.len() > MANAGER_MAX {
            let detail = "must be a domain and a path, such as kueue.x-k8s.io/manager";
            errors.push(FieldError::invalid(&at.child("manager"), manager, detail));
        }
        if !known.insert(manager) {
            errors.push(FieldError::duplicate(&at.child("manager"), manager));
        }
        let runtime = at.child("trainingRuntimeSpec");
        let template = runtime.child("template");
        let list = template.child("spec");
        let list = list.child("replicatedJobs");
        let jobs = ["trainingRuntimeSpec", "template", "spec", "replicatedJobs"];
        for (j, job) in json::items(patch, &jobs).iter().enumerate() {
            job_patch(job, &list.index(j), errors);
        }
    }
}

fn job_patch(job: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if json::text(job, &["name"]).is_empty() {
        let detail = "name the job of the runtime that is changed";
        errors.push(FieldError::required(&path.child("name"), detail));
    }
    let template = path.child("template");
    let spec = template.child("spec");
    let pod = spec.child("template");
    let pod = pod.child("spec");
    let fields = json::at(job, &["template", "spec", "template", "spec"]);
    for (key, _) in json::members(fields, &[]) {
        if !POD_FIELDS.contains(&key.as_str()) {
            errors.push(FieldError::not_supported(&pod, key.as_str(), &POD_FIELDS));
        }
    }
    for list in ["initContainers", "containers"] {
        let at = pod.child(list);
        for (i, container) in json::items(fields, &[list]).iter().enumerate() {
            let at = at.index(i);
            let name = json::text(container, &["name"]);
            for (key, _) in json::members(container, &[]) {
                if !CONTAINER_FIELDS.contains(&key.as_str()) {
                    errors.push(FieldError::not_supported(
                        &at,
                        key.as_str(),
                        &CONTAINER_FIELDS,
                    ));
                }
            }
            let own = name == NODE || STEPS.contains(&name);
            if own && !json::items(container, &["env"]).is_empty() {
                let detail =
                    "set the variables of this container in spec.trainer or spec.initializer";
                errors.push(FieldError::forbidden(&at.child("env"), detail));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors_of(spec: Value, old: Option<Value>) -> Vec<String> {
        let object = |spec: Value| {
            let mut job =
                json!({"metadata": {"name": "j", "namespace": "team", "uid": "u"}, "spec": spec});
            (KIND.default)(&mut job);
            job
        };
        let errors = (KIND.validate)(&object(spec), old.map(object).as_ref());
        errors.iter().map(ToString::to_string).collect()
    }

    fn with(more: Value) -> Value {
        let mut spec = json!({"runtimeRef": {"name": "torch-distributed"}});
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        spec
    }

    #[test]
    fn what_trainer_refuses_is_refused_with_its_field_and_what_would_be_right() {
        let good = with(
            json!({"trainer": {"numNodes": 2, "numProcPerNode": "auto", "env": [{"name": "A", "value": "1"}],
            "resourcesPerNode": {"requests": {"cpu": "1"}}},
            "initializer": {"dataset": {"storageUri": "hf://owner/name"}, "model": {"storageUri": ""}},
            "runtimePatches": [{"manager": "kueue.x-k8s.io/manager", "trainingRuntimeSpec": {"template": {"spec": {
                "replicatedJobs": [{"name": "node", "template": {"spec": {"template": {"spec": {
                    "nodeSelector": {"zone": "a"}}}}}}]}}}}]}),
        );
        assert_eq!(errors_of(good, None), [""; 0]);
        let patch = |pod: Value| {
            with(
                json!({"runtimePatches": [{"manager": "a.example/m", "trainingRuntimeSpec": {"template": {"spec": {
                "replicatedJobs": [{"name": "node", "template": {"spec": {"template": {"spec": pod}}}}]}}}}]}),
            )
        };
        let table = [
            (json!({}), "spec.runtimeRef.name: Required value"),
            (
                with(json!({"runtimeRef": {"name": "x", "kind": "Job"}})),
                "spec.runtimeRef.kind: Unsupported value: \"Job\"",
            ),
            (
                with(json!({"managedBy": "me"})),
                "spec.managedBy: Unsupported value: \"me\"",
            ),
            (
                with(json!({"activeDeadlineSeconds": 0})),
                "spec.activeDeadlineSeconds: Invalid value: 0",
            ),
            (
                with(json!({"trainer": {"numNodes": -1}})),
                "spec.trainer.numNodes: Invalid value: -1",
            ),
            (
                with(json!({"trainer": {"numProcPerNode": 0}})),
                "spec.trainer.numProcPerNode: Invalid value: 0",
            ),
            (
                with(json!({"trainer": {"numProcPerNode": "all"}})),
                "spec.trainer.numProcPerNode: Invalid value: \"all\"",
            ),
            (
                with(json!({"trainer": {"env": [{"name": "PET_NNODES"}]}})),
                "spec.trainer.env[0].name: Invalid value: \"PET_NNODES\": the controller sets this variable; leave it out",
            ),
            (
                with(json!({"trainer": {"resourcesPerNode": {"requests": {"cpu": "much"}}}})),
                "spec.trainer.resourcesPerNode",
            ),
            (
                with(json!({"initializer": {"model": {"storageUri": "bucket"}}})),
                "spec.initializer.model.storageUri: Invalid value: \"bucket\"",
            ),
            (
                with(json!({"runtimePatches": [{"manager": "me"}]})),
                "spec.runtimePatches[0].manager: Invalid value: \"me\"",
            ),
            (
                patch(json!({"hostNetwork": true})),
                "spec.runtimePatches[0].trainingRuntimeSpec.template.spec.replicatedJobs[0].template.spec.template.spec: Unsupported value: \"hostNetwork\"",
            ),
            (
                patch(json!({"containers": [{"name": "node", "env": [{"name": "A"}]}]})),
                "spec.runtimePatches[0].trainingRuntimeSpec.template.spec.replicatedJobs[0].template.spec.template.spec.containers[0].env: Forbidden",
            ),
        ];
        for (spec, begin) in table {
            let errors = errors_of(spec, None);
            assert!(
                errors.len() == 1 && errors[0].starts_with(begin),
                "{begin}: {errors:?}"
            );
        }
    }

    #[test]
    fn patches_change_while_the_job_is_suspended_and_the_rest_never() {
        let patched = |suspend: bool| {
            with(json!({"suspend": suspend, "runtimePatches": [{"manager": "a.example/m"}]}))
        };
        let plain = |suspend: bool| with(json!({"suspend": suspend}));
        assert_eq!(errors_of(patched(false), Some(plain(true))), [""; 0]);
        assert_eq!(errors_of(patched(true), Some(plain(false))), [""; 0]);
        assert_eq!(errors_of(patched(false), Some(plain(false))).len(), 1);
        let other = with(json!({"trainer": {"numNodes": 3}}));
        let errors = errors_of(other, Some(plain(true)));
        assert!(
            errors[0].starts_with("spec.trainer: Invalid value"),
            "{errors:?}"
        );
    }
}
