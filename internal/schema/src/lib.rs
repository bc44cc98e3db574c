//! OpenAPI definitions of every kind that is served, and everything that is decided by them:
//! unknown fields and types, pruning, defaults, the published OpenAPI documents, JSON patch,
//! strategic merge patch, server-side apply and the ownership of fields.
//!
//! Pure: works on `serde_json::Value`, with the time handed in. It must not know any kind by
//! name beyond what its definition says, do I/O, or validate what a schema can't express (that
//! is `resources`).

pub mod apply;
mod check;
mod document;
mod gnostic;
pub mod json_patch;
mod load;
mod patch_error;
mod shape;
pub mod size;
pub mod strategic;
mod structural;

pub use check::{Checked, Invalid};
pub use document::KindRoute;
pub use patch_error::PatchError;
pub use shape::Schemas;

/// Why definitions could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    /// The definitions inside the binary don't parse: the file was damaged before the build.
    #[error(
        "the embedded OpenAPI definitions don't parse ({0}); regenerate api/openapi with trim.py"
    )]
    Embedded(String),
    /// A CustomResourceDefinition lacks something or holds something that can't be served.
    #[error("CustomResourceDefinition {name:?}: {problem}")]
    Definition {
        /// metadata.name of the definition, or `?`.
        name: String,
        /// What is wrong and what would be right.
        problem: String,
    },
}
