//! How much of one resource is free from when on, as expected ends give it back and those played
//! through take it. Knows nothing of nodes: whatever is free somewhere counts.

/// Two steps of a profile are at least this part of the time to them apart.
const STEP_PART: i64 = 12;

/// What is free of one resource from now on: from each time until the next.
pub(super) struct Profile {
    pub(super) times: Vec<i64>,
    pub(super) free: Vec<i64>,
}

impl Profile {
    pub(super) fn new(now: i64, idle: i64, ends: impl Iterator<Item = (i64, i64)>) -> Profile {
        let mut profile = Profile {
            times: vec![now],
            free: vec![idle],
        };
        for (end, amount) in ends.filter(|(_, amount)| *amount > 0) {
            let (last, free) = (profile.times.len() - 1, profile.free.last().copied());
            let gap = (profile.times[last] - now) / STEP_PART;
            if last > 0 && end - profile.times[last] <= gap {
                // Close to the step before: it is moved here, so that nothing is free too early.
                profile.times[last] = end.max(profile.times[last]);
                profile.free[last] += amount;
            } else {
                profile.times.push(end);
                profile.free.push(free.unwrap_or(0) + amount);
            }
        }
        profile
    }

    /// The first step from which so much is free for so long, not before a time.
    pub(super) fn first(&self, need: i64, seconds: i64, from: i64) -> Option<usize> {
        let mut start = None;
        for (at, free) in self.free.iter().enumerate() {
            if *free < need {
                start = None;
                continue;
            }
            let later = self.times.get(at + 1).is_some_and(|next| *next <= from);
            if start.is_none() && !later {
                start = Some(at);
            }
            let begins = start.map(|start| self.times[start].max(from));
            let ends = begins.map(|begins| begins.saturating_add(seconds));
            if let (Some(start), Some(ends)) = (start, ends)
                && self.times.get(at + 1).is_none_or(|next| *next >= ends)
            {
                return Some(start);
            }
        }
        None
    }

    pub(super) fn take(&mut self, step: usize, need: i64, seconds: i64) {
        let ends = self.times[step].saturating_add(seconds);
        for at in step..self.times.len() {
            if self.times[at] >= ends {
                break;
            }
            self.free[at] -= need;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(ends: &[(i64, i64)]) -> Profile {
        Profile::new(0, 2, ends.iter().copied())
    }

    #[test]
    fn a_gang_starts_where_its_need_is_free_for_as_long_as_it_runs() {
        let mut profile = profile(&[(100, 4), (1000, 4)]);
        assert_eq!(profile.first(2, 50, 0), Some(0));
        assert_eq!(profile.first(6, 50, 0), Some(1));
        assert_eq!(profile.first(11, 50, 0), None);
        profile.take(1, 6, 500);
        assert_eq!(profile.free, [2, 0, 10 - 6 + 6 - 6 + 6]);
        assert_eq!(
            profile.first(2, 50, 0),
            Some(0),
            "it is over before the other begins"
        );
        assert_eq!(profile.first(2, 500, 0), Some(2));
        assert_eq!(profile.first(2, 5, 2000), Some(2), "not before its time");
    }

    #[test]
    fn steps_close_to_each_other_become_one_at_the_later_time() {
        let profile = profile(&[(1200, 1), (1250, 1), (2000, 1)]);
        assert_eq!(profile.times, [0, 1250, 2000]);
        assert_eq!(profile.free, [2, 4, 5]);
    }
}
