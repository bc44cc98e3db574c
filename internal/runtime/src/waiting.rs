//! Owns waiting for a change of a container's status, for processes and for containers of a container runtime.

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::error::RuntimeError;
use crate::spec::ContainerId;
use crate::state::{ContainerExit, ContainerState, ContainerStatus};

/// Looks now and after each change until `look` finds something. Fails where `look` does, and where there will be no
/// more changes. `changes` is subscribed to before the first look, so that none is missed.
pub(crate) async fn until<T>(
    id: &ContainerId,
    mut changes: Receiver<ContainerStatus>,
    look: impl Fn() -> Result<Option<T>, RuntimeError>,
) -> Result<T, RuntimeError> {
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if matches!(changes.recv().await, Err(RecvError::Closed)) {
            return Err(RuntimeError::NotFound(id.clone()));
        }
    }
}

/// Waits for a container's end; fails once the container is not known any more.
pub(crate) async fn exit(
    id: &ContainerId,
    changes: Receiver<ContainerStatus>,
    status: impl Fn() -> Option<ContainerStatus>,
) -> Result<ContainerExit, RuntimeError> {
    let exited = || match status() {
        Some(status) => match status.state {
            ContainerState::Exited(exit) => Ok(Some(exit)),
            ContainerState::Starting | ContainerState::Running { .. } => Ok(None),
        },
        None => Err(RuntimeError::NotFound(id.clone())),
    };
    until(id, changes, exited).await
}
