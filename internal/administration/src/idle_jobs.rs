//! Jobs whose GPUs do nothing: what is known of them, when they are warned and cancelled, and the sentences about it.
//! Pure: what is observed in, what is due out.
//!
//! A job is warned when half of its limit is over and again at four fifths of it, and cancelled at the limit if the limit
//! cancels. Example: with a limit of 2h it is warned after 1h and after 1h36m.

use jiff::{SignedDuration, Timestamp};
use resources::idle_gpus::{IdleGpuAction, IdleGpuLimit};
use resources::span::human_duration;
use resources::times;
use serde::{Deserialize, Serialize};

/// A job whose GPUs do nothing. The form of one in `/api/v1/idle-gpus`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IdleJob {
    /// Its namespace.
    pub namespace: String,
    /// Its kind as lists show it.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// The user that it runs for.
    pub user: String,
    /// Its queue.
    pub queue: String,
    /// The GPUs that it holds.
    pub gpus: usize,
    /// Since when none of them works.
    pub since: Timestamp,
    /// Its limit; none if it may hold them idle without end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<ShownLimit>,
}

/// The limit of an idle job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ShownLimit {
    /// The limit.
    pub seconds: i64,
    /// `warn` or `cancel`.
    pub action: String,
    /// `job` if the job set it itself, `namespace` if its namespace did.
    pub set_by: String,
    /// When it is reached, unless a GPU works before.
    pub at: Timestamp,
    /// Why the job is not cancelled at the limit although the limit cancels; absent if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept_because: Option<String>,
}

/// How far an idle job is on the way to its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IdleStage {
    /// Less than half of the limit is over, or there is none.
    Early,
    /// Half of it is over.
    Half,
    /// Four fifths of it are over.
    Late,
    /// It is over.
    Over,
}

impl ShownLimit {
    /// The limit of a job that is idle since a time. `kept_because` says why a job like it cannot be cancelled.
    #[must_use]
    pub fn of(limit: IdleGpuLimit, since: Timestamp, kept_because: Option<&str>) -> ShownLimit {
        let cancels = limit.action == IdleGpuAction::Cancel;
        let at = since.checked_add(SignedDuration::from_secs(limit.seconds));
        ShownLimit {
            seconds: limit.seconds,
            action: limit.action.as_str().to_owned(),
            set_by: if limit.own { "job" } else { "namespace" }.to_owned(),
            at: at.unwrap_or(Timestamp::MAX),
            kept_because: kept_because.filter(|_| cancels).map(str::to_owned),
        }
    }

    /// True if the job is cancelled at the limit.
    #[must_use]
    pub fn cancels(&self) -> bool {
        self.action == IdleGpuAction::Cancel.as_str() && self.kept_because.is_none()
    }
}

impl IdleJob {
    /// How long its GPUs have done nothing, in seconds.
    #[must_use]
    pub fn idle_seconds(&self, now: Timestamp) -> i64 {
        now.duration_since(self.since).as_secs().max(0)
    }

    /// How far it is.
    #[must_use]
    pub fn stage(&self, now: Timestamp) -> IdleStage {
        let Some(limit) = &self.limit else {
            return IdleStage::Early;
        };
        let idle = self.idle_seconds(now);
        let part = |fifths: i64| limit.seconds.saturating_mul(fifths) / 10;
        match idle {
            _ if idle >= limit.seconds => IdleStage::Over,
            _ if idle >= part(8) => IdleStage::Late,
            _ if idle >= part(5) => IdleStage::Half,
            _ => IdleStage::Early,
        }
    }

    fn all_gpus(&self) -> String {
        match self.gpus {
            1 => "The job's GPU has".to_owned(),
            gpus => format!("All {gpus} GPUs of the job have"),
        }
    }

    /// Who set the limit, and to what.
    fn permitted(&self, limit: &ShownLimit) -> String {
        let span = human_duration(limit.seconds);
        match limit.set_by.as_str() {
            "job" => format!("the job permits itself {span}"),
            _ => format!("namespace {} permits {span}", self.namespace),
        }
    }

    /// The warning for its owner; none without a limit.
    #[must_use]
    pub fn warning(&self, now: Timestamp) -> Option<String> {
        let limit = self.limit.as_ref()?;
        let idle = human_duration(self.idle_seconds(now));
        let since = times::seconds(self.since);
        let what = match (limit.cancels(), &limit.kept_because) {
            (true, _) => format!(
                "the job is cancelled at {} unless one of them works before",
                times::seconds(limit.at)
            ),
            (false, Some(kept)) => {
                format!("the job is not cancelled, because {kept}; delete it if it is not needed")
            }
            (false, None) => "the job is not cancelled; cancel it if it is not needed".to_owned(),
        };
        Some(format!(
            "{} done nothing since {since} ({idle}). {} (muster.io/idle-gpu-limit): {what}.",
            self.all_gpus(),
            capital(&self.permitted(limit)),
        ))
    }

