//! The policy about GPUs that are held and do nothing: annotations of a namespace that limit how long, and of a job that
//! limits itself. Values in, limits out; what is done about them is the server's.
//!
//! Example: a namespace with `muster.io/idle-gpu-limit: 2h` and `muster.io/idle-gpu-action: cancel` has a job cancelled
//! whose GPUs all did nothing for two hours. Without the action it is only warned, which shows beforehand what the policy
//! would cancel.

use std::collections::{BTreeMap, BTreeSet};

use crate::names::{IDLE_GPU_ACTION, IDLE_GPU_EXEMPT_JOBS, IDLE_GPU_EXEMPT_USERS, IDLE_GPU_LIMIT};
use crate::span;

/// The shortest limit in seconds. Agents observe GPUs each 15 seconds: below that, one missed observation would matter.
pub const LIMIT_MIN: i64 = 60;
/// The longest limit in seconds: 90 days.
pub const LIMIT_MAX: i64 = 90 * 86_400;

/// What happens at the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IdleGpuAction {
    /// The job's owner is warned.
    Warn,
    /// The job is cancelled after two warnings.
    Cancel,
}

impl IdleGpuAction {
    /// The word for it in annotations and answers.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            IdleGpuAction::Warn => "warn",
            IdleGpuAction::Cancel => "cancel",
        }
    }
}

/// Why an annotation of the policy is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{annotation}: {value:?}: {valid}")]
pub struct InvalidIdleGpuPolicy {
    /// The annotation.
    pub annotation: &'static str,
    /// Its value.
    pub value: String,
    /// What it must be.
    pub valid: String,
}

/// A namespace's policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdleGpuPolicy {
    limit: i64,
    action: IdleGpuAction,
    users: BTreeSet<String>,
    jobs: BTreeSet<String>,
}

/// The limit of one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleGpuLimit {
    /// Seconds for which its GPUs may do nothing.
    pub seconds: i64,
    /// What happens then.
    pub action: IdleGpuAction,
    /// True if the job set it itself; false if its namespace did.
    pub own: bool,
}

type Annotations = BTreeMap<String, String>;

/// Reads a limit in seconds.
///
/// # Errors
/// It is no time, or out of bounds.
pub fn limit(text: &str) -> Result<i64, InvalidIdleGpuPolicy> {
    let seconds = span::seconds(text).filter(|seconds| (LIMIT_MIN..=LIMIT_MAX).contains(seconds));
    seconds.ok_or_else(|| InvalidIdleGpuPolicy {
        annotation: IDLE_GPU_LIMIT,
        value: text.to_owned(),
        valid: format!("must be a time from 1m to 90d: {}", span::FORMS),
    })
}

fn names(annotations: &Annotations, annotation: &str) -> BTreeSet<String> {
    let text = annotations.get(annotation).map_or("", String::as_str);
    let names = text
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}

impl IdleGpuPolicy {
    /// The policy in a namespace's annotations; none if they set no limit.
    ///
    /// # Errors
    /// A value that cannot be read, or an annotation that has no effect without a limit.
    pub fn of(annotations: &Annotations) -> Result<Option<IdleGpuPolicy>, InvalidIdleGpuPolicy> {
        let action = match annotations.get(IDLE_GPU_ACTION).map(String::as_str) {
            None | Some("warn") => IdleGpuAction::Warn,
            Some("cancel") => IdleGpuAction::Cancel,
            Some(other) => {
                return Err(InvalidIdleGpuPolicy {
                    annotation: IDLE_GPU_ACTION,
                    value: other.to_owned(),
                    valid: "must be warn or cancel".to_owned(),
                });
            }
        };
        let Some(text) = annotations.get(IDLE_GPU_LIMIT) else {
            let others = [IDLE_GPU_ACTION, IDLE_GPU_EXEMPT_USERS, IDLE_GPU_EXEMPT_JOBS];
            let idle = others
                .into_iter()
                .find(|name| annotations.contains_key(*name));
            return idle.map_or(Ok(None), |annotation| {
                Err(InvalidIdleGpuPolicy {
                    annotation,
                    value: annotations[annotation].clone(),
                    valid: format!(
                        "has no effect without {IDLE_GPU_LIMIT}; set that one too, such as 2h"
                    ),
                })
            });
        };
        Ok(Some(IdleGpuPolicy {
            limit: limit(text)?,
            action,
            users: names(annotations, IDLE_GPU_EXEMPT_USERS),
            jobs: names(annotations, IDLE_GPU_EXEMPT_JOBS),
        }))
    }

    fn covers(&self, user: &str, job: &str) -> bool {
        !self.users.contains(user) && !self.jobs.contains(job)
    }
}

