//! TrainingRuntime and ClusterTrainingRuntime: the checks of Kubeflow Trainer's webhooks, and refusals of what Muster does
//! not run. Pods' templates are checked with a command where they have neither image nor command, because a TrainJob may
//! bring both.

use kube::CustomResourceExt as _;
use serde_json::{Value, json};

use super::Kind;
use super::jobset::check_spec;
use super::meta::{self, NameRule};
use crate::field::{FieldError, Path};
use crate::json;
use crate::kinds;
use crate::trainer::{ANCESTOR, CLUSTER_RUNTIME, GROUP, RUNTIME, STEPS};

const FRAMEWORKS: [&str; 5] = ["torch", "mpi", "flux", "jax", "xgboost"];
/// Those that Muster does not run.
const REFUSED: [&str; 2] = ["mpi", "flux"];

pub(super) const NAMESPACED: Kind = Kind {
    group: GROUP,
    version: "v1alpha1",
    kind: RUNTIME,
    plural: "trainingruntimes",
    singular: "trainingruntime",
    list_kind: "TrainingRuntimeList",
    definition: Some(kinds::TrainingRuntime::crd),
    schema: "org.kubeflow.trainer.v1alpha1.TrainingRuntime",
    generation: true,
    validate: |new, old| validate(new, old, true),
    ..Kind::BASE
};

pub(super) const CLUSTER: Kind = Kind {
    kind: CLUSTER_RUNTIME,
    plural: "clustertrainingruntimes",
    singular: "clustertrainingruntime",
    list_kind: "ClusterTrainingRuntimeList",
    namespaced: false,
    definition: Some(kinds::ClusterTrainingRuntime::crd),
    schema: "org.kubeflow.trainer.v1alpha1.ClusterTrainingRuntime",
    validate: |new, old| validate(new, old, false),
    ..NAMESPACED
};

fn validate(new: &Value, old: Option<&Value>, namespaced: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::check(new, old, namespaced, NameRule::Subdomain, &mut errors);
    let path = Path::new("spec");
    let spec = json::at(new, &["spec"]);
    policy(
        json::at(spec, &["mlPolicy"]),
        &path.child("mlPolicy"),
        &mut errors,
    );
    let template = path.child("template");
    let at = template.child("spec");
    let job_set = complete(json::at(spec, &["template", "spec"]));
    check_spec(&job_set, None, "", &at, &mut errors);
    let list = at.child("replicatedJobs");
    for (i, job) in json::items(&job_set, &["replicatedJobs"])
        .iter()
        .enumerate()
    {
        let step = json::text(job, &["template", "metadata", "labels", ANCESTOR]);
        if !step.is_empty() && !STEPS.contains(&step) {
            let at = list.index(i);
            let template = at.child("template");
            let metadata = template.child("metadata");
            let labels = metadata.child("labels");
            errors.push(FieldError::not_supported(
                &labels.key(ANCESTOR),
                step,
                &STEPS,
            ));
        }
        if json::int(job, &["replicas"]).is_some_and(|replicas| replicas != 1) {
            let at = list.index(i);
            let detail =
                "a TrainJob's jobs have one replica each; the number of pods is mlPolicy.numNodes";
            errors.push(FieldError::invalid(
                &at.child("replicas"),
                json::at(job, &["replicas"]).clone(),
                detail,
            ));
        }
    }
    errors
}

fn policy(policy: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    meta::not_negative(policy, "numNodes", path, errors);
    let given: Vec<&str> = FRAMEWORKS
        .into_iter()
        .filter(|name| json::has(policy, &[name]))
        .collect();
    if given.len() > 1 {
        let detail = format!(
            "only one framework may be given; here are {}",
            given.join(", ")
        );
        errors.push(FieldError::invalid(path, given.join(", "), detail));
    }
    for name in given.into_iter().filter(|name| REFUSED.contains(name)) {
        let detail = match name {
            "mpi" => "Muster does not run MPI by TrainJobs; use an MPIJob",
            _ => "Muster does not run Flux; use torch, jax or xgboost",
        };
        errors.push(FieldError::forbidden(&path.child(name), detail));
    }
}

/// The JobSet as a TrainJob may complete it.
fn complete(spec: &Value) -> Value {
    let mut spec = spec.clone();
    for job in json::list(&mut spec, "replicatedJobs") {
        let pod = job.pointer_mut("/template/spec/template/spec");
        let Some(pod) = pod else { continue };
        json::fill_text(pod, "restartPolicy", "OnFailure");
        for container in json::list(pod, "containers").filter(|container| container.is_object()) {
            let empty = |key: &str| json::at(container, &[key]).is_null();
            if empty("image") && empty("command") {
                container["command"] = json!(["train"]);
            }
        }
    }
    spec
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors_of(policy: Value, job: Value) -> Vec<String> {
        let mut node = json!({"name": "node", "template": {"metadata": {"labels": {ANCESTOR: "trainer"}},
            "spec": {"template": {"spec": {"containers": [{"name": "node"}]}}}}});
        for (key, value) in job.as_object().unwrap() {
            node[key] = value.clone();
        }
        let runtime = json!({"metadata": {"name": "r", "uid": "u"},
            "spec": {"mlPolicy": policy, "template": {"spec": {"replicatedJobs": [node]}}}});
        let errors = (CLUSTER.validate)(&runtime, None);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_runtime_has_one_framework_and_templates_that_a_job_can_complete() {
        for policy in [
            json!({"torch": {}}),
            json!({"numNodes": 3, "jax": {}}),
            json!({"xgboost": {}}),
            Value::Null,
        ] {
            assert_eq!(errors_of(policy, json!({})), [""; 0]);
        }
        let table = [
            (
                json!({"torch": {}, "jax": {}}),
                json!({}),
                "spec.mlPolicy: Invalid value: \"torch, jax\"",
            ),
            (
                json!({"mpi": {}}),
                json!({}),
                "spec.mlPolicy.mpi: Forbidden: Muster does not run MPI by TrainJobs; use an MPIJob",
            ),
            (
                json!({"torch": {}}),
                json!({"replicas": 2}),
                "spec.template.spec.replicatedJobs[0].replicas: Invalid value: 2",
            ),
            (
                json!({"torch": {}}),
                json!({"template": {}}),
                "spec.template.spec.replicatedJobs[0].template.spec.template.spec.containers: Required value",
            ),
        ];
        for (policy, job, begin) in table {
            let errors = errors_of(policy, job);
            assert!(
                errors.len() == 1 && errors[0].starts_with(begin),
                "{begin}: {errors:?}"
            );
        }
        let unknown = json!({"template": {"metadata": {"labels": {ANCESTOR: "cook"}},
            "spec": {"template": {"spec": {"containers": [{"name": "node"}]}}}}});
        assert_eq!(errors_of(json!({}), unknown).len(), 1);
    }
}
