//! Jobs that hang: how long a job says that it may be quiet, what is decided from the observation of its pods, and the
//! record in the job's annotation `muster.io/hung`, whose sentence events, the REST API, the CLI and the pages say.
//! Pure: the server observes and writes.
//!
//! The problem: a rank that waits for another one for ever fails in no way, and holds its gang's room. The method: a job
//! is quiet while each of its running pods is, and hangs once it was quiet for as long as it says. What is not known ends
//! no record and makes none. Example: with `muster.io/hang-after: 30m` and all pods quiet since 10:00, the job hangs from
//! 10:30 on, until one of them works. The tests that hold it are below; `measurements::quiet` has the observation.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::names::{HANG_AFTER, HUNG, ON_HANG};
use crate::span::{self, human_duration};
use crate::times;

/// The shortest `muster.io/hang-after` in seconds. Agents observe pods each 15 seconds: below that, one late line of a
/// log would matter.
pub const AFTER_MIN: i64 = 60;
/// The longest `muster.io/hang-after` in seconds: 7 days.
pub const AFTER_MAX: i64 = 604_800;

/// What happens to a job that hangs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnHang {
    /// It is reported.
    #[default]
    Report,
    /// It is reported, and what its `muster.io/on-failure` says of the class `hang` follows.
    Restart,
}

/// Why an annotation about hangs is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{annotation}: {value:?}: {valid}")]
pub struct InvalidHangPolicy {
    /// The annotation.
    pub annotation: &'static str,
    /// Its value.
    pub value: String,
    /// What it must be.
    pub valid: String,
}

/// What a job says about hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HangPolicy {
    /// Seconds of quiet after which it hangs.
    pub after: i64,
    /// What happens then.
    pub action: OnHang,
}

impl HangPolicy {
    /// The policy in a job's annotations; none if it says nothing about hangs.
    ///
    /// # Errors
    /// A value that cannot be read, or `muster.io/on-hang` without `muster.io/hang-after`.
    pub fn read<'a>(
        annotation: impl Fn(&str) -> Option<&'a str>,
    ) -> Result<Option<HangPolicy>, InvalidHangPolicy> {
        let invalid = |annotation, value: &str, valid: String| InvalidHangPolicy {
            annotation,
            value: value.to_owned(),
            valid,
        };
        let action = match annotation(ON_HANG) {
            None | Some("report") => OnHang::Report,
            Some("restart") => OnHang::Restart,
            Some(other) => {
                let valid = "must be report or restart".to_owned();
                return Err(invalid(ON_HANG, other, valid));
            }
        };
        let Some(text) = annotation(HANG_AFTER) else {
            return annotation(ON_HANG).map_or(Ok(None), |value| {
                let valid =
                    format!("has no effect without {HANG_AFTER}; set that one too, such as 30m");
                Err(invalid(ON_HANG, value, valid))
            });
        };
        let after = span::seconds(text).filter(|seconds| (AFTER_MIN..=AFTER_MAX).contains(seconds));
        match after {
            Some(after) => Ok(Some(HangPolicy { after, action })),
            None => {
                let valid = format!("must be a time from 1m to 7d: {}", span::FORMS);
                Err(invalid(HANG_AFTER, text, valid))
            }
        }
    }
}

/// What the observations of a job's running pods say together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quietness {
    /// All of them have been quiet since then.
    Since(Timestamp),
    /// One of them works.
    Works,
    /// One of them was not observed, or not long enough, and none is known to work.
    Unknown,
}

/// What the pods of a job would use if they worked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkMeasure {
    /// Every pod has GPUs.
    Gpu,
    /// No pod has one.
    #[default]
    Cpu,
    /// Some have.
    Either,
}

impl WorkMeasure {
    /// The measure of pods, given whether each has GPUs.
    #[must_use]
    pub fn of(pods: impl IntoIterator<Item = bool>) -> WorkMeasure {
        let (mut with, mut without) = (false, false);
        for gpus in pods {
            with |= gpus;
            without |= !gpus;
        }
        match (with, without) {
            (true, false) => WorkMeasure::Gpu,
            (true, true) => WorkMeasure::Either,
            (false, _) => WorkMeasure::Cpu,
        }
    }

