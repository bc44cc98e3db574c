//! Chooses places by capacity: as few as possible, the largest first, and the last one as tight as
//! possible. Works on numbers only. Costs one sort of the places.
//!
//! Example: 13 pods and places with room for 8, 6, 5 and 4 take 8 and then 5, not 8 and 6.

/// A place and its capacity. Places of a smaller `tier` are taken first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Weighed<T, K> {
    pub(super) item: T,
    pub(super) tier: i64,
    pub(super) room: u64,
    /// Breaks ties among places of equal capacity: the smaller is taken first.
    pub(super) tie: K,
}

/// The fewest places that hold `count`, each with the number it gets. `None` if all together hold
/// less.
pub(super) fn fewest<T: Copy, K: Ord + Copy>(
    mut places: Vec<Weighed<T, K>>,
    count: u64,
) -> Option<Vec<(T, u64)>> {
    if places.iter().map(|place| place.room).sum::<u64>() < count {
        return None;
    }
    // The common case is one place: it needs no sorting.
    if let Some(one) = tightest(&places, count) {
        return Some(vec![(one.item, count)]);
    }
    places.sort_unstable_by(|a, b| {
        (a.tier, std::cmp::Reverse(a.room), a.tie).cmp(&(b.tier, std::cmp::Reverse(b.room), b.tie))
    });
    let mut taken = Vec::new();
    let mut left = count;
    let mut at = 0;
    while left > 0 && at < places.len() {
        let rest = &places[at..];
        if rest[0].room >= left {
            // The places that hold all of the rest come first; the tightest of them is taken.
            let end = rest.partition_point(|p| p.tier == rest[0].tier && p.room >= left);
            let tight = rest[..end].iter().min_by_key(|p| (p.room, p.tie))?;
            taken.push((tight.item, left));
            return Some(taken);
        }
        taken.push((rest[0].item, rest[0].room));
        left -= rest[0].room;
        at += 1;
    }
    (left == 0).then_some(taken)
}

/// The place with the least capacity that holds `count`, of the best tier, if that tier has one.
fn tightest<T: Copy, K: Ord + Copy>(places: &[Weighed<T, K>], count: u64) -> Option<Weighed<T, K>> {
    let best = places.iter().filter(|p| p.room > 0).map(|p| p.tier).min()?;
    places
        .iter()
        .filter(|place| place.tier == best && place.room >= count)
        .min_by_key(|place| (place.room, place.tie))
        .copied()
}

/// Takes the smallest place that holds all; if there is none, fills places from the smallest up.
pub(super) fn smallest<T: Copy, K: Ord + Copy>(
    mut places: Vec<Weighed<T, K>>,
    count: u64,
) -> Option<Vec<(T, u64)>> {
    if let Some(one) = tightest(&places, count) {
        return Some(vec![(one.item, count)]);
    }
    places.sort_unstable_by_key(|p| (p.tier, p.room, p.tie));
    let mut taken = Vec::new();
    let mut left = count;
    for place in places.iter().filter(|place| place.room > 0) {
        let here = place.room.min(left);
        taken.push((place.item, here));
        left -= here;
        if left == 0 {
            return Some(taken);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(rooms: &[u64]) -> Vec<Weighed<usize, usize>> {
        let all = rooms.iter().enumerate();
        all.map(|(item, room)| Weighed {
            item,
            tier: 0,
            room: *room,
            tie: item,
        })
        .collect()
    }

    #[test]
    fn one_place_that_just_holds_all_is_best() {
        assert_eq!(fewest(places(&[9, 4, 5, 5]), 5), Some(vec![(2, 5)]));
    }

    #[test]
    fn several_places_are_taken_largest_first_and_the_last_tight() {
        assert_eq!(
            fewest(places(&[3, 8, 2, 5]), 10),
            Some(vec![(1, 8), (2, 2)])
        );
        assert_eq!(fewest(places(&[3, 3]), 7), None);
        assert_eq!(fewest(places(&[3, 0, 4]), 7), Some(vec![(2, 4), (0, 3)]));
    }

    #[test]
    fn better_tiers_are_used_up_first() {
        let mut all = places(&[9, 2, 2]);
        all[0].tier = 1;
        assert_eq!(fewest(all, 6), Some(vec![(1, 2), (2, 2), (0, 2)]));
    }

    #[test]
    fn the_smallest_are_filled_first_when_asked_for() {
        assert_eq!(
            smallest(places(&[3, 8, 2, 5]), 12),
            Some(vec![(2, 2), (0, 3), (3, 5), (1, 2)])
        );
        assert_eq!(smallest(places(&[3, 8, 2, 5]), 5), Some(vec![(3, 5)]));
    }
}
