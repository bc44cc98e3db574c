//! The custom kinds: PyTorchJob as Kubeflow's training operator 1.9 has it, Queue and PodGroup as Volcano 1.16 has
//! them, field by field, so that users' manifests mean here what they mean there; and what is kept for its users
//! and not run yet: RayCluster, Volcano's Job, ScaledObject, Knative's Service. The CRDs in `api/crds` are generated
//! from these types. Types only; defaulting and validation are in [`crate::registry`].

#![allow(
    clippy::duplicated_attributes,
    reason = "clippy takes the columns of one `kube` attribute for repeats of each other"
)]

mod knativeservice;
mod podgroup;
mod pytorchjob;
mod queue;
mod raycluster;
mod scaledobject;
mod schemas;
mod volcanojob;

pub use knativeservice::{KnativeService, KnativeServiceSpec, KnativeServiceStatus};

pub use podgroup::{
    NetworkTopologyMode, NetworkTopologySpec, PodGroup, PodGroupCondition, PodGroupPhase,
    PodGroupSpec, PodGroupStatus,
};
pub use pytorchjob::{
    CleanPodPolicy, ElasticPolicy, JobCondition, JobConditionType, PyTorchJob, PyTorchJobSpec,
    PyTorchJobStatus, RdzvConf, ReplicaSpec, ReplicaStatus, RestartPolicy, RunPolicy,
    SchedulingPolicy,
};
pub use queue::{
    Guarantee, Queue, QueueAffinity, QueueAffinityGroups, QueueCluster, QueueSpec, QueueState,
    QueueStatus, Reservation,
};
pub use raycluster::{
    HeadGroupSpec, RayCluster, RayClusterSpec, RayClusterStatus, ScaleStrategy, WorkerGroupSpec,
};
pub use scaledobject::{
    ScaleTargetRef, ScaleTrigger, ScaledObject, ScaledObjectSpec, ScaledObjectStatus,
};
pub use volcanojob::{
    DependsOn, JobVolume, LifecyclePolicy, TaskSpec, VolcanoJob, VolcanoJobSpec, VolcanoJobState,
    VolcanoJobStatus,
};
