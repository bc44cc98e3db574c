//! What admission decides beside validation: limit ranges, quotas, priorities. Pure: the objects that bind are given,
//! and the atomicity of "look at usage, then write" is the caller's.

mod limits;
mod priority;
pub mod quota;

pub use limits::limit_ranges;
pub use priority::{HIGHEST_USER_PRIORITY, PriorityError, SYSTEM_CLASSES, priority};
