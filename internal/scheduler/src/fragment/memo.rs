//! Potentials by what a node has left: bounded in memory, and no order in it to depend on.

use super::node::Room;

/// Slots; a power of two.
const SLOTS: usize = 1 << 16;

/// A direct-mapped table: a newer entry takes the slot of an older one.
#[derive(Clone, Debug, Default)]
pub(super) struct Memo {
    /// Empty until the first entry.
    slots: Vec<Option<(u16, Room, f64)>>,
}

impl Memo {
    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.slots.clear();
    }

    /// The value kept for that kind of node and that room (in canonical order), or what `make`
    /// gives.
    pub(super) fn get(&mut self, kind: u16, room: &Room, make: impl FnOnce(&Room) -> f64) -> f64 {
        if self.slots.is_empty() {
            self.slots.resize(SLOTS, None);
        }
        let Some(slot) = self.slots.get_mut(place(kind, room)) else {
            return make(room);
        };
        if let Some((k, r, value)) = slot
            && *k == kind
            && r == room
        {
            return *value;
        }
        let value = make(room);
        *slot = Some((kind, *room, value));
        value
    }
}

/// The slot of a room: any fixed mixing of its bits does.
fn place(kind: u16, room: &Room) -> usize {
    let mut hash = u64::from(room.cpu) ^ (u64::from(room.mem) << 32) ^ (u64::from(kind) << 20);
    for four in room.free.chunks(4) {
        let word = four.iter().fold(0u64, |a, &g| a << 16 | u64::from(g));
        hash = (hash ^ word)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_left(29);
    }
    (hash >> 17) as usize & (SLOTS - 1)
}
