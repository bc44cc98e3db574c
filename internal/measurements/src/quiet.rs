//! Since when pods are quiet: they write no log line and do no work.
//!
//! The problem: a rank that waits for ever is to be told from one that computes in silence, and time in which no
//! observation arrived is not to be guessed. The method: between two observations of a pod that follow each other, it was
//! quiet if the log of none of its containers was written, and if its GPUs were at most at [`GPU_QUIET_PERCENT`] at both
//! or, without GPUs, it used less than [`CPU_QUIET_MILLICORES`]. Such intervals are joined. An interval in which the pod
//! worked ends the quiet, and so does one in which something was not measured, a gap, and another run of a container. A
//! job is quiet since the latest of its pods is. Example: of two pods, one is quiet since 10:00 and one since 10:20: the
//! job is quiet since 10:20. Cost: one look-up for each pod and observation. The tests that hold it are below.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use resources::hang::Quietness;

/// The most that a GPU is utilised while its pod is quiet, in percent.
pub const GPU_QUIET_PERCENT: f64 = 1.0;
/// A pod without GPUs that uses as much of a core works, in thousandths: 1 %.
pub const CPU_QUIET_MILLICORES: u64 = 10;
/// The longest time between two observations that follow each other; agents observe each 15 seconds.
const OBSERVED_AT_LEAST_EVERY: SignedDuration = SignedDuration::from_secs(45);
/// How long a pod that was seen to work counts as one that works: longer than the time between two questions about it.
const WORKS_FOR: SignedDuration = SignedDuration::from_secs(45);
/// The most pods that are observed at a time; nothing is known of further ones.
const PODS_MAX: usize = 50_000;

/// A container at an observation. What could not be read is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContainerSign {
    /// Which run of the container it is.
    pub run: u32,
    /// When its log was last written, as a number that is only compared.
    pub log_modified: Option<i64>,
    /// The CPU time that it used per second since the observation before, in thousandths of a core.
    pub cpu_millicores: Option<u64>,
}

/// A pod at an observation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodSigns {
    /// Its running containers by name.
    pub containers: BTreeMap<String, ContainerSign>,
    /// The utilisation of each GPU that it holds alone, in percent by the GPU's id; none if no driver reports it.
    pub gpus: BTreeMap<String, Option<f64>>,
}

/// What a pod did between two observations, and before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Unknown,
    Works,
    QuietSince(Timestamp),
}

#[derive(Clone, Debug)]
struct LastSigns {
    at: Timestamp,
    signs: PodSigns,
    seen: Seen,
    /// The last observation before which it worked.
    worked: Option<Timestamp>,
}

/// What is known of each pod.
#[derive(Debug, Default)]
pub struct QuietPods {
    pods: BTreeMap<String, LastSigns>,
}

impl PodSigns {
    /// What the pod did between these observations, of which `self` is the earlier one. `start` is its time.
    fn until(&self, later: &PodSigns, start: Timestamp) -> Seen {
        let same_containers = self.containers.keys().eq(later.containers.keys());
        if later.containers.is_empty() || !same_containers {
            return Seen::Unknown;
        }
        let mut known = true;
        for (before, now) in self.containers.values().zip(later.containers.values()) {
            // Another run begins anew, whatever its log says.
            let logs = before.log_modified.zip(now.log_modified);
            if before.run != now.run || logs.is_some_and(|(before, now)| before != now) {
                return Seen::Works;
            }
            known &= logs.is_some();
        }
        let work = match later.gpus.is_empty() {
            true => cpu_works(later),
            false => gpus_work(&self.gpus, &later.gpus),
        };
        match work {
            Some(true) => Seen::Works,
            Some(false) if known => Seen::QuietSince(start),
            Some(false) | None => Seen::Unknown,
        }
    }
}

/// Whether a pod without GPUs worked before an observation; none if that is not known.
fn cpu_works(signs: &PodSigns) -> Option<bool> {
    let (mut sum, mut known) = (0u64, true);
    for container in signs.containers.values() {
        known &= container.cpu_millicores.is_some();
        sum = sum.saturating_add(container.cpu_millicores.unwrap_or(0));
    }
    let works = sum >= CPU_QUIET_MILLICORES;
    (works || known).then_some(works)
}

/// Whether a GPU worked at one of two observations; none if that is not known.
fn gpus_work(
    before: &BTreeMap<String, Option<f64>>,
    now: &BTreeMap<String, Option<f64>>,
) -> Option<bool> {
    let mut both = before.values().chain(now.values());
    let works = both.any(|percent| percent.is_some_and(|percent| percent > GPU_QUIET_PERCENT));
    let mut both = before.values().chain(now.values());
    let known = before.keys().eq(now.keys()) && both.all(Option::is_some);
    (works || known).then_some(works)
}

