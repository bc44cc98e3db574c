//! What follows the failure of a Job: `failurePolicy`, in JobSet's words. What the platform ended counts towards no
//! limit, whatever the policy says of it, unless the policy fails the JobSet.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::failure::{FailureAction, FailureClass, FailureRecord};
use resources::kinds::{JobSetFailureRule, JobSetStatus};
use resources::names;
use resources::pattern;

use super::children::{Child, Children, FailedChild, number};
use super::plan::ParsedJobSet;
use super::status::{FAILED, RESTARTING, end, hold};
use crate::action::EventNote;
use crate::failure::{self, INCIDENT, Member, SIGNAL_BASE};
use crate::ownership::controlled_by;
use crate::pod_facts;

/// What a rule, or the lack of one, wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Fail,
    Restart { counts: bool },
    RestartJob { counts: bool },
}

impl Action {
    fn of(text: &str) -> Action {
        match text {
            "FailJobSet" => Action::Fail,
            "RestartJobSetAndIgnoreMaxRestarts" => Action::Restart { counts: false },
            "RestartJob" => Action::RestartJob { counts: true },
            "RestartJobAndIgnoreMaxRestarts" => Action::RestartJob { counts: false },
            _ => Action::Restart { counts: true },
        }
    }

    /// Whether it counts towards `maxRestarts`.
    fn counts(self) -> bool {
        matches!(
            self,
            Action::Restart { counts: true } | Action::RestartJob { counts: true }
        )
    }

    fn as_str(self) -> &'static str {
        match self {
            Action::Fail => "FailJobSet",
            Action::Restart { counts: true } => "RestartJobSet",
            Action::Restart { counts: false } => "RestartJobSetAndIgnoreMaxRestarts",
            Action::RestartJob { counts: true } => "RestartJob",
            Action::RestartJob { counts: false } => "RestartJobAndIgnoreMaxRestarts",
        }
    }
}

/// A failure with what tells incidents apart.
struct Candidate {
    record: FailureRecord,
    /// When its pod, or else its Job, was created.
    created: Option<Timestamp>,
}

impl Candidate {
    /// The order of causes: by time, and in the same second programs' own ends before those that often follow from
    /// another rank's.
    fn order(&self) -> (bool, Option<Timestamp>, u8) {
        let consequence = match (self.record.class, self.record.exit_code) {
            (FailureClass::NetworkError, _) => 2,
            (_, Some(code)) if code >= SIGNAL_BASE => 1,
            _ => 0,
        };
        (self.record.at.is_none(), self.record.at, consequence)
    }
}

/// The failure that counts: the first of the last incident. Pods that failed before and were replaced by their Job stay,
/// so that the first failure of all says nothing. A Job that fails deletes its pods at once, and keeps a record of them.
pub(crate) fn record(
    plan: &ParsedJobSet<'_>,
    known: Option<FailureRecord>,
    pods: &[&Pod],
    children: &Children<'_>,
    restarts: u32,
) -> Option<FailureRecord> {
    let mut all: Vec<Candidate> = pods
        .iter()
        .filter_map(|pod| member(plan, pod, children, restarts))
        .filter(|member| failure::shows_failure(member.pod, member.main))
        .map(|member| Candidate {
            record: failure::record(&member),
            created: created(&member.pod.metadata),
        })
        .collect();
    for failed in children.failed() {
        let candidate = of_job(plan, &failed.child, restarts);
        let known = |one: &Candidate| all.iter().any(|known| known.record.uid == one.record.uid);
        all.extend(candidate.filter(|one| !known(one)));
    }
    let last = all.iter().filter_map(|one| one.record.at).max();
    let recent = |one: &Candidate| match (one.record.at, last) {
        (Some(at), Some(last)) => last.duration_since(at) <= INCIDENT,
        _ => true,
    };
    all.retain(recent);
    let Some(found) = all.into_iter().min_by_key(Candidate::order) else {
        return known;
    };
    match known {
        Some(known) if is_kept(&known, &found) => Some(known),
        Some(known) if known.uid == found.record.uid => Some(FailureRecord {
            action: known.action,
            ..found.record
        }),
        _ => Some(found.record),
    }
}

/// Whether the known failure stands: the same end is seen again, a consequence of it, or an older one whose pod is still
/// there.
fn is_kept(known: &FailureRecord, found: &Candidate) -> bool {
    let same_pod = known.uid == found.record.uid;
    let (Some(before), Some(after)) = (known.at, found.record.at) else {
        return same_pod && known.class == found.record.class;
    };
    if same_pod {
        return before == after
            && known.attempts >= found.record.attempts
            && known.class == found.record.class;
    }
    if known.attempt != found.record.attempt {
        return known.attempt > found.record.attempt;
    }
    match after < before {
        true => before.duration_since(after) > INCIDENT,
        false => {
            let beside = found.created.is_some_and(|created| created <= before);
            beside && after.duration_since(before) <= INCIDENT
        }
    }
}

