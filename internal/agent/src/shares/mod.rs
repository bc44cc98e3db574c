//! GPUs that several containers have: what each may have of one (`limit`), and whether it keeps to
//! that (`held`: who has a share now; `judge`; `watch`).

mod held;
mod judge;
mod limit;
mod watch;

use std::sync::Arc;

use parking_lot::Mutex;

pub use judge::{Held, OverShare, Sight};
pub use limit::{Limit, share_of};
pub use watch::{REASON as OVER_SHARE, Watch};

/// What was seen last, for the metrics.
pub type Board = Arc<Mutex<Sight>>;
