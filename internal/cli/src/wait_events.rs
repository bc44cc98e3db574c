//! The events that `muster wait` can wait for.

use crate::option_error::ClientOptionError;

/// The condition of a successful job.
pub const SUCCEEDED: &str = "Succeeded";

/// The event that ends a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitEvent {
    /// The object is deleted.
    Gone,
    /// The condition is true, or the pod is in this phase.
    Condition(String),
}

impl std::fmt::Display for WaitEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            WaitEvent::Gone => f.write_str("delete"),
            WaitEvent::Condition(name) => write!(f, "condition={name}"),
        }
    }
}

/// Reads `condition=NAME` or `delete`.
pub fn until(text: &str) -> Result<WaitEvent, ClientOptionError> {
    match text.split_once('=') {
        None if text == "delete" => Ok(WaitEvent::Gone),
        Some(("condition", name)) if !name.is_empty() => Ok(WaitEvent::Condition(name.to_string())),
        _ => Err(ClientOptionError::Until),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_wait_for_is_a_condition_or_delete() {
        assert_eq!(until("delete"), Ok(WaitEvent::Gone));
        assert_eq!(
            until("condition=Ready"),
            Ok(WaitEvent::Condition("Ready".to_string()))
        );
        for bad in ["", "condition=", "jsonpath=x", "ready"] {
            assert!(until(bad).is_err(), "{bad}");
        }
    }
}
