//! A cache of roll-out results by the room that the roll-out starts with: bounded in memory, and
//! the answers do not depend on its contents.

use super::walk::NodeGpuRoom;

/// Slots; a power of two. With more slots fewer roll-outs are repeated, but each lookup is slower:
/// the slots should fit in the processor's cache.
const SLOTS: usize = 1 << 13;

/// A direct-mapped cache: a newer entry takes the slot of an older one.
#[derive(Clone, Debug, Default)]
pub(super) struct Memo {
    /// Empty until the first entry.
    slots: Vec<Option<(NodeGpuRoom, u32)>>,
}

impl Memo {
    /// Clears the cache.
    pub(super) fn clear(&mut self) {
        self.slots.clear();
    }

    /// The cached value for that start, or what `make` returns.
    pub(super) fn get(
        &mut self,
        start: &NodeGpuRoom,
        make: impl FnOnce(&NodeGpuRoom) -> u32,
    ) -> u32 {
        if self.slots.is_empty() {
            self.slots.resize(SLOTS, None);
        }
        let Some(slot) = self.slots.get_mut(start.mixed() & (SLOTS - 1)) else {
            return make(start);
        };
        if let Some((walk, value)) = slot
            && walk == start
        {
            return *value;
        }
        let value = make(start);
        *slot = Some((*start, value));
        value
    }
}
