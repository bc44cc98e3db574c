//! The error type of all patches except server-side apply.

/// Why a patch could not be applied. `status` tells the HTTP code that kube-apiserver answers.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PatchError {
    /// The patch document itself is malformed: 400.
    #[error("{0}")]
    Malformed(String),
    /// The patch has too many parts: 413.
    #[error("{0}")]
    TooLarge(String),
    /// The patch is well-formed but doesn't fit this object: 422.
    #[error("{0}")]
    Unprocessable(String),
}

impl PatchError {
    /// The HTTP status of kube-apiserver for this error.
    pub fn status(&self) -> u16 {
        match self {
            PatchError::Malformed(_) => 400,
            PatchError::TooLarge(_) => 413,
            PatchError::Unprocessable(_) => 422,
        }
    }
}
