//! Since when the GPUs of a pod, or of a job's pods, do nothing.
//!
//! The problem: idle time that lasts is to be told from a pause, and what no agent measured is not to be guessed. The
//! method: intervals between observations ([`GpuActivity`]) are joined while each says that all GPUs which the pod holds
//! were idle. A GPU that was active or not measured ends the idle time, and so does a gap. A job is idle since the latest
//! of its pods is. Example: of two pods of a job, one is idle since 10:00 and one since 10:20: the job is idle since 10:20.
//! Cost: one look-up for each pod and observation. The test that holds it is below.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::activity::{GpuActivity, OBSERVED_AT_LEAST_EVERY};
use crate::allocation::PodUid;

/// The most pods whose idle time is kept; further ones are not idle. It is the bound of those that are observed.
const PODS_MAX: usize = 50_000;

#[derive(Clone, Copy, Debug)]
struct IdleSpan {
    since: Timestamp,
    until: Timestamp,
    /// The GPUs that were observed.
    held: usize,
}

/// The pods all of whose GPUs do nothing.
#[derive(Debug, Default)]
pub struct IdleGpus {
    pods: BTreeMap<PodUid, IdleSpan>,
}

impl IdleGpus {
    /// Takes in what the `held` GPUs of a pod did since the observation before; none if that is not known.
    pub fn observe(&mut self, pod: &PodUid, held: usize, activity: Option<&GpuActivity>) {
        let idle = |activity: &&GpuActivity| {
            activity.active == 0 && held > 0 && usize::try_from(activity.idle) == Ok(held)
        };
        let Some(activity) = activity.filter(idle) else {
            self.pods.remove(pod);
            return;
        };
        let before = self.pods.get(pod);
        let before = before.filter(|span| span.until == activity.from && span.held == held);
        let since = before.map_or(activity.from, |span| span.since);
        if self.pods.contains_key(pod) || self.pods.len() < PODS_MAX {
            let until = activity.until;
            self.pods
                .insert(pod.clone(), IdleSpan { since, until, held });
        }
    }

    /// Since when the GPUs of all these pods do nothing, given how many each holds; none if one of them works, is not
    /// measured, or was observed too long ago, and without pods. A pod that holds more than agents measure, such as a
    /// shared GPU beside its own, counts as one that is not measured.
    pub fn since<'a>(
        &self,
        pods: impl IntoIterator<Item = &'a (PodUid, usize)>,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let mut latest = None;
        for (pod, held) in pods {
            let span = self.pods.get(pod)?;
            let observed = now.duration_since(span.until) <= OBSERVED_AT_LEAST_EVERY;
            if !observed || span.held != *held {
                return None;
            }
            latest = latest.max(Some(span.since));
        }
        latest
    }

    /// Forgets pods whose last observation is too long ago.
    pub fn forget(&mut self, now: Timestamp) {
        self.pods
            .retain(|_, span| now.duration_since(span.until) <= OBSERVED_AT_LEAST_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use proptest::prelude::*;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second)
    }

    fn seen(from: i64, until: i64, active: i64, idle: i64) -> GpuActivity {
        GpuActivity {
            from: at(from),
            until: at(until),
            active,
            idle,
        }
    }

    #[test]
    fn a_pod_is_idle_while_each_interval_says_so_of_all_its_gpus() {
        let (mut idle, pod) = (IdleGpus::default(), PodUid("u".to_owned()));
        let mut see = |held, activity: Option<GpuActivity>, now| {
            idle.observe(&pod, held, activity.as_ref());
            idle.since([&(pod.clone(), held)], at(now))
                .map(Timestamp::as_second)
        };
        assert_eq!(see(2, None, 0), None);
        assert_eq!(see(2, Some(seen(0, 15, 0, 2)), 15), Some(0));
        assert_eq!(see(2, Some(seen(15, 30, 0, 2)), 30), Some(0));
        // One of the two works, then one is not measured.
        assert_eq!(see(2, Some(seen(30, 45, 1, 1)), 45), None);
        assert_eq!(see(2, Some(seen(45, 60, 0, 2)), 60), Some(45));
        assert_eq!(see(2, Some(seen(60, 75, 0, 1)), 75), None);
        // A gap, although nothing says that a GPU worked.
        assert_eq!(see(2, Some(seen(75, 90, 0, 2)), 90), Some(75));
        assert_eq!(see(2, Some(seen(105, 120, 0, 2)), 120), Some(105));
        // The last observation is too long ago.
        assert_eq!(see(2, Some(seen(120, 135, 0, 2)), 181), None);
        idle.forget(at(181));
        assert!(idle.pods.is_empty());
    }

    #[test]
    fn a_job_is_idle_since_the_last_of_its_pods_is() {
        let mut idle = IdleGpus::default();
        let [one, two, other] = ["one", "two", "other"].map(|name| PodUid(name.to_owned()));
        idle.observe(&one, 1, Some(&seen(0, 15, 0, 1)));
        idle.observe(&one, 1, Some(&seen(15, 30, 0, 1)));
        idle.observe(&two, 1, Some(&seen(15, 30, 0, 1)));
        let [one, two, other] = [one, two, other].map(|pod| (pod, 1));
        assert_eq!(idle.since([&one, &two], at(30)), Some(at(15)));
        assert_eq!(idle.since([&one, &two, &other], at(30)), None);
        assert_eq!(idle.since([], at(30)), None);
        // It holds a second one, which is not measured.
        assert_eq!(idle.since([&(one.0, 2)], at(30)), None);
    }

    proptest! {
        /// Between the time since which a pod is idle and now no observation found a GPU active, and none is missing.
        #[test]
        fn idle_time_is_without_an_active_gpu_and_without_a_gap(
            steps in prop::collection::vec((0i64..3, 0i64..3, prop::bool::weighted(0.9)), 1..40),
        ) {
            let (mut idle, pod) = (IdleGpus::default(), PodUid("u".to_owned()));
            let mut all = Vec::new();
            for (step, (active, quiet, observed)) in steps.into_iter().enumerate() {
                let from = 15 * i64::try_from(step).unwrap();
                let activity = observed.then(|| seen(from, from + 15, active, quiet));
                idle.observe(&pod, 2, activity.as_ref());
                all.push((from, observed && active == 0 && quiet == 2));
                if let Some(since) = idle.since([&(pod.clone(), 2)], at(from + 15)) {
                    let since = since.as_second();
                    prop_assert!(all.iter().all(|(from, idle)| *from < since || *idle));
                }
            }
        }
    }
}
