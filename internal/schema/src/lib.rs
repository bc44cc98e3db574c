//! OpenAPI definitions of every served kind, and the functions that depend on them: checks for
//! unknown fields and types, pruning, defaults, the published OpenAPI documents, JSON patch,
//! strategic merge patch, server-side apply and the ownership of fields.
//!
//! Pure: works on `serde_json::Value`, and the caller passes in the time. It must not know any kind
//! by name beyond its definition, do I/O, or validate rules that a schema can't express
//! (`resources` does).

pub mod apply;
mod check;
mod document;
mod error;
mod gnostic;
pub mod json_patch;
mod load;
mod patch_error;
mod shape;
pub mod size;
pub mod strategic;
mod structural;

pub use check::{Checked, Invalid};
pub use document::{ANSWERED_WITH_OBJECT, KindRoute};
pub use error::SchemaError;
pub use patch_error::PatchError;
pub use shape::Schemas;
