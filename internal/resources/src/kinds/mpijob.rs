//! MPIJob, `kubeflow.org/v2beta1`. Users also write `v1` for the same kind, whose fields are among these.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::training::{CleanPodPolicy, ReplicaSpec, RunPolicy, TrainingJobStatus};

/// What an MPI job should be.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kubeflow.org",
    version = "v2beta1",
    kind = "MPIJob",
    plural = "mpijobs",
    namespaced,
    status = "TrainingJobStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "An MPI job: a launcher, which runs mpirun, and the workers on which the ranks run."
)]
#[serde(rename_all = "camelCase")]
pub struct MPIJobSpec {
    /// Ranks that a worker has room for; 1 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub slots_per_worker: Option<i32>,
    /// Whether ranks run in the launcher's pod, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_launcher_as_worker: Option<bool>,
    /// How the job runs as a whole. Unless its `cleanPodPolicy` says otherwise, workers that still run when the job ends
    /// are deleted: they do not end by themselves.
    #[serde(default)]
    pub run_policy: RunPolicy,
    /// The replicas by type: Launcher and Worker.
    pub mpi_replica_specs: BTreeMap<String, ReplicaSpec>,
    /// Where the keys for SSH are mounted; `/root/.ssh` unless given.
    #[serde(
        default,
        rename = "sshAuthMountPath",
        skip_serializing_if = "Option::is_none"
    )]
    pub ssh_auth_mount_path: Option<String>,
    /// When the launcher's pod is created; AtStartup unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launcher_creation_policy: Option<LauncherCreationPolicy>,
    /// The implementation, which decides the form of the hostfile and the variables; OpenMPI unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mpi_implementation: Option<MpiImplementation>,
    /// The older place of `runPolicy.cleanPodPolicy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clean_pod_policy: Option<CleanPodPolicy>,
    /// The container in which ranks run, if a worker has several; the one named `mpi`, else the first, unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub main_container: Option<String>,
}

/// When the launcher's pod is created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum LauncherCreationPolicy {
    /// With the workers.
    #[default]
    AtStartup,
    /// Once all workers are ready.
    WaitForWorkersReady,
}

/// An implementation of MPI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum MpiImplementation {
    /// Open MPI.
    #[default]
    OpenMPI,
    /// Intel MPI.
    Intel,
    /// MPICH.
    MPICH,
}
