//! Converts the production scheduler's evictions for the engine.

use scheduler::Eviction;

use crate::engine::muster::place_of;
use crate::planner::Evict;

/// The eviction in the engine's terms.
pub(crate) fn read(eviction: &Eviction) -> Option<Evict> {
    let (gang, member) = place_of(&eviction.pod)?;
    Some(Evict {
        gang,
        member,
        reason: eviction.why.as_str().to_owned(),
        by: eviction
            .by
            .as_ref()
            .map(|by| format!("{}/{}", by.namespace, by.name)),
        message: eviction.message.clone(),
        grace: eviction.grace,
    })
}
