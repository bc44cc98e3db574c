//! Why a container can't be created.

use devices::allocation::AllocationError;
use resources::invalid_value::InvalidValue;
use runtime::SpecError;

use crate::confinement::ConfinementError;
use crate::env::EnvError;

/// Why a container can't be created; its text is the reason in the container's status.
#[derive(Debug, thiserror::Error)]
pub enum ContainerError {
    /// The pod has no such container.
    #[error("the pod has no container {0:?}")]
    Unknown(String),
    /// A process without a command.
    #[error(
        "container {0:?} has neither command nor args; a container without an image needs one of them"
    )]
    NoCommand(String),
    /// A variable has no value.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// Its devices can't be given.
    #[error(transparent)]
    Devices(#[from] AllocationError),
    /// Its security context is refused.
    #[error(transparent)]
    Confinement(#[from] ConfinementError),
    /// It mounts a volume that the pod lacks.
    #[error("container {container:?} mounts volume {volume:?}, which the pod does not have")]
    NoVolume {
        /// The container.
        container: String,
        /// The volume.
        volume: String,
    },
    /// A field's value can't be used.
    #[error(transparent)]
    Field(#[from] InvalidValue),
    /// The runtime refuses the description.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The file for its termination message can't be made.
    #[error("{path}: {error}")]
    Message {
        /// The path in the container.
        path: &'static str,
        /// What failed.
        error: String,
    },
}
