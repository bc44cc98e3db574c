//! Label and field selectors: parsing what clients send, checking what objects carry, matching. Owns no index.

mod fields;
mod labels;
mod parse;

pub use fields::{FieldOp, FieldSelector};
pub use labels::{LabelSelector, Operator, Requirement};

/// Why a selector is refused; the words are Kubernetes'.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectorError(pub String);

#[cfg(test)]
mod tests;
