//! Priorities.
use k8s_openapi::api::scheduling::v1::PriorityClass;
use serde_json::Value;

/// Why a pod's priority cannot be resolved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PriorityError {
    /// The class does not exist.
    #[error("no PriorityClass with name {0} was found")]
    NotFound(String),
}

/// Resolves `spec.priorityClassName` into `spec.priority` and `spec.preemptionPolicy`.
///
/// # Errors
/// When the class does not exist.
pub fn priority(pod: &mut Value, classes: &[PriorityClass]) -> Result<(), PriorityError> {
    let _ = (pod, classes);
    Ok(())
}
