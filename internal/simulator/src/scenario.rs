//! Owns what is simulated: a cluster and the work that arrives, however it was written down.
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
    /// What to call it.
    pub name: String,
    /// The wall time of second 0.
    pub start: Timestamp,
    /// The nodes.
    pub nodes: Vec<Node>,
    /// The queues. Queues that only work names are made by the engine, with weight 1.
    pub queues: Vec<Queue>,
    /// Priority classes.
    pub priority_classes: Vec<PriorityClass>,
    /// PodDisruptionBudgets.
    pub budgets: Vec<PodDisruptionBudget>,
    /// What pods' volumes are claimed by.
    pub claims: Vec<PersistentVolumeClaim>,
    /// Volumes, and from where they are reached.
    pub volumes: Vec<PersistentVolume>,
    /// Where volumes can be made.
    pub storage_classes: Vec<StorageClass>,
    /// What drivers of volumes say.
    pub storage: Storage,
    /// Quotas of namespaces.
    pub quotas: Vec<ResourceQuota>,
    /// The work, in any order.
    pub jobs: Vec<Job>,
    /// How the production scheduler is set up, as far as it was said.
    pub settings: Settings,
    /// What the reader left out or assumed, in sentences.
    pub notes: Vec<String>,
}

/// What drivers of volumes say.
#[derive(Clone, Debug, Default)]
pub struct Storage {
    /// How many disks each node takes.
    pub nodes: Vec<CSINode>,
    /// The drivers themselves.
    pub drivers: Vec<CSIDriver>,
    /// Where there is how much room.
    pub capacities: Vec<CSIStorageCapacity>,
    /// What is attached where.
    pub attachments: Vec<VolumeAttachment>,
}

/// One piece of work.
#[derive(Clone, Debug, Default)]
pub struct Job {
    /// Its namespace.
    pub namespace: String,
    /// Its name; unique in its namespace among jobs of its sort.
    pub name: String,
    /// The queue that it names.
    pub queue: String,
    /// Whose it is, where that is known.
    pub user: Option<String>,
    /// Its priority, where the work is given by numbers.
    pub priority: i32,
    /// When it arrives.
    pub arrival: Seconds,
    /// How long it runs once whole; none for ever.
    pub duration: Option<Seconds>,
    /// How long its owner says that it may run.
    pub walltime: Option<Seconds>,
    /// For work that runs at the start: for how long it has.
    pub elapsed: Seconds,
    /// What it is.
    pub work: Work,
}

/// What a job consists of.
#[derive(Clone, Debug)]
pub enum Work {
    /// A gang by numbers: so many pods of each shape, all of which start together.
    Shaped(Vec<(Arc<Shape>, u32)>),
    /// Pods as they were written, with their PodGroup if they have one.
    Pods(Option<Box<PodGroup>>, Vec<Pod>),
    /// A PyTorchJob, taken apart by its controller.
    PyTorch(Box<PyTorchJob>),
    /// A Job, taken apart by its controller.
    Batch(Box<BatchJob>),
}

impl Default for Work {
    fn default() -> Work {
        Work::Shaped(Vec::new())
    }
}

/// What one pod of a trace asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape {
    /// Thousandths of a core.
    pub cpu_milli: i64,
    /// MiB of memory.
    pub memory_mib: i64,
    /// Whole GPUs.
    pub gpus: i64,
    /// Thousandths of one GPU, where it asks for a part of one.
    pub gpu_milli: i64,
    /// GPU models that it takes; any if empty.
    pub models: Vec<String>,
}

impl Job {
    /// How long schedulers that plan ahead may expect it to run.
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

    /// The nodes that written pods are on at the start, once for each pod.
    pub(crate) fn pods_on_nodes(&self) -> impl Iterator<Item = &str> {
        let pods = self.jobs.iter().filter_map(|job| match &job.work {
            Work::Pods(_, pods) => Some(pods),
            _ => None,
        });
        pods.flatten()
            .filter_map(|pod| pod.spec.as_ref()?.node_name.as_deref())
    }
}
