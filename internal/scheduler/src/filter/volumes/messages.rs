//! Messages for claims that a pod must wait for.

/// What is wrong with a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
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

impl Kind {
    /// True if it is unbound although its binding does not wait for pods.
    pub(super) fn is_unbound(self) -> bool {
        use Kind::{Classless, NoSuchClass, Prebound, Unbound};
        matches!(self, Unbound | Prebound | Classless | NoSuchClass)
    }
}

/// A claim that a pod must wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) kind: Kind,
    pub(crate) namespace: String,
    pub(crate) claim: String,
    /// Its class or its volume, whichever matters.
    pub(crate) other: String,
}

impl Hold {
    /// kube-scheduler's message for all nodes.
    pub(crate) fn words(&self) -> String {
        let Hold { claim, other, .. } = self;
        match self.kind {
            Kind::Missing => format!("persistentvolumeclaim {claim:?} not found"),
            Kind::NotMadeYet => format!(
                "waiting for ephemeral volume controller to create the persistentvolumeclaim {claim:?}"
            ),
            Kind::Deleting => format!("persistentvolumeclaim {claim:?} is being deleted"),
            Kind::Lost => format!(
                "persistentvolumeclaim {claim:?} bound to non-existent persistentvolume {other:?}"
            ),
            Kind::NotOurs => {
                format!(
                    "persistentvolumeclaim {claim:?} was not created for the pod (pod is not owner)"
                )
            }
            Kind::Classless | Kind::NoSuchClass | Kind::Prebound | Kind::Unbound => {
                format!("pod has unbound immediate PersistentVolumeClaims ({claim})")
            }
            Kind::VolumeMissing => format!(
                "persistentvolumeclaim {claim:?} bound to non-existent persistentvolume {other:?}"
            ),
        }
    }

    /// What the pod waits for.
    pub(crate) fn binding(&self) -> String {
        let Hold { claim, other, .. } = self;
        match self.kind {
            Kind::Missing => format!("PersistentVolumeClaim {claim} does not exist"),
            Kind::NotMadeYet => format!(
                "the ephemeral volume controller has not created PersistentVolumeClaim {claim} for the pod yet"
            ),
            Kind::Deleting => format!("PersistentVolumeClaim {claim} is being deleted"),
            Kind::Lost | Kind::VolumeMissing => format!(
                "PersistentVolumeClaim {claim} is bound to PersistentVolume {other}, which does not exist"
            ),
            Kind::NotOurs => format!(
                "PersistentVolumeClaim {claim} has the name of the pod's ephemeral volume, but the pod does not own it"
            ),
            Kind::Classless => format!(
                "PersistentVolumeClaim {claim} is not bound to a volume, and names no StorageClass that would provision one"
            ),
            Kind::NoSuchClass => format!(
                "PersistentVolumeClaim {claim} is not bound to a volume, and its StorageClass {other} does not exist"
            ),
            Kind::Prebound => format!(
                "PersistentVolumeClaim {claim} is not bound yet to PersistentVolume {other}, which it names"
            ),
            Kind::Unbound => format!(
                "PersistentVolumeClaim {claim} is not bound to a volume, and its StorageClass {other} does not wait for pods (volumeBindingMode: Immediate)"
            ),
        }
    }

    /// What a user could do about it.
    pub(crate) fn remedy(&self) -> String {
        let Hold {
            namespace,
            claim,
            other,
            ..
        } = self;
        match self.kind {
            Kind::Missing => {
                format!("create PersistentVolumeClaim {claim} in namespace {namespace}")
            }
            Kind::NotMadeYet => "the ephemeral volume controller creating it".to_owned(),
            Kind::Deleting => {
                "that claim created again after its deletion, or another claim in the pod"
                    .to_owned()
            }
            Kind::Lost | Kind::VolumeMissing => {
                format!(
                    "PersistentVolume {other} created again, or the claim deleted and created again"
                )
            }
            Kind::NotOurs => format!(
                "another name for the pod or its volume, or PersistentVolumeClaim {claim} deleted"
            ),
            Kind::Classless => {
                "a PersistentVolume that fits it, or a claim with a storageClassName".to_owned()
            }
            Kind::NoSuchClass => format!("create StorageClass {other}"),
            Kind::Prebound => {
                format!(
                    "PersistentVolume {other}, present, free, and as large as the claim requests"
                )
            }
            Kind::Unbound => format!(
                "a volume for the claim; `kubectl describe pvc {claim} -n {namespace}` shows what the claim waits for"
            ),
        }
    }
}