    fn words(self) -> &'static str {
        match self {
            WorkMeasure::Gpu => "its GPU",
            WorkMeasure::Cpu => "its CPU",
            WorkMeasure::Either => "its GPU or CPU",
        }
    }
}

/// A running pod of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningPod {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// The GPUs that it holds.
    pub gpus: usize,
}

/// A job's hang, as the server recorded it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HangRecord {
    /// Since when all running pods have been quiet.
    pub since: Timestamp,
    /// When the hang was noticed.
    pub at: Timestamp,
    /// The job's `muster.io/hang-after`, in seconds.
    pub after: i64,
    /// What happens to the job.
    pub action: OnHang,
    /// What its pods did not use.
    #[serde(default)]
    pub unused: WorkMeasure,
    /// Whether its pods are ranks.
    #[serde(default)]
    pub ranks: bool,
    /// The first of its running pods, which stands for the attempt: the record ends with this pod.
    pub pod: String,
    /// The uid of this pod.
    pub uid: String,
}

impl HangRecord {
    /// The record in a job's annotations.
    #[must_use]
    pub fn read<'a>(annotation: impl Fn(&str) -> Option<&'a str>) -> Option<HangRecord> {
        serde_json::from_str(annotation(HUNG)?).ok()
    }

    /// The annotation's text.
    #[must_use]
    pub fn write(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// What was observed, as a sentence without a full stop.
    #[must_use]
    pub fn observed(&self) -> String {
        format!(
            "No {} has written a log line or used {} since {}, and {HANG_AFTER} is {}",
            self.pod_word(),
            self.unused.words(),
            times::seconds(self.since),
            human_duration(self.after)
        )
    }

    /// The verdict on the job.
    #[must_use]
    pub fn sentence(&self) -> String {
        format!("{}: the job may hang.", self.observed())
    }

    /// What is said once the job works again.
    #[must_use]
    pub fn ended(&self) -> String {
        format!(
            "The job does not hang: a {} works again after it was quiet since {}.",
            self.pod_word(),
            times::seconds(self.since)
        )
    }

    fn pod_word(&self) -> &'static str {
        if self.ranks { "rank" } else { "pod" }
    }
}

/// What is to be done about a job's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HangStep {
    /// Nothing.
    Keep,
    /// The job hangs: write this record, and say it.
    Record(HangRecord),
    /// Remove the record.
    Clear {
        /// Whether a pod was seen to work. If not, the pods or the policy have changed.
        works: bool,
    },
}

