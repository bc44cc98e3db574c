//! The kinds of jobs that have controllers here.

use resources::training::{self as training_kinds, TrainingKind};

/// A kind of job that has a controller here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobKind {
    /// `apps/v1` Deployment. In a Kubernetes cluster kube-controller-manager controls it.
    Deployment,
    /// `apps/v1` ReplicaSet, likewise.
    ReplicaSet,
    /// `apps/v1` StatefulSet, likewise.
    StatefulSet,
    /// `apps/v1` DaemonSet, likewise.
    DaemonSet,
    /// `batch/v1` CronJob. In a Kubernetes cluster kube-controller-manager controls it.
    CronJob,
    /// `batch/v1` Job. In a Kubernetes cluster kube-controller-manager controls it.
    Job,
    /// `kubeflow.org/v1` PyTorchJob.
    PyTorchJob,
    /// `kubeflow.org/v1` TFJob.
    TFJob,
    /// `kubeflow.org/v1` XGBoostJob.
    XGBoostJob,
    /// `kubeflow.org/v1` PaddleJob.
    PaddleJob,
    /// `kubeflow.org/v1` JAXJob.
    JAXJob,
    /// `batch.volcano.sh/v1alpha1` Job, of the embedded engine.
    VolcanoJob,
    /// `ray.io/v1` RayCluster. In a Kubernetes cluster KubeRay controls it.
    RayCluster,
    /// `ray.io/v1` RayJob, likewise.
    RayJob,
    /// `ray.io/v1` RayService, likewise.
    RayService,
    /// `kubeflow.org/v2beta1` MPIJob.
    MPIJob,
    /// `jobset.x-k8s.io/v1alpha2` JobSet, of the embedded engine.
    JobSet,
    /// `trainer.kubeflow.org/v1alpha1` TrainJob, likewise.
    TrainJob,
    /// `leaderworkerset.x-k8s.io/v1` LeaderWorkerSet, likewise.
    LeaderWorkerSet,
}

impl JobKind {
    /// All kinds.
    pub const ALL: [JobKind; 19] = [
        JobKind::Deployment,
        JobKind::ReplicaSet,
        JobKind::StatefulSet,
        JobKind::DaemonSet,
        JobKind::CronJob,
        JobKind::Job,
        JobKind::PyTorchJob,
        JobKind::TFJob,
        JobKind::XGBoostJob,
        JobKind::PaddleJob,
        JobKind::JAXJob,
        JobKind::VolcanoJob,
        JobKind::RayCluster,
        JobKind::RayJob,
        JobKind::RayService,
        JobKind::MPIJob,
        JobKind::JobSet,
        JobKind::TrainJob,
        JobKind::LeaderWorkerSet,
    ];

    /// The training kinds: those that Muster can control in a Kubernetes cluster.
    pub const TRAINING: [JobKind; 6] = [
        JobKind::PyTorchJob,
        JobKind::TFJob,
        JobKind::XGBoostJob,
        JobKind::PaddleJob,
        JobKind::JAXJob,
        JobKind::MPIJob,
    ];

    /// The description of a training kind.
    #[must_use]
    pub fn training(self) -> Option<&'static TrainingKind> {
        match self {
            JobKind::PyTorchJob => Some(&training_kinds::PYTORCH_JOB),
            JobKind::TFJob => Some(&training_kinds::TF_JOB),
            JobKind::XGBoostJob => Some(&training_kinds::XGBOOST_JOB),
            JobKind::PaddleJob => Some(&training_kinds::PADDLE_JOB),
            JobKind::JAXJob => Some(&training_kinds::JAX_JOB),
            JobKind::MPIJob => Some(&training_kinds::MPI_JOB),
            JobKind::Deployment
            | JobKind::ReplicaSet
            | JobKind::StatefulSet
            | JobKind::DaemonSet
            | JobKind::CronJob
            | JobKind::Job
            | JobKind::VolcanoJob
            | JobKind::RayCluster
            | JobKind::RayJob
            | JobKind::RayService
            | JobKind::JobSet
            | JobKind::TrainJob
            | JobKind::LeaderWorkerSet => None,
        }
    }

    /// The kind's name as manifests spell it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            JobKind::Deployment => "Deployment",
            JobKind::ReplicaSet => "ReplicaSet",
            JobKind::StatefulSet => "StatefulSet",
            JobKind::DaemonSet => "DaemonSet",
            JobKind::CronJob => "CronJob",
            JobKind::Job => "Job",
            JobKind::PyTorchJob => "PyTorchJob",
            JobKind::TFJob => "TFJob",
            JobKind::XGBoostJob => "XGBoostJob",
            JobKind::PaddleJob => "PaddleJob",
            JobKind::JAXJob => "JAXJob",
            JobKind::VolcanoJob => "VolcanoJob",
            JobKind::RayCluster => "RayCluster",
            JobKind::RayJob => "RayJob",
            JobKind::RayService => "RayService",
            JobKind::MPIJob => "MPIJob",
            JobKind::JobSet => "JobSet",
            JobKind::TrainJob => "TrainJob",
            JobKind::LeaderWorkerSet => "LeaderWorkerSet",
        }
    }
}
