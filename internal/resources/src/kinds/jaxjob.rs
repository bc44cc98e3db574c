//! JAXJob, `kubeflow.org/v1`.

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
    kind = "JAXJob",
    plural = "jaxjobs",
    namespaced,
    status = "TrainingJobStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A distributed JAX training job: workers, of which the first is the coordinator."
)]
#[serde(rename_all = "camelCase")]
pub struct JAXJobSpec {
    /// How the job runs as a whole.
    #[serde(default)]
    pub run_policy: RunPolicy,
    /// The replicas by type: Worker.
    pub jax_replica_specs: BTreeMap<String, ReplicaSpec>,
}
