//! Messages for claims that a pod must wait for.

/// What is wrong with a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ClaimProblem {
    /// It does not exist.
    Missing,
    /// It is to be created for the pod and does not exist yet.
    NotMadeYet,
    Deleting,
    Lost,
    /// It has the name of the pod's ephemeral volume and belongs to something else.
    NotOurs,
    /// It names no class and is unbound.
    Classless,
    /// Its class does not exist.
    NoSuchClass,
    /// It names its volume, and the binding is not complete.
    Prebound,
    /// Its class binds immediately, and it is not bound.
    Unbound,
    /// The volume that it is bound to does not exist.
    VolumeMissing,
}

impl ClaimProblem {
    /// True if it is unbound although its binding does not wait for pods.
    pub(super) fn is_unbound(self) -> bool {
        use ClaimProblem::{Classless, NoSuchClass, Prebound, Unbound};
        matches!(self, Unbound | Prebound | Classless | NoSuchClass)
    }
}

/// A claim that a pod must wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClaimWait {
    pub(crate) kind: ClaimProblem,
    pub(crate) namespace: String,
    pub(crate) claim: String,
    /// Its class or its volume, whichever matters.
    pub(crate) other: String,
}

impl ClaimWait {
    /// kube-scheduler's message for all nodes.
    pub(crate) fn message(&self) -> String {
        let ClaimWait { claim, other, .. } = self;
        match self.kind {
            ClaimProblem::Missing => format!("persistentvolumeclaim {claim:?} not found"),
            ClaimProblem::NotMadeYet => format!(
                "waiting for ephemeral volume controller to create the persistentvolumeclaim {claim:?}"
            ),
            ClaimProblem::Deleting => format!("persistentvolumeclaim {claim:?} is being deleted"),
            ClaimProblem::Lost => format!(
                "persistentvolumeclaim {claim:?} bound to non-existent persistentvolume {other:?}"
            ),
            ClaimProblem::NotOurs => {
                format!(
                    "persistentvolumeclaim {claim:?} was not created for the pod (pod is not owner)"
                )
            }
            ClaimProblem::Classless
            | ClaimProblem::NoSuchClass
            | ClaimProblem::Prebound
            | ClaimProblem::Unbound => {
                format!("pod has unbound immediate PersistentVolumeClaims ({claim})")
            }
            ClaimProblem::VolumeMissing => format!(
                "persistentvolumeclaim {claim:?} bound to non-existent persistentvolume {other:?}"
            ),
        }
    }

    /// What the pod waits for.
    pub(crate) fn binding(&self) -> String {
        let ClaimWait { claim, other, .. } = self;
        match self.kind {
            ClaimProblem::Missing => format!("PersistentVolumeClaim {claim} does not exist"),
            ClaimProblem::NotMadeYet => format!(
                "the ephemeral volume controller has not created PersistentVolumeClaim {claim} for the pod yet"
            ),
            ClaimProblem::Deleting => format!("PersistentVolumeClaim {claim} is being deleted"),
            ClaimProblem::Lost | ClaimProblem::VolumeMissing => format!(
                "PersistentVolumeClaim {claim} is bound to PersistentVolume {other}, which does not exist"
            ),
            ClaimProblem::NotOurs => format!(
                "PersistentVolumeClaim {claim} has the name of the pod's ephemeral volume, but the pod does not own it"
            ),
            ClaimProblem::Classless => format!(
                "PersistentVolumeClaim {claim} is not bound to a volume, and names no StorageClass that would provision one"
            ),
            ClaimProblem::NoSuchClass => format!(
                "PersistentVolumeClaim {claim} is not bound to a volume, and its StorageClass {other} does not exist"
            ),
            ClaimProblem::Prebound => format!(
                "PersistentVolumeClaim {claim} is not bound yet to PersistentVolume {other}, which it names"
            ),
            ClaimProblem::Unbound => format!(
                "PersistentVolumeClaim {claim} is not bound to a volume, and its StorageClass {other} does not wait for pods (volumeBindingMode: Immediate)"
            ),
        }
    }

    /// What a user could do about it.
    pub(crate) fn remedy(&self) -> String {
        let ClaimWait {
            namespace,
            claim,
            other,
            ..
        } = self;
        match self.kind {
            ClaimProblem::Missing => {
                format!("create PersistentVolumeClaim {claim} in namespace {namespace}")
            }
            ClaimProblem::NotMadeYet => "the ephemeral volume controller creating it".to_owned(),
            ClaimProblem::Deleting => {
                "that claim created again after its deletion, or another claim in the pod"
                    .to_owned()
            }
            ClaimProblem::Lost | ClaimProblem::VolumeMissing => {
                format!(
                    "PersistentVolume {other} created again, or the claim deleted and created again"
                )
            }
            ClaimProblem::NotOurs => format!(
                "another name for the pod or its volume, or PersistentVolumeClaim {claim} deleted"
            ),
            ClaimProblem::Classless => {
                "a PersistentVolume that fits it, or a claim with a storageClassName".to_owned()
            }
            ClaimProblem::NoSuchClass => format!("create StorageClass {other}"),
            ClaimProblem::Prebound => {
                format!(
                    "PersistentVolume {other}, present, free, and as large as the claim requests"
                )
            }
            ClaimProblem::Unbound => format!(
                "a volume for the claim; `kubectl describe pvc {claim} -n {namespace}` shows what the claim waits for"
            ),
        }
    }
}