impl QuietPods {
    /// Takes in an observation of the pod with this uid.
    pub fn observe(&mut self, uid: &str, at: Timestamp, signs: PodSigns) {
        if !self.pods.contains_key(uid) && self.pods.len() >= PODS_MAX {
            self.forget(at);
            if self.pods.len() >= PODS_MAX {
                return;
            }
        }
        let seen = self.pods.get(uid).map_or(Seen::Unknown, |last| {
            let elapsed = at.duration_since(last.at);
            if elapsed <= SignedDuration::ZERO || elapsed > OBSERVED_AT_LEAST_EVERY {
                return Seen::Unknown;
            }
            match (last.signs.until(&signs, last.at), last.seen) {
                (Seen::QuietSince(_), Seen::QuietSince(since)) => Seen::QuietSince(since),
                (seen, _) => seen,
            }
        });
        let worked = match seen {
            Seen::Works => Some(at),
            Seen::Unknown | Seen::QuietSince(_) => self.pods.get(uid).and_then(|last| last.worked),
        };
        let last = LastSigns {
            at,
            signs,
            seen,
            worked,
        };
        self.pods.insert(uid.to_owned(), last);
    }

    /// What is known of the pods with these uids together, given how many GPUs each holds. A pod that holds more than
    /// agents measure, such as a shared GPU, is not known to be quiet.
    #[must_use]
    pub fn of<'a>(
        &self,
        pods: impl IntoIterator<Item = (&'a str, usize)>,
        now: Timestamp,
    ) -> Quietness {
        let (mut latest, mut unknown) = (None, false);
        for (uid, held) in pods {
            let last = self.pods.get(uid);
            let last = last.filter(|last| now.duration_since(last.at) <= OBSERVED_AT_LEAST_EVERY);
            let works = |at: Timestamp| now.duration_since(at) <= WORKS_FOR;
            if last.is_some_and(|last| last.worked.is_some_and(works)) {
                return Quietness::Works;
            }
            match last.map(|last| (last.seen, last.signs.gpus.len() == held)) {
                Some((Seen::QuietSince(since), true)) => latest = latest.max(Some(since)),
                Some(_) | None => unknown = true,
            }
        }
        match latest {
            Some(since) if !unknown => Quietness::Since(since),
            _ => Quietness::Unknown,
        }
    }

    /// Forgets pods whose last observation is too long ago.
    pub fn forget(&mut self, now: Timestamp) {
        self.pods
            .retain(|_, last| now.duration_since(last.at) <= OBSERVED_AT_LEAST_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second)
    }

    fn container(run: u32, log: Option<i64>, cpu: Option<u64>) -> ContainerSign {
        ContainerSign {
            run,
            log_modified: log,
            cpu_millicores: cpu,
        }
    }

    fn signs(containers: &[ContainerSign], gpus: &[Option<f64>]) -> PodSigns {
        let name = |number: usize| format!("{number}");
        PodSigns {
            containers: containers
                .iter()
                .enumerate()
                .map(|(number, one)| (name(number), *one))
                .collect(),
            gpus: gpus
                .iter()
                .enumerate()
                .map(|(number, one)| (name(number), *one))
                .collect(),
        }
    }

    #[test]
    fn an_interval_is_quiet_only_if_nothing_was_written_and_nothing_worked() {
        let quiet = container(0, Some(1), Some(9));
        let wrote = container(0, Some(2), Some(9));
        let unread = container(0, None, Some(9));
        let busy = container(0, Some(1), Some(10));
        let no_cpu = container(0, Some(1), None);
        let again = container(1, Some(1), Some(9));
        let (works, unknown) = (Seen::Works, Seen::Unknown);
        let since = Seen::QuietSince(at(0));
        let none: &[Option<f64>] = &[];
        let idle: &[Option<f64>] = &[Some(1.0), Some(0.0)];
        let half: &[Option<f64>] = &[Some(0.0), Some(1.1)];
        let unmeasured: &[Option<f64>] = &[Some(0.0), None];
        let table = [
            (vec![quiet], none, vec![quiet], none, since),
            (vec![quiet], none, vec![wrote], none, works),
            (vec![quiet], none, vec![busy], none, works),
            // What the pod used before the earlier observation is no matter.
            (vec![busy], none, vec![quiet], none, since),
            (vec![quiet], none, vec![again], none, works),
            (vec![quiet], none, vec![no_cpu], none, unknown),
            (vec![quiet], none, vec![unread], none, unknown),
            (vec![unread], none, vec![quiet], none, unknown),
            (vec![unread], none, vec![busy], none, works),
            // One of two containers writes, or comes and goes.
            (vec![quiet, quiet], none, vec![quiet, wrote], none, works),
            (vec![quiet, quiet], none, vec![quiet], none, unknown),
            (vec![], none, vec![], none, unknown),
            // Two together use as much as works.
            (vec![quiet, quiet], none, vec![quiet, quiet], none, works),
            // Of a pod with GPUs these count, and not its CPU.
            (vec![quiet], idle, vec![busy], idle, since),
            (vec![quiet], idle, vec![no_cpu], idle, since),
            (vec![quiet], idle, vec![wrote], idle, works),
            (vec![quiet], half, vec![quiet], idle, works),
            (vec![quiet], idle, vec![quiet], half, works),
            (vec![quiet], idle, vec![quiet], unmeasured, unknown),
            (vec![quiet], unmeasured, vec![quiet], idle, unknown),
            (vec![quiet], none, vec![quiet], idle, unknown),
        ];
        for (number, (before, gpus_before, now, gpus, expected)) in table.into_iter().enumerate() {
            let (before, now) = (signs(&before, gpus_before), signs(&now, gpus));
            assert_eq!(before.until(&now, at(0)), expected, "row {number}");
        }
    }

