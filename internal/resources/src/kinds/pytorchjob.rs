//! PyTorchJob, `kubeflow.org/v1`.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
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
    kind = "PyTorchJob",
    plural = "pytorchjobs",
    namespaced,
    status = "TrainingJobStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A distributed PyTorch training job: a master and workers, or elastic workers alone."
)]
#[serde(rename_all = "camelCase")]
pub struct PyTorchJobSpec {
    /// How the job runs as a whole.
    #[serde(default)]
    pub run_policy: RunPolicy,
    /// Lets the number of workers change while the job runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elastic_policy: Option<ElasticPolicy>,
    /// The replicas by type: Master and Worker.
    pub pytorch_replica_specs: BTreeMap<String, ReplicaSpec>,
    /// Processes per replica: `auto`, `cpu`, `gpu`, or a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::int_or_string")]
    pub nproc_per_node: Option<IntOrString>,
}

/// How the number of workers may change.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ElasticPolicy {
    /// Fewest workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_replicas: Option<i32>,
    /// Most workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_replicas: Option<i32>,
    /// torchrun's rendezvous backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdzv_backend: Option<String>,
    /// The rendezvous port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdzv_port: Option<i32>,
    /// The rendezvous host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdzv_host: Option<String>,
    /// The rendezvous id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdzv_id: Option<String>,
    /// More of torchrun's rendezvous configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdzv_conf: Option<Vec<RdzvConf>>,
    /// A rendezvous on the replica itself, for jobs of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standalone: Option<bool>,
    /// Processes per replica. Kubeflow keeps it for old manifests; `spec.nprocPerNode` is preferred.
    #[serde(
        default,
        rename = "nProcPerNode",
        skip_serializing_if = "Option::is_none"
    )]
    pub n_proc_per_node: Option<i32>,
    /// torchrun's restarts of its worker group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_restarts: Option<i32>,
    /// Metrics for a horizontal autoscaler (autoscaling/v2 MetricSpecs).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::any_objects")]
    pub metrics: Option<Vec<serde_json::Value>>,
}

/// One key of torchrun's rendezvous configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RdzvConf {
    /// The key.
    #[serde(default)]
    pub key: String,
    /// The value.
    #[serde(default)]
    pub value: String,
}
