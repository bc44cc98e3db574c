//! What a PodGroup or pod says beyond its resources: whose it is, whether it may be evicted, how
//! long it runs. From annotations, or labels where those are customary.

use std::ops::Deref;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::names::{
    CHECKPOINT, CHECKPOINT_GRACE, MIN_RUNTIME, MOVABLE, PREEMPTIBLE, TEAM, USER,
    VOLCANO_PREEMPTABLE, WALLTIME,
};
use resources::span::seconds;

/// Nobody keeps room that others take back for longer than this to save himself, in seconds.
const CHECKPOINT_GRACE_MAX: i64 = 3600;

/// The longest span that any of them counts as, in seconds: a hundred years. So a time plus a span is
/// always a time, and a span times an amount a number.
pub(crate) const SPAN_MAX: i64 = 100 * 366 * 86_400;

/// What is said. Most say nothing, and are many: then nothing is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Terms(Option<Arc<Said>>);

/// One by one; none where nothing is said, or nothing that can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    /// The user it runs for.
    pub(crate) user: Option<Arc<str>>,
    /// The team it runs for.
    pub(crate) team: Option<Arc<str>>,
    /// May it be evicted for others?
    pub(crate) preemptible: Option<bool>,
    /// May it be moved? For others' sake unless it says no; to tidy up if it says yes, or saves
    /// itself and says nothing.
    pub(crate) movable: Option<bool>,
    /// How often it saves itself, in seconds: an interruption loses no more.
    pub(crate) checkpoint: Option<i64>,
    /// How long it needs to save itself once it is told to go, in seconds.
    pub(crate) checkpoint_grace: Option<i64>,
    /// How long it says it runs, in seconds.
    pub(crate) walltime: Option<i64>,
    /// How long after its start it may not be lost to others, in seconds.
    pub(crate) min_runtime: Option<i64>,
}

const NOTHING: Said = Said {
    user: None,
    team: None,
    preemptible: None,
    movable: None,
    checkpoint: None,
    checkpoint_grace: None,
    walltime: None,
    min_runtime: None,
};

/// What who says nothing says.
static SILENT: Said = NOTHING;

impl Deref for Terms {
    type Target = Said;

    fn deref(&self) -> &Said {
        self.0.as_deref().unwrap_or(&SILENT)
    }
}

impl Terms {
    fn of(said: Said) -> Terms {
        Terms((said != SILENT).then(|| Arc::new(said)))
    }

    pub(crate) fn read(meta: &ObjectMeta) -> Terms {
        let said = |name: &str| {
            let maps = [meta.annotations.as_ref(), meta.labels.as_ref()];
            let words = maps.into_iter().flatten().filter_map(|map| map.get(name));
            words.map(|word| word.trim()).find(|word| !word.is_empty())
        };
        let span = |name: &str| said(name).and_then(seconds).map(|span| span.min(SPAN_MAX));
        let truth = |name: &str| said(name).and_then(|word| word.parse().ok());
        Terms::of(Said {
            user: said(USER).map(Arc::from),
            team: said(TEAM).map(Arc::from),
            preemptible: truth(PREEMPTIBLE).or_else(|| truth(VOLCANO_PREEMPTABLE)),
            movable: truth(MOVABLE),
            checkpoint: span(CHECKPOINT),
            checkpoint_grace: span(CHECKPOINT_GRACE).map(|grace| grace.min(CHECKPOINT_GRACE_MAX)),
            walltime: span(WALLTIME),
            min_runtime: span(MIN_RUNTIME),
        })
    }

    /// With a time after which it is stopped, whatever it says of how long it runs.
    pub(crate) fn within(self, deadline: Option<i64>) -> Terms {
        let Some(deadline) = deadline else {
            return self;
        };
        let deadline = deadline.clamp(0, SPAN_MAX);
        let walltime = self.walltime.map_or(deadline, |said| said.min(deadline));
        Terms::of(Said {
            walltime: Some(walltime),
            ..Said::clone(&self)
        })
    }

    /// What is said here, or else there.
    pub(crate) fn or(&self, other: &Terms) -> Terms {
        if other.0.is_none() {
            return self.clone();
        }
        Terms::of(Said {
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
            let said = names.map(|name| (name.to_owned(), text.to_owned()));
            let terms = Terms::read(&ObjectMeta {
                annotations: Some(said.into()),
                ..ObjectMeta::default()
            });
            assert_eq!(terms.walltime, Some(counts), "{text}");
            assert_eq!(terms.min_runtime, Some(counts), "{text}");
            assert_eq!(terms.checkpoint, Some(counts), "{text}");
            assert_eq!(terms.checkpoint_grace, Some(CHECKPOINT_GRACE_MAX), "{text}");
        }
    }

    #[test]
    fn nobody_runs_beyond_its_deadline_whatever_it_says() {
        let says = |walltime| {
            Terms::of(Said {
                walltime,
                ..NOTHING
            })
        };
        for (said, deadline, want) in [
            (None, None, None),
            (None, Some(60), Some(60)),
            (Some(30), Some(60), Some(30)),
            (Some(90), Some(60), Some(60)),
            (Some(90), None, Some(90)),
            (Some(90), Some(i64::MIN), Some(0)),
            (None, Some(i64::MAX), Some(SPAN_MAX)),
        ] {
            assert_eq!(says(said).within(deadline).walltime, want);
        }
    }
}
