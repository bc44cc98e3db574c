//! TFJob, `kubeflow.org/v1`.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::training::{ReplicaSpec, RunPolicy, TrainingJobStatus};

/// What a training job should be.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kubeflow.org",
    version = "v1",
    kind = "TFJob",
    plural = "tfjobs",
    namespaced,
    status = "TrainingJobStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A distributed TensorFlow training job: a chief, workers, parameter servers and an evaluator."
)]
#[serde(rename_all = "camelCase")]
pub struct TFJobSpec {
    /// How the job runs as a whole.
    #[serde(default)]
    pub run_policy: RunPolicy,
    /// When the job has succeeded, if it has no chief and no master; when worker 0 has, unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success_policy: Option<SuccessPolicy>,
    /// Lets workers come and go: each worker's `TF_CONFIG` names only itself and the parameter servers, and a failed
    /// worker does not fail the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable_dynamic_worker: Option<bool>,
    /// The replicas by type: Chief or Master, Worker, PS and Evaluator.
    pub tf_replica_specs: BTreeMap<String, ReplicaSpec>,
}

/// When a TFJob without chief and master has succeeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum SuccessPolicy {
    /// When worker 0 has.
    #[default]
    #[serde(rename = "")]
    Default,
    /// When all workers have.
    AllWorkers,
}