    #[test]
    fn quiet_intervals_are_joined_and_a_gap_begins_anew() {
        let mut pods = QuietPods::default();
        let mut see = |second: i64, log: i64| {
            let container = container(0, Some(log), Some(0));
            pods.observe("u", at(second), signs(&[container], &[]));
            pods.of([("u", 0)], at(second))
        };
        assert_eq!(see(0, 1), Quietness::Unknown);
        assert_eq!(see(15, 1), Quietness::Since(at(0)));
        assert_eq!(see(30, 1), Quietness::Since(at(0)));
        assert_eq!(see(45, 2), Quietness::Works);
        // A question that comes late still learns of the work.
        for second in [60, 75, 90] {
            assert_eq!(see(second, 2), Quietness::Works);
        }
        assert_eq!(see(105, 2), Quietness::Since(at(45)));
        // The node was away, or the server was not there.
        assert_eq!(see(151, 2), Quietness::Unknown);
        assert_eq!(see(166, 2), Quietness::Since(at(151)));
        // Several messages at once, after a pause of the server.
        assert_eq!(see(166, 2), Quietness::Unknown);
        assert_eq!(pods.of([("u", 0)], at(245)), Quietness::Unknown);
        pods.forget(at(245));
        assert!(pods.pods.is_empty());
    }

    #[test]
    fn a_job_is_quiet_since_the_last_of_its_pods_is() {
        let mut pods = QuietPods::default();
        let mut see = |uid: &str, second: i64, log: i64| {
            let container = container(0, Some(log), Some(0));
            pods.observe(uid, at(second), signs(&[container], &[]));
        };
        for second in [0, 15, 30, 45, 60, 75] {
            see("early", second, 1);
            see("late", second, second.min(15));
        }
        see("works", 60, 60);
        see("works", 75, 75);
        see("new", 75, 1);
        let table = [
            (vec!["early"], Quietness::Since(at(0))),
            (vec!["early", "late"], Quietness::Since(at(15))),
            (vec!["early", "late", "works"], Quietness::Works),
            (vec!["early", "new"], Quietness::Unknown),
            (vec!["new", "works"], Quietness::Works),
            (vec!["early", "unseen"], Quietness::Unknown),
            (vec![], Quietness::Unknown),
        ];
        for (uids, expected) in table {
            let all = uids.iter().map(|uid| (*uid, 0));
            assert_eq!(pods.of(all, at(75)), expected, "{uids:?}");
        }
        // It holds a GPU that is not measured.
        assert_eq!(pods.of([("early", 1)], at(75)), Quietness::Unknown);
    }

    proptest! {
        /// Between the time since which a pod is quiet and now, no interval has a written log, work, or a gap.
        #[test]
        fn quiet_time_is_without_work_and_without_a_gap(
            steps in prop::collection::vec((any::<bool>(), 0u64..20, 1i64..60), 1..40),
        ) {
            let mut pods = QuietPods::default();
            let (mut now, mut log) = (0i64, 0i64);
            let mut all = Vec::new();
            for (writes, cpu, elapsed) in steps {
                let from = now;
                now += elapsed;
                log += i64::from(writes);
                let container = container(0, Some(log), Some(cpu));
                pods.observe("u", at(now), signs(&[container], &[]));
                all.push((from, !writes && cpu < CPU_QUIET_MILLICORES && elapsed <= 45));
                if let Quietness::Since(since) = pods.of([("u", 0)], at(now)) {
                    let since = since.as_second();
                    prop_assert!(all.iter().all(|(from, quiet)| *from < since || *quiet));
                    prop_assert!(since < now);
                }
            }
        }
    }
}
