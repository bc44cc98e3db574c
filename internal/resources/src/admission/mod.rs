//! What admission decides beside validation: limit ranges, quotas, priorities. Pure: the objects that bind are given.

mod limits;
mod priority;
pub mod quota;

pub use limits::limit_ranges;
pub use priority::{PriorityError, priority};
