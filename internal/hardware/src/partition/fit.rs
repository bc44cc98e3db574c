//! Finds positions for profiles in a GPU by trying all of them, which are few. Pure.

use super::InstanceProfile;

/// More instances than any GPU holds: it has at most eight slices.
pub const MOST: u32 = 9;

/// A profile at its position.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// The profile.
    pub profile: &'a InstanceProfile,
    /// The memory slice that it begins at.
    pub start: u32,
}

impl Span<'_> {
    pub fn is_disjoint_from(&self, other: &Span<'_>) -> bool {
        let end = |it: &Span<'_>| it.start + it.profile.size;
        end(self) <= other.start || end(other) <= self.start
    }
}

/// Positions for all of these beside the kept instances in a GPU with this many optical flow
/// engines; none if there is no solution.
pub fn fitting_with<'a>(
    kept: &[Span<'a>],
    profiles: &[&'a InstanceProfile],
    engines: u32,
) -> Option<Vec<Span<'a>>> {
    let mut profiles = profiles.to_vec();
    // Large profiles have the fewest positions; equal ones are adjacent.
    profiles.sort_by(|a, b| (b.size, a.id).cmp(&(a.size, b.id)));
    let all = kept.iter().map(|span| span.profile);
    let all: Vec<&InstanceProfile> = all.chain(profiles.iter().copied()).collect();
    let sizes = all.iter().map(|it| it.size);
    let ends = (profiles.iter())
        .flat_map(|it| it.starts.iter().map(|start| start + it.size))
        .chain(kept.iter().map(|span| span.start + span.profile.size));
    let wanted: u32 = all.iter().map(|it| it.engines).sum();
    if wanted > engines || sizes.sum::<u32>() > ends.max().unwrap_or(0) {
        return None;
    }
    let mut placed = kept.to_vec();
    place(&mut placed, &profiles, None).then(|| placed.split_off(kept.len()))
}

/// Places the rest. The first goes after `before` if both have the same profile: the other order
/// would be equivalent.
fn place<'a>(
    placed: &mut Vec<Span<'a>>,
    rest: &[&'a InstanceProfile],
    before: Option<Span<'a>>,
) -> bool {
    let Some((profile, rest)) = rest.split_first() else {
        return true;
    };
    let equal = before.filter(|before| before.profile.id == profile.id);
    for start in &profile.starts {
        let span = Span {
            profile,
            start: *start,
        };
        let behind = equal.is_none_or(|equal| equal.start < span.start);
        if behind && placed.iter().all(|other| span.is_disjoint_from(other)) {
            placed.push(span);
            if place(placed, rest, Some(span)) {
                return true;
            }
            placed.pop();
        }
    }
    false
}

/// As many of these as fit in an empty GPU, the large ones first.
pub fn fitting<'a>(profiles: &[&'a InstanceProfile], engines: u32) -> Vec<&'a InstanceProfile> {
    let mut sorted = profiles.to_vec();
    sorted.sort_by_key(|profile| std::cmp::Reverse((profile.size, profile.id)));
    let mut fit: Vec<&InstanceProfile> = Vec::new();
    for profile in sorted {
        fit.push(profile);
        if fitting_with(&[], &fit, engines).is_none() {
            fit.pop();
        }
    }
    fit
}
