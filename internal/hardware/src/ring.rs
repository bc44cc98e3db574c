//! The bandwidth of a ring over a set of devices. Collective operations go round in rings, and a
//! ring is as fast as its slowest link. So the value of a set is the smallest bandwidth on the
//! best round trip through all of it, a Hamiltonian cycle. Pure.
//!
//! Held and Karp's dynamic programming over sets as bits finds for all sets at once whether there
//! is a cycle over links of at least some bandwidth: a set's state is the set of devices at which
//! a path through it can end. One pass is needed for each distinct bandwidth except the smallest,
//! which every cycle has; if all links are alike there is no pass.

use crate::wiring::Bandwidth;

/// The most devices for which all sets are computed: 65,536 sets.
pub const MOST: usize = 16;

/// The bandwidth of a ring over each set of up to [`MOST`] devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rings {
    /// The distinct bandwidths, ascending.
    levels: Vec<Bandwidth>,
    /// The index in `levels` of each set's ring; sets as bits.
    table: Vec<u8>,
}

impl Rings {
    /// Computes all rings over `size` devices; none if there are more than [`MOST`]. `between` is
    /// called for each pair, the smaller number first.
    pub fn of(size: usize, between: impl Fn(usize, usize) -> Bandwidth) -> Option<Rings> {
        if size > MOST {
            return None;
        }
        let pairs = || (0..size).flat_map(|one| (one + 1..size).map(move |other| (one, other)));
        let mut levels: Vec<Bandwidth> = pairs().map(|(a, b)| between(a, b)).collect();
        levels.sort_unstable();
        levels.dedup();
        let mut table = vec![0u8; 1 << size];
        let mut ends = vec![0u16; 1 << size];
        for (level, bandwidth) in levels.iter().enumerate().skip(1) {
            let mut near = [0u16; MOST];
            for (one, other) in pairs().filter(|(a, b)| between(*a, *b) >= *bandwidth) {
                near[one] |= 1 << other;
                near[other] |= 1 << one;
            }
            // At most 120 pairs, so levels fit.
            mark(&near, &mut ends, &mut table, level as u8);
        }
        Some(Rings { levels, table })
    }

    /// The bandwidth of a ring over the set; a set of one device or none is unlimited.
    pub fn carries(&self, set: u16) -> Bandwidth {
        if set.count_ones() < 2 {
            return Bandwidth::UNLIMITED;
        }
        let level = self.table.get(usize::from(set)).copied().unwrap_or(0);
        let found = self.levels.get(usize::from(level));
        found.copied().unwrap_or(Bandwidth(0))
    }
}

/// Marks with `level` every set that has a cycle over `near`. `ends` is scratch space.
fn mark(near: &[u16; MOST], ends: &mut [u16], table: &mut [u8], level: u8) {
    for set in 1..table.len() {
        // Sets are numbers below 65,536.
        let bits = set as u16;
        let start = bits & bits.wrapping_neg();
        let mut rest = bits ^ start;
        if rest == 0 {
            ends[set] = start;
            continue;
        }
        let mut found = 0;
        while rest != 0 {
            let last = rest & rest.wrapping_neg();
            rest ^= last;
            // A path through the other devices can end next to the last one.
            if ends[set ^ usize::from(last)] & near[last.trailing_zeros() as usize] != 0 {
                found |= last;
            }
        }
        ends[set] = found;
        // For two devices the way back equals the way there.
        if found & near[start.trailing_zeros() as usize] != 0 {
            table[set] = level;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rings(size: usize, links: &[(usize, usize, u32)]) -> Rings {
        let between = |one: usize, other: usize| {
            let link = links.iter().find(|(a, b, _)| (*a, *b) == (one, other));
            Bandwidth(link.map_or(1, |(_, _, bandwidth)| *bandwidth))
        };
        Rings::of(size, between).expect("few devices")
    }

    #[test]
    fn a_ring_is_as_good_as_its_worst_link() {
        // A square with one narrow side; its diagonals have almost no bandwidth.
        let square = rings(4, &[(0, 1, 9), (1, 2, 9), (2, 3, 9), (0, 3, 5)]);
        assert_eq!(square.carries(0b1111), Bandwidth(5));
        // Three of its corners need a diagonal.
        assert_eq!(square.carries(0b0111), Bandwidth(1));
        assert_eq!(square.carries(0b0011), Bandwidth(9));
        assert_eq!(square.carries(0b0001), Bandwidth::UNLIMITED);
    }

    #[test]
    fn where_all_links_are_alike_every_set_is() {
        let uniform = Rings::of(16, |_, _| Bandwidth(7)).expect("few devices");
        assert!(
            (0..=u16::MAX).all(|set| set.count_ones() < 2 || uniform.carries(set) == Bandwidth(7))
        );
    }

    #[test]
    fn a_star_has_no_ring_of_three() {
        let star = rings(4, &[(0, 1, 9), (0, 2, 9), (0, 3, 9)]);
        assert_eq!(star.carries(0b1111), Bandwidth(1));
        assert_eq!(star.carries(0b0111), Bandwidth(1));
    }

    #[test]
    fn more_devices_than_sets_can_be_kept_of_have_no_table() {
        assert_eq!(Rings::of(17, |_, _| Bandwidth(1)), None);
    }
}
