//! Whether held GPUs work: from the utilisation that agents observe to time that is active, idle or not measured.
//!
//! The problem: of hours that a pod holds a GPU, those in which the GPU does nothing are to be told apart, and what could
//! not be measured is not to be guessed. The method: between two observations of a pod's GPU that follow each other, the
//! GPU was idle if its utilisation was below [`IDLE_BELOW_PERCENT`] at both, as it is without a process, and active
//! otherwise. Time before the first observation, after a gap, and of GPUs whose utilisation no driver reports is not
//! measured. Example: observations of 0, 1 and 80 percent, 15 seconds apart, are 15 seconds idle and 15 active. Cost: one
//! look-up for each pod and observation. The test that holds it: `book::tests` (active, idle and unmeasured add up to
//! what is allocated).

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::allocation::PodUid;

/// A GPU whose utilisation is below this, in percent, does nothing worth its price.
pub const IDLE_BELOW_PERCENT: f64 = 5.0;
/// The longest time between two observations that follow each other; agents observe each 15 seconds.
pub const OBSERVED_AT_LEAST_EVERY: SignedDuration = SignedDuration::from_secs(45);
/// The most pods that are observed at a time; further ones are not measured.
const PODS_MAX: usize = 50_000;

/// Time of a pod's GPUs between two observations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuActivity {
    /// The earlier observation.
    pub from: Timestamp,
    /// The later one.
    pub until: Timestamp,
    /// How many GPUs were active.
    pub active: i64,
    /// How many were idle.
    pub idle: i64,
}

#[derive(Clone, Debug)]
struct Observation {
    at: Timestamp,
    /// By the GPU's id, whether it was below the threshold.
    below: BTreeMap<String, bool>,
}

/// The last observation of each pod.
#[derive(Debug, Default)]
pub struct ActivityWatch {
    pods: BTreeMap<PodUid, Observation>,
}

impl ActivityWatch {
    /// Takes in the utilisation of a pod's GPUs, in percent by id, and returns what was between it and the observation
    /// before; none if that is too long ago or there is none.
    pub fn observe(
        &mut self,
        pod: &PodUid,
        at: Timestamp,
        gpus: &BTreeMap<String, f64>,
    ) -> Option<GpuActivity> {
        let below = |(id, percent): (&String, &f64)| (id.clone(), *percent < IDLE_BELOW_PERCENT);
        let now = Observation {
            at,
            below: gpus.iter().map(below).collect(),
        };
        if !self.pods.contains_key(pod) && self.pods.len() >= PODS_MAX {
            self.forget(at);
            if self.pods.len() >= PODS_MAX {
                return None;
            }
        }
        let before = self.pods.insert(pod.clone(), now.clone())?;
        let elapsed = at.duration_since(before.at);
        if elapsed <= SignedDuration::ZERO || elapsed > OBSERVED_AT_LEAST_EVERY {
            return None;
        }
        let (mut active, mut idle) = (0, 0);
        for (id, below) in &now.below {
            match before.below.get(id) {
                Some(true) if *below => idle += 1,
                Some(_) => active += 1,
                None => {}
            }
        }
        (active + idle > 0).then_some(GpuActivity {
            from: before.at,
            until: at,
            active,
            idle,
        })
    }

    /// Forgets pods whose last observation is too long ago.
    pub fn forget(&mut self, now: Timestamp) {
        self.pods
            .retain(|_, last| now.duration_since(last.at) <= OBSERVED_AT_LEAST_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_idle_only_between_two_observations_below_the_threshold() {
        let mut watch = ActivityWatch::default();
        let start: Timestamp = "2026-11-26T10:00:00Z".parse().unwrap();
        let pod = PodUid("u".to_owned());
        let mut see = |second: i64, gpus: &[(&str, f64)]| {
            let at = start + SignedDuration::from_secs(second);
            let gpus = gpus
                .iter()
                .map(|(id, of)| ((*id).to_owned(), *of))
                .collect();
            let activity = watch.observe(&pod, at, &gpus);
            activity.map(|activity| (activity.active, activity.idle))
        };
        assert_eq!(see(0, &[("a", 0.0), ("b", 90.0)]), None);
        assert_eq!(see(15, &[("a", 4.9), ("b", 90.0)]), Some((1, 1)));
        assert_eq!(see(30, &[("a", 80.0), ("b", 0.0)]), Some((2, 0)));
        // A GPU that is not measured is neither.
        assert_eq!(see(45, &[("b", 0.0)]), Some((0, 1)));
        assert_eq!(see(60, &[("a", 0.0)]), None);
        // Twice the same time, and after a gap.
        assert_eq!(see(60, &[("a", 0.0)]), None);
        assert_eq!(see(120, &[("a", 0.0)]), None);
        assert_eq!(see(135, &[("a", 0.0)]), Some((0, 1)));
        watch.forget(start + SignedDuration::from_secs(500));
        assert!(watch.pods.is_empty());
    }
}
