//! Keeps pods from filling the node's disk. Every 10 seconds the agent measures the use of each pod
//! ([`measure`]) and evicts a pod that exceeds a limit ([`limits`]). Every second it reads the free
//! space of the file system of its data. If that is too low, it first removes logs of ended pods, the
//! oldest first, and then evicts one pod at a time ([`rounds`]): pods whose count is doubtful
//! ([`doubt`]), then those with the highest use beyond their request ([`pressure`]).
//!
//! Between two looks a pod can write as fast as the disk accepts, so it can fill the disk for
//! seconds. Claims, `hostPath` volumes and images are not counted: they outlast pods, and the
//! administrator manages them. Files that a process removed and keeps open are not counted either.

mod doubt;
pub mod limits;
pub mod measure;
pub mod pressure;
pub mod rounds;

pub use limits::{DiskLimits, LEAST_POD_DISK, PodDisk};
pub use measure::{DiskUser, PodDirectoryKind};
pub use pressure::{Pressure, allocatable};

/// Why a pod is evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PressureReason {
    /// The message, in the kubelet's words.
    pub message: String,
    /// Whether the node evicts the pod to protect itself, and not for a limit of the pod's own.
    pub by_node: bool,
}
