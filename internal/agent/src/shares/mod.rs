//! GPUs that several containers share: the limits of each container (`limit`), and whether it stays
//! within them (`held`: which container holds which share; `judge`; `watch`).

mod held;
mod judge;
mod limit;
mod watch;

use std::sync::Arc;

use parking_lot::Mutex;

pub use judge::{Held, OverShare, Sight};
pub use limit::{Limit, share_of};
pub use watch::{REASON as OVER_SHARE, Watch};

/// The last result, for the metrics.
pub type Board = Arc<Mutex<Sight>>;
