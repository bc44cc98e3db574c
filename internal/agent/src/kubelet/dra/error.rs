//! Errors of the DRA driver: for a claim, in the kubelet's answer and so in the pod's events; and for the node's
//! ResourceSlices, in the agent's log.

use std::io;
use std::path::PathBuf;

use devices::dra::grant::GrantError;
use devices::dra::partitioning::ClaimPartitionError;
use kube::runtime::watcher;

/// Why a claim's devices cannot be prepared or released.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClaimError {
    /// The API did not answer with the claim.
    #[error("claim {claim} cannot be read: {error}")]
    Unread {
        /// `namespace/name` of the claim.
        claim: String,
        /// The API's error.
        error: Box<kube::Error>,
    },
    /// The claim of this uid does not exist.
    #[error("claim {claim} with uid {uid} is gone")]
    Gone {
        /// `namespace/name` of the claim.
        claim: String,
        /// The uid for which the kubelet asked.
        uid: String,
    },
    /// The allocated devices cannot be given to the claim.
    #[error(transparent)]
    Grant(#[from] GrantError),
    /// The devices that pods hold are unknown.
    #[error("the kubelet does not say which devices pods have: {0}")]
    Holders(tonic::Status),
    /// The CDI specs of claims cannot be read.
    #[error("CDI specs cannot be read: {0}")]
    SpecsUnread(io::Error),
    /// The claim's CDI spec cannot be written.
    #[error("its CDI spec cannot be written: {0}")]
    SpecUnwritten(io::Error),
    /// The claim's CDI spec cannot be removed.
    #[error("its CDI spec cannot be removed: {0}")]
    SpecKept(io::Error),
    /// A GPU with a device number has no device files.
    #[error(
        "{device} has no device files in {}; load the driver, or say where it has them (nvidiaDevRoot in \
         --device-plugin-config)",
        directory.display()
    )]
    NoDeviceFiles {
        /// The device.
        device: String,
        /// The directory in which its files should be.
        directory: PathBuf,
    },
    /// A claim with admin access cannot get a partition that does not exist yet.
    #[error("{device} was partitioned for the one claim that has it; leave out adminAccess")]
    AdminAccess {
        /// The allocated device.
        device: String,
    },
    /// A GPU was not partitioned, or a slice was not removed.
    #[error("{0}")]
    Cut(Box<ClaimPartitionError>),
}

impl From<ClaimPartitionError> for ClaimError {
    fn from(error: ClaimPartitionError) -> ClaimError {
        ClaimError::Cut(Box::new(error))
    }
}

/// Why the node's ResourceSlices do not show the machine's present devices.
#[derive(Debug, thiserror::Error)]
pub(super) enum SlicePublishError {
    /// The slices cannot be watched.
    #[error("they cannot be watched: {0} (resource.k8s.io/v1 is Kubernetes 1.34's and later's)")]
    Watch(Box<watcher::Error>),
    /// The devices that pods hold are unknown.
    #[error("the kubelet does not say which devices pods have: {0}")]
    Holders(tonic::Status),
    /// The Node that owns the slices cannot be read.
    #[error("node {node}: {error}")]
    Node {
        /// The node's name.
        node: String,
        /// The API's error.
        error: Box<kube::Error>,
    },
    /// A slice cannot be written.
    #[error("{0}")]
    Write(Box<kube::Error>),
}

impl From<kube::Error> for SlicePublishError {
    fn from(error: kube::Error) -> SlicePublishError {
        SlicePublishError::Write(Box::new(error))
    }
}
