//! TrainJob of Kubeflow Trainer, `trainer.kubeflow.org/v1alpha1`: a training program and the runtime that it runs in.

use k8s_openapi::api::core::v1::{EnvVar, LocalObjectReference, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::schemas;

/// What a TrainJob should be.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "trainer.kubeflow.org",
    version = "v1alpha1",
    kind = "TrainJob",
    plural = "trainjobs",
    namespaced,
    status = "TrainJobStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A training program and the runtime that it runs in."
)]
#[serde(rename_all = "camelCase")]
pub struct TrainJobSpec {
    /// The runtime.
    pub runtime_ref: RuntimeRef,
    /// What the initializers of the runtime load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initializer: Option<Initializer>,
    /// What replaces the runtime's values for the training container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trainer: Option<Trainer>,
    /// Changes of the runtime's templates, each by its manager.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_patches: Option<Vec<RuntimePatch>>,
    /// Whether it is suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// Seconds after its start, or its last resumption, after which it fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub active_deadline_seconds: Option<i64>,
    /// The controller that runs it; `trainer.kubeflow.org/trainjob-controller` unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed_by: Option<String>,
}

/// Which runtime a TrainJob runs in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeRef {
    /// Its name.
    pub name: String,
    /// Its API group; `trainer.kubeflow.org` unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_group: Option<String>,
    /// `ClusterTrainingRuntime` unless given, or `TrainingRuntime`, which is in the TrainJob's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

/// What the initializers of the runtime load before the training starts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Initializer {
    /// For the job with the step `dataset-initializer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset: Option<InitializerSource>,
    /// For the job with the step `model-initializer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<InitializerSource>,
}

/// What one initializer loads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InitializerSource {
    /// Where it is, such as `s3://bucket/path`; the variable STORAGE_URI of the initializer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_uri: Option<String>,
    /// More variables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::any_objects")]
    pub env: Option<Vec<EnvVar>>,
    /// A Secret whose values become variables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::any_object")]
    pub secret_ref: Option<LocalObjectReference>,
}

/// What replaces the runtime's values for the training container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Trainer {
    /// Its image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Its command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// The command's arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Vec<String>>,
    /// More variables; one of the runtime's with the same name is replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::any_objects")]
    pub env: Option<Vec<EnvVar>>,
    /// The number of pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub num_nodes: Option<i32>,
    /// The resources of each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::any_object")]
    pub resources_per_node: Option<ResourceRequirements>,
    /// The processes of each: a number, or for PyTorch `auto`, `cpu` or `gpu`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::int_or_string")]
    pub num_proc_per_node: Option<IntOrString>,
}

/// One manager's changes of the runtime's templates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RuntimePatch {
    /// Who makes the changes, such as `kueue.x-k8s.io/manager`.
    pub manager: String,
    /// When they were last written; kept as given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub time: Option<Time>,
    /// The changes: `template.metadata`, and of `template.spec.replicatedJobs` the templates' metadata and some fields
    /// of their pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::any_object")]
    pub training_runtime_spec: Option<Value>,
}

/// How a TrainJob is doing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct TrainJobStatus {
    /// Suspended, Complete and Failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schemas::any_objects")]
    pub conditions: Vec<Condition>,
    /// The Jobs of each of its jobs, counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs_status: Vec<TrainJobJobStatus>,
    /// What the training program last reported of its progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::any_object")]
    pub trainer_status: Option<Value>,
    /// When a Job of it was first ready since its start or last suspension; Muster's own field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub start_time: Option<Time>,
    /// What it waits for, in one sentence; Muster's own field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The Jobs of one job of a TrainJob, counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrainJobJobStatus {
    /// The job's name.
    pub name: String,
    /// Jobs whose pods are all ready or have succeeded.
    #[serde(default)]
    pub ready: i32,
    /// Jobs that are complete.
    #[serde(default)]
    pub succeeded: i32,
    /// Jobs that failed.
    #[serde(default)]
    pub failed: i32,
    /// Jobs with a pod that waits or runs.
    #[serde(default)]
    pub active: i32,
    /// Jobs that are suspended.
    #[serde(default)]
    pub suspended: i32,
}
