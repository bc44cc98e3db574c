//! Whether the containers that share GPUs stay within their shares of the GPUs' memory (`held`: which
//! container holds which share; `judge`: which container is over its share). Pure.

pub mod held;
mod judge;

use std::sync::Arc;

use parking_lot::Mutex;

pub use judge::{Finding, Held, Judge, LOOKS, OverShare, Sight, Unknown, Use};

/// The last result, for the metrics.
pub type Board = Arc<Mutex<Sight>>;