/// Decides about a job with the running pods `pods`, the first rank first. `known` is the record as last written.
#[must_use]
pub fn decide(
    policy: Option<HangPolicy>,
    known: Option<&HangRecord>,
    pods: &[RunningPod],
    ranks: bool,
    quiet: Quietness,
    now: Timestamp,
) -> HangStep {
    let over = match known {
        Some(_) => HangStep::Clear { works: false },
        None => HangStep::Keep,
    };
    let (Some(policy), Some(first)) = (policy, pods.first()) else {
        return over;
    };
    if known.is_some_and(|known| pods.iter().all(|pod| pod.uid != known.uid)) {
        return over;
    }
    let since = match (quiet, known) {
        (Quietness::Works, Some(_)) => return HangStep::Clear { works: true },
        (Quietness::Works | Quietness::Unknown, None) => return HangStep::Keep,
        // The record stands until a pod works: the server may have been restarted since.
        (Quietness::Unknown, Some(known)) => known.since,
        (Quietness::Since(since), Some(known)) => known.since.min(since),
        (Quietness::Since(since), None) => since,
    };
    if now.duration_since(since).as_secs() < policy.after {
        // With a record, the job has raised its time since.
        return over;
    }
    let is_known =
        |known: &HangRecord| known.after == policy.after && known.action == policy.action;
    if known.is_some_and(is_known) {
        return HangStep::Keep;
    }
    HangStep::Record(HangRecord {
        since,
        at: times::whole(now),
        after: policy.after,
        action: policy.action,
        unused: WorkMeasure::of(pods.iter().map(|pod| pod.gpus > 0)),
        ranks,
        pod: known.map_or(&first.name, |known| &known.pod).clone(),
        uid: known.map_or(&first.uid, |known| &known.uid).clone(),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jiff::SignedDuration;
    use proptest::prelude::*;

    use super::*;

    fn at(second: i64) -> Timestamp {
        let start: Timestamp = "2026-11-27T10:00:00Z".parse().unwrap();
        start + SignedDuration::from_secs(second)
    }

    fn pod(name: &str, gpus: usize) -> RunningPod {
        RunningPod {
            name: name.to_owned(),
            uid: format!("uid-{name}"),
            gpus,
        }
    }

    const HALF_HOUR: HangPolicy = HangPolicy {
        after: 1800,
        action: OnHang::Report,
    };

    fn policy(pairs: &[(&str, &str)]) -> Result<Option<HangPolicy>, InvalidHangPolicy> {
        let all: BTreeMap<&str, &str> = pairs.iter().copied().collect();
        HangPolicy::read(|name| all.get(name).copied())
    }

    #[test]
    fn a_policy_has_a_time_within_its_bounds_and_an_action() {
        assert_eq!(policy(&[]), Ok(None));
        for (text, after) in [("1m", 60), ("30m", 1800), ("7d", AFTER_MAX), ("90", 90)] {
            let read = policy(&[(HANG_AFTER, text)]).unwrap().unwrap();
            assert_eq!((read.after, read.action), (after, OnHang::Report));
        }
        let read = policy(&[(HANG_AFTER, "1h"), (ON_HANG, "restart")]);
        assert_eq!(read.unwrap().unwrap().action, OnHang::Restart);
        for (pairs, annotation, words) in [
            (vec![(HANG_AFTER, "59s")], HANG_AFTER, "from 1m to 7d"),
            (vec![(HANG_AFTER, "8d")], HANG_AFTER, "from 1m to 7d"),
            (vec![(HANG_AFTER, "soon")], HANG_AFTER, "1h30m"),
            (vec![(HANG_AFTER, "")], HANG_AFTER, "from 1m to 7d"),
            (
                vec![(HANG_AFTER, "1h"), (ON_HANG, "kill")],
                ON_HANG,
                "must be report or restart",
            ),
            (
                vec![(ON_HANG, "report")],
                ON_HANG,
                "no effect without muster.io/hang-after",
            ),
        ] {
            let error = policy(&pairs).unwrap_err();
            assert_eq!(error.annotation, annotation);
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    fn recorded(pods: &[RunningPod], ranks: bool) -> HangRecord {
        let quiet = Quietness::Since(at(0));
        match decide(Some(HALF_HOUR), None, pods, ranks, quiet, at(1800)) {
            HangStep::Record(record) => record,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_job_hangs_after_its_time_and_until_a_pod_works() {
        let pods = [pod("a", 1), pod("b", 1)];
        let step = |known: Option<&HangRecord>, quiet, second| {
            decide(Some(HALF_HOUR), known, &pods, true, quiet, at(second))
        };
        let record = recorded(&pods, true);
        let clear = |works| HangStep::Clear { works };
        let (quiet, unknown) = (Quietness::Since(at(0)), Quietness::Unknown);
        let later = Quietness::Since(at(4000));
        let table = [
            (None, quiet, 1799, HangStep::Keep),
            (None, quiet, 1800, HangStep::Record(record.clone())),
            (None, unknown, 9000, HangStep::Keep),
            (None, Quietness::Works, 9000, HangStep::Keep),
            // The clock was set back.
            (None, quiet, -100, HangStep::Keep),
            (Some(&record), quiet, 9000, HangStep::Keep),
            // The server was restarted: what it has seen since is shorter than the time.
            (Some(&record), unknown, 4010, HangStep::Keep),
            (Some(&record), later, 4010, HangStep::Keep),
            (Some(&record), Quietness::Works, 4010, clear(true)),
        ];
        for (known, quiet, second, expected) in table {
            assert_eq!(step(known, quiet, second), expected, "{quiet:?} {second}");
        }
        assert_eq!((record.pod.as_str(), record.uid.as_str()), ("a", "uid-a"));
    }

    #[test]
    fn a_record_ends_with_its_pods_and_follows_the_policy() {
        let pods = [pod("a", 0), pod("b", 0)];
        let record = recorded(&pods, true);
        let quiet = Quietness::Since(at(0));
        let step = |policy, pods: &[RunningPod]| {
            decide(policy, Some(&record), pods, true, quiet, at(2000))
        };
        let cleared = HangStep::Clear { works: false };
        assert_eq!(step(None, &pods), cleared);
        assert_eq!(step(Some(HALF_HOUR), &[]), cleared);
        assert_eq!(step(Some(HALF_HOUR), &[pod("new", 0)]), cleared);
        // The first rank has ended; the second one stands in the next record.
        assert_eq!(step(Some(HALF_HOUR), &pods[1..]), cleared);
        let longer = HangPolicy {
            after: 3600,
            ..HALF_HOUR
        };
        assert_eq!(step(Some(longer), &pods), cleared);
        let restarts = HangPolicy {
            action: OnHang::Restart,
            ..HALF_HOUR
        };
        let HangStep::Record(changed) = step(Some(restarts), &pods) else {
            panic!("the action has changed");
        };
        assert_eq!((changed.action, changed.since), (OnHang::Restart, at(0)));
        assert_eq!(decide(None, None, &[], true, quiet, at(0)), HangStep::Keep);
    }

    #[test]
    fn one_sentence_says_what_was_observed_since_when() {
        let sentence = |pods: &[RunningPod], ranks| recorded(pods, ranks).sentence();
        assert_eq!(
            sentence(&[pod("a", 8), pod("b", 8)], true),
            "No rank has written a log line or used its GPU since 2026-11-27T10:00:00Z, and muster.io/hang-after is \
             30m: the job may hang."
        );
        let mixed = sentence(&[pod("a", 8), pod("b", 0)], true);
        assert!(mixed.contains("used its GPU or CPU since"), "{mixed}");
        let alone = sentence(&[pod("a", 0)], false);
        assert!(
            alone.starts_with("No pod has written a log line or used its CPU since"),
            "{alone}"
        );
        let record = recorded(&[pod("a", 0)], false);
        let text = record.write();
        assert_eq!(
            HangRecord::read(|_| Some(text.as_str())),
            Some(record.clone())
        );
        assert_eq!(HangRecord::read(|_| Some("{}")), None);
        assert_eq!(HangRecord::read(|_| None), None);
        assert!(record.ended().contains("a pod works again"));
    }

    proptest! {
        /// A record is written only for pods that are known to be quiet for as long as the job says, and once.
        #[test]
        fn a_record_is_written_once_and_only_for_a_quiet_job(
            after in AFTER_MIN..5000i64,
            restart in any::<bool>(),
            steps in prop::collection::vec((0u8..3, 0i64..4000), 1..30),
        ) {
            let action = if restart { OnHang::Restart } else { OnHang::Report };
            let policy = Some(HangPolicy { after, action });
            let pods = [pod("a", 0)];
            let (mut known, mut now): (Option<HangRecord>, i64) = (None, 0);
            for (kind, back) in steps {
                now += 15;
                let quiet = match kind {
                    0 => Quietness::Works,
                    1 => Quietness::Unknown,
                    _ => Quietness::Since(at(now - back)),
                };
                match decide(policy, known.as_ref(), &pods, true, quiet, at(now)) {
                    HangStep::Record(record) => {
                        prop_assert!(known.is_none() && kind == 2 && back >= after);
                        prop_assert_eq!(record.since, at(now - back));
                        known = Some(record);
                    }
                    HangStep::Clear { works } => {
                        prop_assert!(works && kind == 0 && known.is_some());
                        known = None;
                    }
                    HangStep::Keep => prop_assert!(kind != 0 || known.is_none()),
                }
            }
        }

        #[test]
        fn no_text_panics(after in ".{0,12}", action in ".{0,8}", record in ".{0,60}") {
            let _ = policy(&[(HANG_AFTER, after.as_str()), (ON_HANG, action.as_str())]);
            let _ = HangRecord::read(|_| Some(record.as_str()));
        }
    }
}
