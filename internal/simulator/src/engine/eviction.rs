//! Reads the production scheduler's evictions.

use scheduler::Eviction;

use crate::engine::planner::Evict;

/// What an eviction asks of the engine.
pub(crate) fn read(eviction: &Eviction) -> Option<Evict> {
    match *eviction {}
}
