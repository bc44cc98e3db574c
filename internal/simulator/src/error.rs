//! The errors of a simulation's input. Each gives the place, the value found, and the accepted
//! values.

use std::fmt;
use std::num::NonZeroU32;

use resources::invalid_value::InvalidValue;

/// A place in the input: a file's line, or a document of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputLocation {
    /// The file, as given by the user.
    pub file: String,
    /// The line in it, from 1; for manifests the number of the document.
    pub number: usize,
    /// Whether `number` is a document's.
    pub document: bool,
    /// The item of a List, from 1.
    pub item: Option<NonZeroU32>,
}

impl InputLocation {
    /// A line of a file.
    #[must_use]
    pub fn line(file: &str, number: usize) -> InputLocation {
        InputLocation {
            file: file.to_owned(),
            number,
            document: false,
            item: None,
        }
    }

    /// A document of a file of manifests.
    #[must_use]
    pub fn document(file: &str, number: usize) -> InputLocation {
        InputLocation {
            document: true,
            ..InputLocation::line(file, number)
        }
    }
}

impl fmt::Display for InputLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = if self.document { "document" } else { "line" };
        write!(f, "{}, {word} {}", self.file, self.number)?;
        match self.item {
            Some(item) => write!(f, ", item {item}"),
            None => Ok(()),
        }
    }
}

/// Why a simulation cannot run.
#[derive(Debug, thiserror::Error)]
pub enum SimulatorError {
    /// One value can't be read.
    #[error("{place}: {error}")]
    Value {
        /// Where.
        place: InputLocation,
        /// The column or field, its value and the valid form.
        error: InvalidValue,
    },
    /// A line or document is not of the format at all.
    #[error("{place}: {what}; {wanted}")]
    Form {
        /// Where.
        place: InputLocation,
        /// The fault.
        what: String,
        /// The accepted format.
        wanted: String,
    },
    /// A column that the reader needs is missing.
    #[error(
        "{file}: no column has the {meaning}; write one of {accepted} in the header, or name the column with --column {meaning}=NAME; the columns are {found}"
    )]
    Column {
        /// The file.
        file: String,
        /// What the column is needed for.
        meaning: String,
        /// The accepted header words.
        accepted: String,
        /// The present columns.
        found: String,
    },
    /// An option can't be read.
    #[error(transparent)]
    Option(#[from] InvalidValue),
    /// There is nothing to simulate.
    #[error("{0}")]
    Nothing(String),
}

impl SimulatorError {
    /// An unusable value of a file.
    pub(crate) fn value(
        place: InputLocation,
        field: impl Into<String>,
        value: impl Into<String>,
        valid: impl Into<String>,
    ) -> SimulatorError {
        SimulatorError::Value {
            place,
            error: InvalidValue::new(field, value, valid),
        }
    }

    /// An unusable value of an option.
    pub(crate) fn option(
        option: impl Into<String>,
        value: impl Into<String>,
        valid: impl Into<String>,
    ) -> SimulatorError {
        SimulatorError::Option(InvalidValue::new(option, value, valid))
    }
}
