//! The input of a simulation: a cluster and the arriving work, independent of the file format.
//! Decides nothing.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::{
    Node, PersistentVolume, PersistentVolumeClaim, Pod, ResourceQuota,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::storage::v1::{
    CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment,
};
use resources::kinds::{PodGroup, PyTorchJob, Queue};

use crate::settings::Settings;

/// Seconds of simulated time.
pub type Seconds = i64;

/// A cluster and the work that arrives there.
#[derive(Clone, Debug, Default)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// The wall time of second 0.
    pub start: Timestamp,
    /// The nodes.
    pub nodes: Vec<Node>,
    /// The queues. The engine creates queues that only work names, with weight 1.
    pub queues: Vec<Queue>,
    /// Priority classes.
    pub priority_classes: Vec<PriorityClass>,
    /// PodDisruptionBudgets.
    pub budgets: Vec<PodDisruptionBudget>,
    /// PersistentVolumeClaims of pods.
    pub claims: Vec<PersistentVolumeClaim>,
    /// PersistentVolumes, with their node affinity.
    pub volumes: Vec<PersistentVolume>,
    /// StorageClasses.
    pub storage_classes: Vec<StorageClass>,
    /// The objects of volume drivers.
    pub storage: Storage,
    /// Quotas of namespaces.
    pub quotas: Vec<ResourceQuota>,
    /// The work, in any order.
    pub jobs: Vec<Job>,
    /// The production scheduler's settings, as far as the input sets them.
    pub settings: Settings,
    /// Notes on omissions and assumptions of the reader, in sentences.
    pub notes: Vec<String>,
}

/// The objects of volume drivers.
#[derive(Clone, Debug, Default)]
pub struct Storage {
    /// How many volumes can be attached to each node.
    pub nodes: Vec<CSINode>,
    /// The drivers themselves.
    pub drivers: Vec<CSIDriver>,
    /// The free capacity of storage, by topology.
    pub capacities: Vec<CSIStorageCapacity>,
    /// Current attachments of volumes to nodes.
    pub attachments: Vec<VolumeAttachment>,
}

/// One piece of work.
#[derive(Clone, Debug, Default)]
pub struct Job {
    /// Its namespace.
    pub namespace: String,
    /// Its name; unique in its namespace among jobs of the same kind.
    pub name: String,
    /// The queue that it names.
    pub queue: String,
    /// Its user, if known.
    pub user: Option<String>,
    /// Its priority, if the work is given by numbers.
    pub priority: i32,
    /// When it arrives.
    pub arrival: Seconds,
    /// How long it runs once complete; none for ever.
    pub duration: Option<Seconds>,
    /// The walltime that its owner requests.
    pub walltime: Option<Seconds>,
    /// For work that runs at the start: how long it has run.
    pub elapsed: Seconds,
    /// Its content.
    pub work: JobWork,
}

/// The content of a job.
#[derive(Clone, Debug)]
pub enum JobWork {
    /// A gang by numbers: a count of pods for each shape, all of which start together.
    Shaped(Vec<(Arc<PodShape>, u32)>),
    /// Pods as written in the input, with their PodGroup if they have one.
    Pods(Option<Box<PodGroup>>, Vec<Pod>),
    /// A PyTorchJob, which its controller expands.
    PyTorch(Box<PyTorchJob>),
    /// A Job, which its controller expands.
    Batch(Box<BatchJob>),
}

impl Default for JobWork {
    fn default() -> JobWork {
        JobWork::Shaped(Vec::new())
    }
}

/// The requests of one pod of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodShape {
    /// Thousandths of a core.
    pub cpu_milli: i64,
    /// MiB of memory.
    pub memory_mib: i64,
    /// Whole GPUs.
    pub gpus: i64,
    /// Thousandths of one GPU, if it requests a part of one.
    pub gpu_milli: i64,
    /// GPU models that it accepts; any if empty.
    pub models: Vec<String>,
}

impl Job {
    /// The duration that schedulers with reservations may expect.
    #[must_use]
    pub fn estimate(&self) -> Option<Seconds> {
        self.walltime.or(self.duration)
    }
}

impl Scenario {
    /// The weights of the queues, in their order.
    pub(crate) fn weights(&self) -> Vec<i64> {
        let weights = self.queues.iter().map(|queue| queue.spec.weight);
        weights
            .map(|weight| i64::from(weight.unwrap_or(1)))
            .collect()
    }

    /// The nodes of bound pods in the input, once for each pod.
    pub(crate) fn pods_on_nodes(&self) -> impl Iterator<Item = &str> {
        let pods = self.jobs.iter().filter_map(|job| match &job.work {
            JobWork::Pods(_, pods) => Some(pods),
            _ => None,
        });
        pods.flatten()
            .filter_map(|pod| pod.spec.as_ref()?.node_name.as_deref())
    }
}
