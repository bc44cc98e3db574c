//! XGBoostJob, `kubeflow.org/v1`.

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
    kind = "XGBoostJob",
    plural = "xgboostjobs",
    namespaced,
    status = "TrainingJobStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A distributed XGBoost training job: a master, which runs the tracker, and workers."
)]
#[serde(rename_all = "camelCase")]
pub struct XGBoostJobSpec {
    /// How the job runs as a whole.
    #[serde(default)]
    pub run_policy: RunPolicy,
    /// The replicas by type: Master and Worker.
    pub xgb_replica_specs: BTreeMap<String, ReplicaSpec>,
}
