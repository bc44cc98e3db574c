//! TrainingRuntime and ClusterTrainingRuntime of Kubeflow Trainer, `trainer.kubeflow.org/v1alpha1`: what TrainJobs run
//! in, for one namespace or for all.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::jobset::JobSetSpec;
use super::schemas;

/// What a TrainingRuntime is.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "trainer.kubeflow.org",
    version = "v1alpha1",
    kind = "TrainingRuntime",
    plural = "trainingruntimes",
    namespaced,
    derive = "PartialEq",
    derive = "Default",
    doc = "What TrainJobs of its namespace run in."
)]
#[serde(rename_all = "camelCase")]
pub struct TrainingRuntimeSpec {
    /// How the processes of the training find each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ml_policy: Option<MlPolicy>,
    /// The gang's settings for other schedulers. Muster starts every TrainJob as a gang; kept as given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::any_object")]
    pub pod_group_policy: Option<Value>,
    /// The JobSet of a TrainJob.
    pub template: JobSetTemplate,
}

/// What a ClusterTrainingRuntime is: the same, for all namespaces.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "trainer.kubeflow.org",
    version = "v1alpha1",
    kind = "ClusterTrainingRuntime",
    plural = "clustertrainingruntimes",
    derive = "PartialEq",
    derive = "Default",
    doc = "What TrainJobs of all namespaces run in."
)]
#[serde(rename_all = "camelCase")]
pub struct ClusterTrainingRuntimeSpec {
    /// How the processes of the training find each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ml_policy: Option<MlPolicy>,
    /// The gang's settings for other schedulers. Muster starts every TrainJob as a gang; kept as given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::any_object")]
    pub pod_group_policy: Option<Value>,
    /// The JobSet of a TrainJob.
    pub template: JobSetTemplate,
}

impl From<ClusterTrainingRuntimeSpec> for TrainingRuntimeSpec {
    fn from(spec: ClusterTrainingRuntimeSpec) -> TrainingRuntimeSpec {
        TrainingRuntimeSpec {
            ml_policy: spec.ml_policy,
            pod_group_policy: spec.pod_group_policy,
            template: spec.template,
        }
    }
}

/// The JobSet of a TrainJob.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobSetTemplate {
    /// Labels and annotations of the JobSet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::any_object")]
    pub metadata: Option<ObjectMeta>,
    /// The JobSet's spec.
    pub spec: JobSetSpec,
}

/// How the processes of a training find each other: at most one of the frameworks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MlPolicy {
    /// The number of pods; 1 unless given. A TrainJob may have another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub num_nodes: Option<i32>,
    /// PyTorch by torchrun: variables `PET_*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::any_object")]
    pub torch: Option<Value>,
    /// MPI; refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::any_object")]
    pub mpi: Option<Value>,
    /// Flux; refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::any_object")]
    pub flux: Option<Value>,
    /// JAX: variables `JAX_*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::any_object")]
    pub jax: Option<Value>,
    /// XGBoost: variables `DMLC_*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::any_object")]
    pub xgboost: Option<Value>,
}
