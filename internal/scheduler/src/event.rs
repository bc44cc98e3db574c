//! The events that the scheduler takes. An event carries the whole current object, so a duplicate
//! or late event does no harm.

use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::storage::v1::{
    CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment,
};
use resources::kinds::{PodGroup, Queue};

/// A change in the cluster.
#[derive(Clone, Debug)]
pub enum Event {
    /// A node appeared or changed.
    NodeChanged(Box<Node>),
    /// The node of this name is gone.
    NodeGone(String),
    /// A pod appeared or changed.
    PodChanged(Box<Pod>),
    /// The pod of this namespace and name is gone, with all it held.
    PodGone(String, String),
    /// A gang's PodGroup appeared or changed.
    PodGroupChanged(Box<PodGroup>),
    /// The PodGroup of this namespace and name is gone.
    PodGroupGone(String, String),
    /// A queue appeared or changed.
    QueueChanged(Box<Queue>),
    /// The queue of this name is gone.
    QueueGone(String),
    /// A namespace appeared or changed. Only its labels matter: queues select namespaces by them.
    NamespaceChanged(Box<Namespace>),
    /// The namespace of this name is gone.
    NamespaceGone(String),
    /// A PodDisruptionBudget appeared or changed.
    BudgetChanged(Box<PodDisruptionBudget>),
    /// The PodDisruptionBudget of this namespace and name is gone.
    BudgetGone(String, String),
    /// A priority class appeared or changed.
    PriorityClassChanged(Box<PriorityClass>),
    /// The priority class of this name is gone.
    PriorityClassGone(String),
    /// A PersistentVolumeClaim appeared or changed.
    ClaimChanged(Box<PersistentVolumeClaim>),
    /// The PersistentVolumeClaim of this namespace and name is gone.
    ClaimGone(String, String),
    /// A PersistentVolume appeared or changed.
    VolumeChanged(Box<PersistentVolume>),
    /// The PersistentVolume of this name is gone.
    VolumeGone(String),
    /// A StorageClass appeared or changed.
    StorageClassChanged(Box<StorageClass>),
    /// The StorageClass of this name is gone.
    StorageClassGone(String),
    /// A CSINode appeared or changed.
    CsiNodeChanged(Box<CSINode>),
    /// The CSINode of this name is gone.
    CsiNodeGone(String),
    /// A CSIDriver appeared or changed.
    CsiDriverChanged(Box<CSIDriver>),
    /// The CSIDriver of this name is gone.
    CsiDriverGone(String),
    /// A CSIStorageCapacity appeared or changed.
    StorageCapacityChanged(Box<CSIStorageCapacity>),
    /// The CSIStorageCapacity of this namespace and name is gone.
    StorageCapacityGone(String, String),
    /// A VolumeAttachment appeared or changed.
    AttachmentChanged(Box<VolumeAttachment>),
    /// The VolumeAttachment of this name is gone.
    AttachmentGone(String),
}