fn created(meta: &ObjectMeta) -> Option<Timestamp> {
    meta.creation_timestamp.as_ref().map(|time| time.0)
}

/// The record that a failed Job's own controller kept.
fn of_job(plan: &ParsedJobSet<'_>, child: &Child<'_>, restarts: u32) -> Option<Candidate> {
    let meta = &child.job.metadata;
    let annotations = meta.annotations.as_ref()?;
    let record = FailureRecord::read(|name| annotations.get(name).map(String::as_str))?;
    Some(Candidate {
        record: FailureRecord {
            rank: record.rank.and_then(|index| rank(plan, child, index)),
            attempt: restarts,
            action: None,
            ..record
        },
        created: created(meta),
    })
}

/// A rank: the number of a pod among those of all Jobs.
fn rank(plan: &ParsedJobSet<'_>, child: &Child<'_>, index: u32) -> Option<u32> {
    let of = plan.job(child.replicated_job)?;
    let before = child.index.saturating_mul(of.indexes);
    Some(of.first_rank.saturating_add(before).saturating_add(index))
}

/// A pod of the present run with its rank.
fn member<'p>(
    plan: &ParsedJobSet<'_>,
    pod: &'p Pod,
    children: &Children<'_>,
    restarts: u32,
) -> Option<Member<'p>> {
    let meta = &pod.metadata;
    let labels = meta.labels.as_ref()?;
    let child = children
        .current
        .get(labels.get(names::BATCH_JOB_NAME)?.as_str())?;
    if !controlled_by(meta, &child.job.metadata) {
        return None;
    }
    let index = number(meta, names::COMPLETION_INDEX);
    Some(Member {
        pod,
        rank: index.and_then(|index| rank(plan, child, index)),
        main: "",
        attempts: pod_facts::restart_count(pod).max(1),
        attempt: restarts,
        hang: None,
    })
}

/// Carries out the policy for the failed Jobs, of which there is at least one.
pub(crate) fn follow(
    plan: &ParsedJobSet<'_>,
    children: &Children<'_>,
    record: &mut Option<FailureRecord>,
    status: &mut JobSetStatus,
    now: Timestamp,
) -> Vec<EventNote> {
    let mut failed: Vec<FailedChild<'_>> = children.failed().collect();
    failed.sort_by_key(|child| child.at);
    let Some(first) = failed.first().copied() else {
        return Vec::new();
    };
    let about = present(record.as_ref(), status).cloned();
    let of_platform = about.as_ref().is_some_and(|about| !about.charged);
    let (rule, child, action) = judge(plan, &failed, first, of_platform);
    let most = plan.spec.failure_policy.as_ref();
    let most = most.and_then(|policy| policy.max_restarts).unwrap_or(0);
    let say = |what: &str| message(what, child, about.as_ref());
    let follows = match action {
        None => {
            let text = say("jobset failed due to one or more job failures");
            return fail("FailedJobs", &text, record, status, now);
        }
        Some(Action::Fail) => {
            let text = say("applying FailJobSet failure policy action");
            return fail("FailJobSetFailurePolicyAction", &text, record, status, now);
        }
        Some(action) if action.counts() && restarts_that_count(status) >= most => {
            let text = say("jobset failed due to reaching max number of restarts");
            return fail("ReachedMaxRestarts", &text, record, status, now);
        }
        Some(action) => action,
    };
    let text = say(&format!(
        "applying {} failure policy action",
        follows.as_str()
    ));
    match follows {
        Action::RestartJob { counts } => {
            note(record, FailureAction::RestartRank);
            count_job(status, &child.child, counts);
        }
        _ => {
            note(record, FailureAction::RestartGang);
            count_all(status, follows.counts());
            let reason = match rule {
                Some(rule) => format!("FailurePolicy_{}", rule.name),
                None => "DefaultFailurePolicy".to_owned(),
            };
            // The event below says it.
            let _ = hold(status, RESTARTING, &reason, &text, now);
        }
    }
    vec![EventNote::warning(
        format!("{}FailurePolicyAction", follows.as_str()),
        text,
    )]
}

