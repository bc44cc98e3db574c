//! What the scheduler can be told. An event carries the whole object as it is now, so being told
//! twice, or late, does no harm.

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
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
    /// The pod of this namespace and name is gone; whatever it held is free.
    PodGone(String, String),
    /// A gang's PodGroup appeared or changed.
    PodGroupChanged(Box<PodGroup>),
    /// The PodGroup of this namespace and name is gone.
    PodGroupGone(String, String),
    /// A queue appeared or changed.
    QueueChanged(Box<Queue>),
    /// The queue of this name is gone.
    QueueGone(String),
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
    /// What a node says of its drivers of volumes appeared or changed.
    CsiNodeChanged(Box<CSINode>),
    /// The CSINode of this name is gone.
    CsiNodeGone(String),
    /// A driver of volumes appeared or changed.
    CsiDriverChanged(Box<CSIDriver>),
    /// The CSIDriver of this name is gone.
    CsiDriverGone(String),
    /// How much room a driver has somewhere appeared or changed.
    StorageCapacityChanged(Box<CSIStorageCapacity>),
    /// The CSIStorageCapacity of this namespace and name is gone.
    StorageCapacityGone(String, String),
    /// A volume is attached to a node, or is to be.
    AttachmentChanged(Box<VolumeAttachment>),
    /// The VolumeAttachment of this name is gone.
    AttachmentGone(String),
}
