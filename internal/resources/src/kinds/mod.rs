//! The custom kinds: the training kinds as in Kubeflow's training operator 1.9, Queue and PodGroup as in Volcano 1.16, field by
//! field, so that users' manifests keep their meaning; RayCluster, RayJob and RayService as in KubeRay 1.7; JobSet, LeaderWorkerSet, and Kubeflow Trainer's kinds as in 2.3; and the kinds that Muster stores but
//! does not run yet: Volcano's Job, ScaledObject, Knative's Service. The CRDs in `api/crds` are generated from these types.
//! Types only; names, columns, defaulting and validation are in [`crate::registry`].

mod jaxjob;
mod jobset;
mod knativeservice;
mod leaderworkerset;
mod mpijob;
mod paddlejob;
mod podgroup;
mod pytorchjob;
mod queue;
mod raycluster;
mod rayjob;
mod rayservice;
mod scaledobject;
mod schemas;
mod tfjob;
mod training;
mod trainingruntime;
mod trainjob;
mod volcanocommand;
mod volcanojob;
mod xgboostjob;

pub use knativeservice::{KnativeService, KnativeServiceSpec, KnativeServiceStatus};

pub use jaxjob::{JAXJob, JAXJobSpec};
pub use jobset::{
    JobSet, JobSetCoordinator, JobSetFailurePolicy, JobSetFailureRule, JobSetNetwork, JobSetSpec,
    JobSetStartupPolicy, JobSetStatus, JobSetSuccessPolicy, ReplicatedJob, ReplicatedJobDependency,
    ReplicatedJobStatus,
};
pub use leaderworkerset::{
    LeaderWorkerNetwork, LeaderWorkerRollingUpdate, LeaderWorkerRollout, LeaderWorkerSet,
    LeaderWorkerSetSpec, LeaderWorkerSetStatus, LeaderWorkerTemplate, SubGroupPolicy,
};
pub use mpijob::{LauncherCreationPolicy, MPIJob, MPIJobSpec, MpiImplementation};
pub use paddlejob::{PaddleElasticPolicy, PaddleJob, PaddleJobSpec};
pub use podgroup::{
    NetworkTopologyMode, NetworkTopologySpec, PodGroup, PodGroupCondition, PodGroupPhase,
    PodGroupSpec, PodGroupStatus,
};
pub use pytorchjob::{ElasticPolicy, PyTorchJob, PyTorchJobSpec, RdzvConf};
pub use queue::{
    Guarantee, Queue, QueueAffinity, QueueAffinityGroups, QueueCluster, QueueSpec, QueueState,
    QueueStatus, Reservation,
};
pub use raycluster::{
    HeadGroupSpec, RayCluster, RayClusterSpec, RayClusterStatus, RayHeadInfo, ScaleStrategy,
    WorkerGroupSpec,
};
pub use rayjob::{
    DeletionCondition, DeletionPolicy, DeletionRule, DeletionStrategy, RayJob, RayJobSpec,
    RayJobStatus, SubmitterConfig,
};
pub use rayservice::{
    RayService, RayServiceClusterStatus, RayServiceSpec, RayServiceStatus,
    RayServiceUpgradeStrategy, ServeApplicationStatus, ServeDeploymentStatus, SubmittedConfig,
};
pub use scaledobject::{
    ScaleTargetRef, ScaleTrigger, ScaledObject, ScaledObjectSpec, ScaledObjectStatus,
};
pub use tfjob::{SuccessPolicy, TFJob, TFJobSpec};
pub use training::{
    CleanPodPolicy, JobCondition, JobConditionType, ReplicaSpec, ReplicaStatus, RestartPolicy,
    RunPolicy, SchedulingPolicy, TrainingJobStatus,
};
pub use trainingruntime::{
    ClusterTrainingRuntime, ClusterTrainingRuntimeSpec, JobSetTemplate, MlPolicy, TrainingRuntime,
    TrainingRuntimeSpec,
};
pub use trainjob::{
    Initializer, InitializerSource, RuntimePatch, RuntimeRef, TrainJob, TrainJobJobStatus,
    TrainJobSpec, TrainJobStatus, Trainer,
};
pub use volcanocommand::VolcanoCommand;
pub use volcanojob::{
    DependsOn, JobVolume, LifecyclePolicy, TaskSpec, VolcanoJob, VolcanoJobCondition,
    VolcanoJobSpec, VolcanoJobState, VolcanoJobStatus, VolcanoTaskStatus,
};
pub use xgboostjob::{XGBoostJob, XGBoostJobSpec};
