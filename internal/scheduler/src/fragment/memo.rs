//! What roll-outs left idle, by how they began: bounded in memory, and no order in it to depend on.

use super::walk::Walk;

/// Slots; a power of two. With more of them fewer roll-outs are done again, and each is found no
/// sooner: they should lie near the processor.
const SLOTS: usize = 1 << 13;

/// A direct-mapped table: a newer entry takes the slot of an older one.
#[derive(Clone, Debug, Default)]
pub(super) struct Memo {
    /// Empty until the first entry.
    slots: Vec<Option<(Walk, u32)>>,
}

impl Memo {
    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.slots.clear();
    }

    /// The value kept for that beginning, or what `make` gives.
    pub(super) fn get(&mut self, start: &Walk, make: impl FnOnce(&Walk) -> u32) -> u32 {
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
