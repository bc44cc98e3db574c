//! The error of loading definitions.

/// Why definitions could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    /// The definitions inside the binary don't parse: the file was damaged before the build.
    #[error(
        "the embedded OpenAPI definitions do not parse ({0}); regenerate api/openapi with trim.py"
    )]
    Embedded(String),
    /// A CustomResourceDefinition is incomplete or has content that can't be served.
    #[error("CustomResourceDefinition {name:?}: {problem}")]
    Definition {
        /// metadata.name of the definition, or `?`.
        name: String,
        /// The fault and the valid form.
        problem: String,
    },
}
