//! The annotations of a PodGroup or pod beyond its resources: its user and team, whether it may be
//! evicted or moved, and its run time. Read from annotations, or from labels where those are
//! customary.

use std::ops::Deref;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::names::{
    CHECKPOINT, CHECKPOINT_GRACE, MIN_RUNTIME, MOVABLE, PREEMPTIBLE, TEAM, USER,
    VOLCANO_PREEMPTABLE, WALLTIME,
};
use resources::span::seconds;

/// The longest checkpoint grace that counts, in seconds: reclaimed capacity is not withheld for
/// longer.
const CHECKPOINT_GRACE_MAX: i64 = 3600;

/// The longest duration that counts, in seconds: a hundred years. So a time plus a duration is a
/// valid time, and a duration times an amount fits in 64 bits.
pub(crate) const SPAN_MAX: i64 = 100 * 366 * 86_400;

/// The values. Most objects have none; then nothing is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct JobAnnotations(Option<Arc<TermValues>>);

/// The values one by one; `None` if absent or unreadable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TermValues {
    /// The user it runs for.
    pub(crate) user: Option<Arc<str>>,
    /// The team it runs for.
    pub(crate) team: Option<Arc<str>>,
    /// May it be evicted for other gangs?
    pub(crate) preemptible: Option<bool>,
    /// May it be moved? For another gang unless it says no; for defragmentation if it says yes, or
    /// if it checkpoints and says nothing.
    pub(crate) movable: Option<bool>,
    /// Its checkpoint interval, in seconds: an eviction loses at most that much work.
    pub(crate) checkpoint: Option<i64>,
    /// The seconds that it needs for a checkpoint after SIGTERM.
    pub(crate) checkpoint_grace: Option<i64>,
    /// Its stated run time, in seconds.
    pub(crate) walltime: Option<i64>,
    /// How long after its start it may not be evicted for other gangs, in seconds.
    pub(crate) min_runtime: Option<i64>,
}

const NOTHING: TermValues = TermValues {
    user: None,
    team: None,
    preemptible: None,
    movable: None,
    checkpoint: None,
    checkpoint_grace: None,
    walltime: None,
    min_runtime: None,
};

/// The values of an object without such annotations.
static NO_VALUES: TermValues = NOTHING;

impl Deref for JobAnnotations {
    type Target = TermValues;

    fn deref(&self) -> &TermValues {
        self.0.as_deref().unwrap_or(&NO_VALUES)
    }
}

impl JobAnnotations {
    fn of(values: TermValues) -> JobAnnotations {
        JobAnnotations((values != NO_VALUES).then(|| Arc::new(values)))
    }

    pub(crate) fn read(meta: &ObjectMeta) -> JobAnnotations {
        let annotation = |name: &str| {
            let maps = [meta.annotations.as_ref(), meta.labels.as_ref()];
            let words = maps.into_iter().flatten().filter_map(|map| map.get(name));
            words.map(|word| word.trim()).find(|word| !word.is_empty())
        };
        let span = |name: &str| {
            annotation(name)
                .and_then(seconds)
                .map(|span| span.min(SPAN_MAX))
        };
        let truth = |name: &str| annotation(name).and_then(|word| word.parse().ok());
        JobAnnotations::of(TermValues {
            user: annotation(USER).map(Arc::from),
            team: annotation(TEAM).map(Arc::from),
            preemptible: truth(PREEMPTIBLE).or_else(|| truth(VOLCANO_PREEMPTABLE)),
            movable: truth(MOVABLE),
            checkpoint: span(CHECKPOINT),
            checkpoint_grace: span(CHECKPOINT_GRACE).map(|grace| grace.min(CHECKPOINT_GRACE_MAX)),
            walltime: span(WALLTIME),
            min_runtime: span(MIN_RUNTIME),
        })
    }

    /// Limits the run time to a pod's deadline.
    pub(crate) fn within(self, deadline: Option<i64>) -> JobAnnotations {
        let Some(deadline) = deadline else {
            return self;
        };
        let deadline = deadline.clamp(0, SPAN_MAX);
        let walltime = self
            .walltime
            .map_or(deadline, |declared| declared.min(deadline));
        JobAnnotations::of(TermValues {
            walltime: Some(walltime),
            ..TermValues::clone(&self)
        })
    }

    /// These values, with `other`'s for absent ones.
    pub(crate) fn or(&self, other: &JobAnnotations) -> JobAnnotations {
        if other.0.is_none() {
            return self.clone();
        }
        JobAnnotations::of(TermValues {
            user: self.user.clone().or_else(|| other.user.clone()),
            team: self.team.clone().or_else(|| other.team.clone()),
            preemptible: self.preemptible.or(other.preemptible),
            movable: self.movable.or(other.movable),
            checkpoint: self.checkpoint.or(other.checkpoint),
            checkpoint_grace: self.checkpoint_grace.or(other.checkpoint_grace),
            walltime: self.walltime.or(other.walltime),
            min_runtime: self.min_runtime.or(other.min_runtime),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_counts_up_to_its_bound() {
        for (text, counts) in [
            ("3162240000", SPAN_MAX),
            ("3162240001", SPAN_MAX),
            ("999999999999999", SPAN_MAX),
            ("100000000000000d", SPAN_MAX),
        ] {
            let names = [CHECKPOINT, CHECKPOINT_GRACE, WALLTIME, MIN_RUNTIME];
            let annotations = names.map(|name| (name.to_owned(), text.to_owned()));
            let terms = JobAnnotations::read(&ObjectMeta {
                annotations: Some(annotations.into()),
                ..ObjectMeta::default()
            });
            assert_eq!(terms.walltime, Some(counts), "{text}");
            assert_eq!(terms.min_runtime, Some(counts), "{text}");
            assert_eq!(terms.checkpoint, Some(counts), "{text}");
            assert_eq!(terms.checkpoint_grace, Some(CHECKPOINT_GRACE_MAX), "{text}");
        }
    }

    #[test]
    fn a_run_time_is_limited_by_the_deadline() {
        let says = |walltime| {
            JobAnnotations::of(TermValues {
                walltime,
                ..NOTHING
            })
        };
        for (declared, deadline, want) in [
            (None, None, None),
            (None, Some(60), Some(60)),
            (Some(30), Some(60), Some(30)),
            (Some(90), Some(60), Some(60)),
            (Some(90), None, Some(90)),
            (Some(90), Some(i64::MIN), Some(0)),
            (None, Some(i64::MAX), Some(SPAN_MAX)),
        ] {
            assert_eq!(says(declared).within(deadline).walltime, want);
        }
    }
}
