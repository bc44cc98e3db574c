//! What admission decides beside validation: limit ranges, quotas, priorities, for whom work runs. Pure: the objects that bind are given,
//! and the atomicity of "look at usage, then write" is the caller's.

mod limits;
mod owner;
mod priority;
pub mod quota;

pub use limits::limit_ranges;
pub use owner::{NotYours, OWNED, owner};
pub use priority::{HIGHEST_USER_PRIORITY, PriorityError, SYSTEM_CLASSES, priority};
