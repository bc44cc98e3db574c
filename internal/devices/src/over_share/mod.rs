//! Whether the containers that share GPUs stay within their shares of the GPUs' memory (`share_holders`:
//! which container holds which share; `excess`: which container is over its share). Pure.

mod excess;
pub mod share_holders;

use std::sync::Arc;

use parking_lot::Mutex;

pub use excess::{
    GpuShare, LOOKS, OverShare, ShareExcess, ShareJudge, ShareObservation, ShareUse, Unknown,
};

/// The last result, for the metrics.
pub type LatestShares = Arc<Mutex<ShareObservation>>;