/// The rule that decides, the failed Job that it is about, and what it wants; nothing for a JobSet without a policy. The
/// platform's faults restart a JobSet without a policy, too.
fn judge<'p, 'c>(
    plan: &ParsedJobSet<'p>,
    failed: &[FailedChild<'c>],
    first: FailedChild<'c>,
    of_platform: bool,
) -> (
    Option<&'p JobSetFailureRule>,
    FailedChild<'c>,
    Option<Action>,
) {
    let Some(policy) = &plan.spec.failure_policy else {
        let action = of_platform.then_some(Action::Restart { counts: false });
        return (None, first, action);
    };
    let mut rules = policy.rules.iter().flatten();
    let found = rules.find_map(|rule| {
        let mut all = failed.iter();
        all.find(|child| matches(rule, child))
            .map(|child| (rule, *child))
    });
    let (rule, child) = found.map_or((None, first), |(rule, child)| (Some(rule), child));
    let action = rule.map_or(Action::Restart { counts: true }, |rule| {
        Action::of(&rule.action)
    });
    let action = match action {
        Action::Restart { .. } if of_platform => Action::Restart { counts: false },
        Action::RestartJob { .. } if of_platform => Action::RestartJob { counts: false },
        other => other,
    };
    (rule, child, Some(action))
}

/// The record, if it is about the present run.
fn present<'r>(
    record: Option<&'r FailureRecord>,
    status: &JobSetStatus,
) -> Option<&'r FailureRecord> {
    let restarts = u32::try_from(status.restarts).unwrap_or_default();
    record.filter(|record| record.attempt == restarts)
}

fn matches(rule: &JobSetFailureRule, failed: &FailedChild<'_>) -> bool {
    let listed = |list: &Option<Vec<String>>, word: &str| {
        let list = list.as_deref().unwrap_or_default();
        list.is_empty() || list.iter().any(|one| one == word)
    };
    let patterns = rule
        .on_job_failure_message_patterns
        .as_deref()
        .unwrap_or_default();
    // Admission refuses a pattern that cannot be compiled.
    let matches_pattern =
        |text: &String| pattern::compile(text).is_ok_and(|regex| regex.is_match(failed.message));
    listed(&rule.on_job_failure_reasons, failed.reason)
        && listed(&rule.target_replicated_jobs, failed.child.replicated_job)
        && (patterns.is_empty() || patterns.iter().any(matches_pattern))
}

/// The restarts that count towards `maxRestarts`, of the whole JobSet and of single Jobs.
fn restarts_that_count(status: &JobSetStatus) -> i32 {
    let alone = status.replicated_jobs_status.iter();
    let alone = alone.flat_map(|one| one.job_restarts_count_towards_max.iter().flatten());
    let all = status.restarts_count_towards_max.iter().chain(alone);
    all.fold(0, |sum: i32, one| sum.saturating_add(*one))
}

fn message(what: &str, failed: FailedChild<'_>, record: Option<&FailureRecord>) -> String {
    let text = format!("{what} (first failed job: {})", failed.child.name());
    match record {
        Some(record) => format!("{text}: {}", record.sentence()),
        None => format!("{text}: {}", failed.message),
    }
}

fn note(record: &mut Option<FailureRecord>, action: FailureAction) {
    if let Some(record) = record {
        record.action = Some(action);
    }
}

fn fail(
    reason: &str,
    message: &str,
    record: &mut Option<FailureRecord>,
    status: &mut JobSetStatus,
    now: Timestamp,
) -> Vec<EventNote> {
    note(record, FailureAction::Fail);
    status.terminal_state = Some(FAILED.to_owned());
    let mut events: Vec<EventNote> = end(status, RESTARTING, "JobSetFailed", "jobset failed", now)
        .into_iter()
        .collect();
    events.extend(hold(status, FAILED, reason, message, now));
    events
}

/// Begins the next run of all Jobs; the Jobs of this one are deleted once the status says so.
fn count_all(status: &mut JobSetStatus, counts: bool) {
    status.restarts = status.restarts.saturating_add(1);
    if counts {
        let counted = status.restarts_count_towards_max.unwrap_or(0);
        status.restarts_count_towards_max = Some(counted.saturating_add(1));
    }
}

/// Begins the next run of one Job.
fn count_job(status: &mut JobSetStatus, child: &Child<'_>, counts: bool) {
    let mut all = status.replicated_jobs_status.iter_mut();
    if let Some(known) = all.find(|known| known.name == child.replicated_job) {
        raise(&mut known.job_restarts, child.index);
        if counts {
            raise(&mut known.job_restarts_count_towards_max, child.index);
        }
    }
}

/// Counts a restart of one Job. Admission bounds the indexes.
fn raise(counts: &mut Option<Vec<i32>>, index: u32) {
    let counts = counts.get_or_insert_default();
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    if counts.len() <= index {
        counts.resize(index.saturating_add(1), 0);
    }
    if let Some(count) = counts.get_mut(index) {
        *count = count.saturating_add(1);
    }
}