impl IdleGpuLimit {
    /// The limit of a job: its own, which cancels, or its namespace's. A limit that cancels takes precedence over one that
    /// warns, and then the shorter one. An unreadable own limit counts as none: admission refuses it.
    #[must_use]
    pub fn of(
        own: Option<&str>,
        policy: Option<&IdleGpuPolicy>,
        user: &str,
        job: &str,
    ) -> Option<IdleGpuLimit> {
        let own = own
            .and_then(|text| limit(text).ok())
            .map(|seconds| IdleGpuLimit {
                seconds,
                action: IdleGpuAction::Cancel,
                own: true,
            });
        let policy = policy.filter(|policy| policy.covers(user, job));
        let theirs = policy.map(|policy| IdleGpuLimit {
            seconds: policy.limit,
            action: policy.action,
            own: false,
        });
        let order = |limit: &IdleGpuLimit| (std::cmp::Reverse(limit.action), limit.seconds);
        own.into_iter().chain(theirs).min_by_key(order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn annotations(pairs: &[(&str, &str)]) -> Annotations {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn policy(pairs: &[(&str, &str)]) -> IdleGpuPolicy {
        IdleGpuPolicy::of(&annotations(pairs)).unwrap().unwrap()
    }

    #[test]
    fn a_namespaces_policy_has_a_limit_an_action_and_exemptions() {
        assert_eq!(IdleGpuPolicy::of(&annotations(&[("other", "x")])), Ok(None));
        let read = policy(&[
            (IDLE_GPU_LIMIT, "1h30m"),
            (IDLE_GPU_ACTION, "cancel"),
            (IDLE_GPU_EXEMPT_USERS, "ann, bob"),
            (IDLE_GPU_EXEMPT_JOBS, "demo"),
        ]);
        let of = |user, job| IdleGpuLimit::of(None, Some(&read), user, job);
        let limit = IdleGpuLimit {
            seconds: 5400,
            action: IdleGpuAction::Cancel,
            own: false,
        };
        assert_eq!(of("eve", "train"), Some(limit));
        assert_eq!(of("bob", "train"), None);
        assert_eq!(of("eve", "demo"), None);
    }

    #[test]
    fn a_limit_that_cancels_takes_precedence_and_then_the_shorter_one() {
        let warns = policy(&[(IDLE_GPU_LIMIT, "10m")]);
        let cancels = policy(&[(IDLE_GPU_LIMIT, "2h"), (IDLE_GPU_ACTION, "cancel")]);
        let of = |own, policy| {
            let limit = IdleGpuLimit::of(own, policy, "ann", "train")?;
            Some((limit.seconds, limit.action, limit.own))
        };
        use IdleGpuAction::{Cancel, Warn};
        assert_eq!(of(None, None), None);
        assert_eq!(of(None, Some(&warns)), Some((600, Warn, false)));
        assert_eq!(of(Some("1h"), Some(&warns)), Some((3600, Cancel, true)));
        assert_eq!(of(Some("1h"), Some(&cancels)), Some((3600, Cancel, true)));
        assert_eq!(of(Some("3h"), Some(&cancels)), Some((7200, Cancel, false)));
        assert_eq!(
            of(Some("soon"), Some(&cancels)),
            Some((7200, Cancel, false))
        );
        assert_eq!(of(Some("3h"), None), Some((10_800, Cancel, true)));
    }

    #[test]
    fn what_cannot_be_read_or_has_no_effect_is_refused_with_the_valid_form() {
        for (pairs, annotation, words) in [
            (vec![(IDLE_GPU_LIMIT, "soon")], IDLE_GPU_LIMIT, "1h30m"),
            (
                vec![(IDLE_GPU_LIMIT, "59s")],
                IDLE_GPU_LIMIT,
                "from 1m to 90d",
            ),
            (
                vec![(IDLE_GPU_LIMIT, "91d")],
                IDLE_GPU_LIMIT,
                "from 1m to 90d",
            ),
            (vec![(IDLE_GPU_LIMIT, "")], IDLE_GPU_LIMIT, "from 1m to 90d"),
            (
                vec![(IDLE_GPU_LIMIT, "1h"), (IDLE_GPU_ACTION, "kill")],
                IDLE_GPU_ACTION,
                "must be warn or cancel",
            ),
            (
                vec![(IDLE_GPU_EXEMPT_USERS, "ann")],
                IDLE_GPU_EXEMPT_USERS,
                "no effect without muster.io/idle-gpu-limit",
            ),
        ] {
            let error = IdleGpuPolicy::of(&annotations(&pairs)).unwrap_err();
            assert_eq!(error.annotation, annotation);
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
