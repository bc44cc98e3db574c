//! The crate's errors. Owns no behaviour.

use std::path::PathBuf;

/// Why a machine's inventory cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum HardwareError {
    /// A file that every machine has cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// A file has an unexpected content.
    #[error("{}: {detail}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The fault.
        detail: String,
    },
    /// A machine description is not usable.
    #[error("machine description {} line {line}: {field}: {detail}", path.display())]
    Description {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The field, as `gpu[0].count`.
        field: String,
        /// The fault, and the valid values.
        detail: String,
    },
}
