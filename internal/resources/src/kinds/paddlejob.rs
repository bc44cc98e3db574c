//! PaddleJob, `kubeflow.org/v1`.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schemas;
use super::training::{ReplicaSpec, RunPolicy, TrainingJobStatus};

/// What a training job should be.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kubeflow.org",
    version = "v1",
    kind = "PaddleJob",
    plural = "paddlejobs",
    namespaced,
    status = "TrainingJobStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A distributed PaddlePaddle training job: workers, or a master and workers."
)]
#[serde(rename_all = "camelCase")]
pub struct PaddleJobSpec {
    /// How the job runs as a whole.
    #[serde(default)]
    pub run_policy: RunPolicy,
    /// Lets the number of workers change while the job runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elastic_policy: Option<PaddleElasticPolicy>,
    /// The replicas by type: Master and Worker.
    pub paddle_replica_specs: BTreeMap<String, ReplicaSpec>,
}

/// How the number of a PaddleJob's workers may change.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PaddleElasticPolicy {
    /// Fewest workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_replicas: Option<i32>,
    /// Most workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_replicas: Option<i32>,
    /// Restarts of the launcher.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_restarts: Option<i32>,
    /// Metrics for a horizontal autoscaler (autoscaling/v2 MetricSpecs).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::any_objects")]
    pub metrics: Option<Vec<serde_json::Value>>,
}
