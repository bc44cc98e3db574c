//! Label and field selectors: parsing, validation, matching. Owns no index.

mod fields;
mod labels;
mod parse;

pub use fields::{FieldOp, FieldSelector};
pub use labels::{LabelSelector, Operator, Requirement};

/// Why a selector is invalid; worded like Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectorError(pub String);

#[cfg(test)]
mod tests;
