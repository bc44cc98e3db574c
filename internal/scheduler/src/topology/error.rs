//! The errors of topology requests and of a gang's structure. A report shows the text.

use resources::invalid_value::InvalidValue;
use resources::names::{KUEUE_SLICE_REQUIRED_TOPOLOGY, KUEUE_SLICE_SIZE};
use resources::selector::SelectorError;

use super::request::SLICES_MAX;
use super::shape::SUB_GROUPS_MAX;

/// Why a topology request or a list of sub-groups cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TopologyError {
    /// An annotation or a field; the source says what its value lacks.
    #[error("{place}: {error}")]
    In {
        /// The annotation or field, and the object.
        place: String,
        error: Box<TopologyError>,
    },
    /// The text is not JSON of the expected shape.
    #[error("{0}; correct the JSON")]
    Json(#[from] serde_json::Error),
    /// A label selector is invalid.
    #[error("labelSelector: {0}; correct the selector")]
    Selector(SelectorError),
    #[error(transparent)]
    Field(#[from] InvalidValue),
    #[error("the slice size at {level} is 0; write 1 or more")]
    SliceSize { level: String },
    #[error("the request has more than {SLICES_MAX} layers of slices; remove some")]
    ManySlices,
    #[error(
        "a slice of {outer} does not divide into slices of {inner}; write a multiple of {inner}"
    )]
    SliceRatio { outer: u32, inner: u32 },
    #[error("annotation {KUEUE_SLICE_REQUIRED_TOPOLOGY} needs {KUEUE_SLICE_SIZE}; set both")]
    NoSliceSize,
    #[error("{key} is not a level of the topology; the levels are {known}")]
    UnknownLevel { key: String, known: String },
    #[error("the slices are not in the order from wider levels to narrower ones; reorder them")]
    SliceOrder,
    #[error(
        "a slice's level is wider than the level of the request; write that level or a narrower one"
    )]
    WideSlice,
    #[error("the PodGroup has more than {SUB_GROUPS_MAX} sub-groups; remove some")]
    ManySubGroups,
    #[error("a sub-group has no name; name each sub-group")]
    NoName,
    #[error("two sub-groups have the name {0}; rename one")]
    SameName(String),
    #[error(
        "sub-group {child} names the parent {parent}, which is not a sub-group; name one of the list"
    )]
    UnknownParent { child: String, parent: String },
    #[error("sub-group {0} is its own ancestor; correct its parents")]
    Cycle(String),
}

impl TopologyError {
    /// This error with the annotation or field in which it is.
    pub(crate) fn at(self, place: impl Into<String>) -> TopologyError {
        TopologyError::In {
            place: place.into(),
            error: Box::new(self),
        }
    }
}