    /// Why it is cancelled: the rest of a sentence after "because"; none without a limit.
    #[must_use]
    pub fn because(&self, now: Timestamp) -> Option<String> {
        let limit = self.limit.as_ref()?;
        let gpus = match self.gpus {
            1 => "its GPU".to_owned(),
            gpus => format!("its {gpus} GPUs"),
        };
        let idle = human_duration(self.idle_seconds(now));
        let permitted = self.permitted(limit);
        Some(format!(
            "{gpus} did nothing for {idle}, and {permitted} (muster.io/idle-gpu-limit)"
        ))
    }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        let start: Timestamp = "2026-11-27T10:00:00Z".parse().unwrap();
        start + SignedDuration::from_secs(seconds)
    }

    fn job(gpus: usize, limit: Option<IdleGpuLimit>, kept: Option<&str>) -> IdleJob {
        IdleJob {
            namespace: "team-a".to_owned(),
            kind: "PyTorchJob".to_owned(),
            name: "train".to_owned(),
            user: "ann".to_owned(),
            queue: "default".to_owned(),
            gpus,
            since: at(0),
            limit: limit.map(|limit| ShownLimit::of(limit, at(0), kept)),
        }
    }

    const CANCELS: IdleGpuLimit = IdleGpuLimit {
        seconds: 7200,
        action: IdleGpuAction::Cancel,
        own: false,
    };

    #[test]
    fn a_job_is_warned_at_half_and_four_fifths_of_its_limit() {
        let limited = job(4, Some(CANCELS), None);
        for (second, stage) in [
            (0, IdleStage::Early),
            (3599, IdleStage::Early),
            (3600, IdleStage::Half),
            (5759, IdleStage::Half),
            (5760, IdleStage::Late),
            (7199, IdleStage::Late),
            (7200, IdleStage::Over),
            (100_000, IdleStage::Over),
        ] {
            assert_eq!(limited.stage(at(second)), stage, "{second}");
        }
        assert_eq!(job(4, None, None).stage(at(100_000)), IdleStage::Early);
        // The clock was set back.
        assert_eq!(limited.stage(at(-100)), IdleStage::Early);
    }

    #[test]
    fn the_sentences_name_the_gpus_the_time_the_limit_and_what_happens() {
        let warning = job(4, Some(CANCELS), None).warning(at(3600)).unwrap();
        assert_eq!(
            warning,
            "All 4 GPUs of the job have done nothing since 2026-11-27T10:00:00Z (60m). Namespace team-a permits 120m \
             (muster.io/idle-gpu-limit): the job is cancelled at 2026-11-27T12:00:00Z unless one of them works before."
        );
        let own = IdleGpuLimit {
            own: true,
            ..CANCELS
        };
        let because = job(1, Some(own), None).because(at(7200)).unwrap();
        assert_eq!(
            because,
            "its GPU did nothing for 120m, and the job permits itself 120m (muster.io/idle-gpu-limit)"
        );
        let warns = IdleGpuLimit {
            action: IdleGpuAction::Warn,
            ..CANCELS
        };
        let (warned, kept) = (
            job(1, Some(warns), Some("a ReplicaSet would replace the pod")),
            job(1, Some(CANCELS), Some("a ReplicaSet would replace the pod")),
        );
        assert!(!warned.limit.as_ref().unwrap().cancels());
        let text = warned.warning(at(3600)).unwrap();
        assert!(
            text.starts_with("The job's GPU has done nothing since"),
            "{text}"
        );
        assert!(
            text.ends_with("the job is not cancelled; cancel it if it is not needed."),
            "{text}"
        );
        assert!(!kept.limit.as_ref().unwrap().cancels());
        let text = kept.warning(at(3600)).unwrap();
        assert!(
            text.contains("not cancelled, because a ReplicaSet would replace the pod"),
            "{text}"
        );
    }

    #[test]
    fn no_number_of_seconds_panics() {
        let endless = IdleGpuLimit {
            seconds: i64::MAX,
            ..CANCELS
        };
        let job = job(1, Some(endless), None);
        assert_eq!(job.limit.as_ref().unwrap().at, Timestamp::MAX);
        assert_eq!(job.stage(Timestamp::MAX), IdleStage::Early);
    }
}
