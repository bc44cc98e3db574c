//! How much of one resource will be free from which time on, as expected ends give it back and
//! estimated starts take it. The profile ignores nodes: what is free on any node counts.
//!
//! Method: a step function of time. Ends that are close to each other in relation to their distance
//! from now share one step, so the number of steps grows only with the logarithm of the time span.
//! Each estimated start costs a pass over the steps.
//!
//! Example: 2 GPUs are free now, 4 more after 100 seconds, 4 more after 1000. A gang of 6 GPUs for
//! 50 seconds fits at 100. If another gang takes 6 GPUs from 100 to 600, it fits at 600
//! (`a_gang_starts_where_its_need_is_free_for_as_long_as_it_runs`).

/// Two steps of a profile are at least this part of the time until them apart.
const STEP_PART: i64 = 12;

/// The free amount of one resource from now on: from each time until the next.
pub(super) struct FreeProfile {
    pub(super) times: Vec<i64>,
    pub(super) free: Vec<i64>,
}

impl FreeProfile {
    /// `idle` is free, and no gang gives anything back.
    pub(super) fn new(now: i64, idle: i64) -> FreeProfile {
        FreeProfile {
            times: vec![now],
            free: vec![idle],
        }
    }

    /// Adds an amount that is free from `end` on; ends come in order.
    pub(super) fn give_back(&mut self, end: i64, amount: i64) {
        if amount <= 0 {
            return;
        }
        let last = self.times.len() - 1;
        let gap = (self.times[last] - self.times[0]) / STEP_PART;
        if last > 0 && end - self.times[last] <= gap {
            // The end is close to the step before: that step is moved here, so that nothing is free
            // too early.
            self.times[last] = end.max(self.times[last]);
            self.free[last] = self.free[last].saturating_add(amount);
        } else {
            self.times.push(end);
            self.free.push(self.free[last].saturating_add(amount));
        }
    }

    /// The first time, not before `from`, from which `need` is free for `seconds`.
    pub(super) fn first(&self, need: i64, seconds: i64, from: i64) -> Option<i64> {
        let mut start: Option<i64> = None;
        for (at, free) in self.free.iter().enumerate() {
            if *free < need {
                start = None;
                continue;
            }
            let next = self.times.get(at + 1).copied();
            if start.is_none() && next.is_none_or(|next| next > from) {
                start = Some(self.times[at].max(from));
            }
            if let Some(start) = start
                && next.is_none_or(|next| next >= start.saturating_add(seconds))
            {
                return Some(start);
            }
        }
        None
    }

    /// Takes `need` for `seconds` from a time on.
    pub(super) fn take(&mut self, from: i64, need: i64, seconds: i64) {
        let first = self.step_at(from);
        let end = self.step_at(from.saturating_add(seconds));
        for free in &mut self.free[first..end] {
            *free = free.saturating_sub(need);
        }
    }

    /// The step that begins at a time, inserted if there is none; no time is before the first step.
    fn step_at(&mut self, time: i64) -> usize {
        let at = self.times.partition_point(|other| *other < time);
        if at > 0 && self.times.get(at) != Some(&time) {
            self.times.insert(at, time);
            self.free.insert(at, self.free[at - 1]);
        }
        at
    }

    /// How much is free for `seconds` from which time on, where that is more than before.
    pub(super) fn most_by_start(&self, seconds: i64) -> Vec<(i64, i64)> {
        let mut found: Vec<(i64, i64)> = Vec::new();
        for (at, time) in self.times.iter().enumerate() {
            let ends = time.saturating_add(seconds);
            let meanwhile = self.times[at..].iter().take_while(|then| **then < ends);
            let least = self.free[at..].iter().zip(meanwhile).map(|(free, _)| *free);
            let least = least.min().unwrap_or(0);
            if found.last().is_none_or(|(most, _)| *most < least) {
                found.push((least, *time));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(ends: &[(i64, i64)]) -> FreeProfile {
        let mut profile = FreeProfile::new(0, 2);
        for (end, amount) in ends {
            profile.give_back(*end, *amount);
        }
        profile
    }

    #[test]
    fn a_gang_starts_where_its_need_is_free_for_as_long_as_it_runs() {
        let mut profile = profile(&[(100, 4), (1000, 4)]);
        assert_eq!(profile.first(2, 50, 0), Some(0));
        assert_eq!(profile.first(6, 50, 0), Some(100));
        assert_eq!(profile.first(11, 50, 0), None);
        profile.take(100, 6, 500);
        assert_eq!(profile.times, [0, 100, 600, 1000]);
        assert_eq!(profile.free, [2, 0, 6, 10]);
        assert_eq!(
            profile.first(2, 50, 0),
            Some(0),
            "the gang ends before the other one begins"
        );
        assert_eq!(profile.first(2, 500, 0), Some(600));
        assert_eq!(
            profile.first(6, 50, 0),
            Some(600),
            "the amount is free again after the first gang ends"
        );
        assert_eq!(
            profile.first(2, 5, 2000),
            Some(2000),
            "not before the requested time"
        );
        assert_eq!(profile.first(2, 5, 700), Some(700));
    }

    #[test]
    fn taking_between_two_steps_inserts_two_steps() {
        let mut profile = profile(&[(100, 4)]);
        profile.take(150, 6, 50);
        profile.take(0, 1, 10);
        assert_eq!(profile.times, [0, 10, 100, 150, 200]);
        assert_eq!(profile.free, [1, 2, 6, 0, 6]);
    }

    #[test]
    fn the_most_by_start_agrees_with_the_first_start_of_each_amount() {
        let mut profile = profile(&[(100, 4), (1000, 4)]);
        profile.take(100, 5, 300);
        let most = profile.most_by_start(60);
        for need in 1..12 {
            let at = most.partition_point(|(most, _)| *most < need);
            let found = most.get(at).map(|(_, time)| *time);
            assert_eq!(found, profile.first(need, 60, 0), "{need}");
        }
    }

    #[test]
    fn steps_close_to_each_other_become_one_at_the_later_time() {
        let profile = profile(&[(1200, 1), (1250, 1), (2000, 1)]);
        assert_eq!(profile.times, [0, 1250, 2000]);
        assert_eq!(profile.free, [2, 4, 5]);
    }
}
