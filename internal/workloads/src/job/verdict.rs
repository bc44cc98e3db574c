//! The verdict on a Job as a whole: whether it has failed or succeeded, and the wait before a
//! failed pod is replaced.

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::JobStatus;
use k8s_openapi::api::core::v1::Pod;
use resources::failure::FailureRecord;
use resources::numbers::later;

use super::indexes::Indexes;
use super::phase::{JobEnd, JobPhase};
use super::plan::ParsedJob;
use super::tally::AttemptTally;
use crate::pod_facts::{self, PodPhase};

/// The wait after the first failure, in seconds; it doubles with each further failure in a row.
const WAIT_FIRST: i64 = 10;
/// The longest wait, in seconds.
const WAIT_MAX: i64 = 600;

/// Why the job has failed, if it has.
pub(crate) fn failure(
    plan: &ParsedJob<'_>,
    tally: &AttemptTally,
    pods: &[&Pod],
    record: Option<&FailureRecord>,
    status: &JobStatus,
    now: Timestamp,
) -> Option<JobEnd> {
    if let Some(why) = &tally.fails_job {
        return Some(JobEnd::new("PodFailurePolicy", why.clone()));
    }
    if tally.failures() > plan.backoff_limit || too_many_restarts(plan, pods) {
        let limit = "Job has reached the specified backoff limit";
        let message = match record {
            Some(record) => format!("{limit}: {}", record.sentence()),
            None => limit.to_owned(),
        };
        return Some(JobEnd::new("BackoffLimitExceeded", message));
    }
    if deadline(plan, status).is_some_and(|deadline| deadline <= now) {
        let message = "Job was active longer than specified deadline";
        return Some(JobEnd::new("DeadlineExceeded", message));
    }
    plan.backoff_limit_per_index?;
    let most = plan
        .spec
        .max_failed_indexes
        .and_then(|most| u32::try_from(most).ok());
    if most.is_some_and(|most| tally.failed_indexes.len() > most) {
        let message = "Job has exceeded the specified maximal number of failed indexes";
        return Some(JobEnd::new("MaxFailedIndexesExceeded", message));
    }
    let mut ended = tally.completed_indexes.clone();
    ended.insert_all(&tally.failed_indexes);
    let completions = plan.completions.unwrap_or_default();
    let all_ended = ended.missing_below(completions).next().is_none();
    (!tally.failed_indexes.is_empty() && all_ended)
        .then(|| JobEnd::new("FailedIndexes", "Job has failed indexes"))
}

/// Why the job has succeeded, if it has.
pub(crate) fn success(plan: &ParsedJob<'_>, tally: &AttemptTally, live: usize) -> Option<JobEnd> {
    if let Some(verdict) = success_policy(plan, tally) {
        return Some(verdict);
    }
    let successes = tally.successes(plan);
    let reached = match plan.completions {
        Some(completions) => successes >= completions,
        // Any success ends the work; the active pods complete theirs.
        None => successes > 0 && live == 0,
    };
    reached.then(|| {
        JobEnd::new(
            "CompletionsReached",
            "Reached expected number of succeeded pods",
        )
    })
}

fn success_policy(plan: &ParsedJob<'_>, tally: &AttemptTally) -> Option<JobEnd> {
    let rules = &plan
        .spec
        .success_policy
        .as_ref()
        .filter(|_| plan.indexed)?
        .rules;
    let completions = plan.completions.unwrap_or_default();
    let nth = rules.iter().position(|rule| {
        let mut wanted = match &rule.succeeded_indexes {
            Some(text) => Indexes::parse(text),
            None => Indexes::below(completions),
        };
        wanted.truncate(completions);
        let done = wanted.shared_with(&tally.completed_indexes);
        match rule
            .succeeded_count
            .and_then(|count| u32::try_from(count).ok())
        {
            Some(count) => done >= count,
            None => done == wanted.len(),
        }
    })?;
    Some(JobEnd::new(
        "SuccessPolicy",
        format!("Matched rules at index {nth}"),
    ))
}

/// When the job exceeds its deadline, if one applies. None applies while the job is suspended or
/// was until now: its clock restarts when it resumes.
pub(crate) fn deadline(plan: &ParsedJob<'_>, status: &JobStatus) -> Option<Timestamp> {
    let held = plan.suspended() || JobPhase::of(status) == JobPhase::Suspended;
    let seconds = plan.spec.active_deadline_seconds.filter(|_| !held)?;
    let started = status.start_time.as_ref()?.0;
    Some(later(started, seconds))
}

/// Whether restarts in place exceed the limit. They count like failures: the limit's number is
/// already too many, and with a limit of zero any restart is.
fn too_many_restarts(plan: &ParsedJob<'_>, pods: &[&Pod]) -> bool {
    if !plan.restarts_in_place() {
        return false;
    }
    let live = pods.iter().filter(|pod| !PodPhase::of(pod).is_finished());
    let restarts = live
        .map(|pod| pod_facts::restart_count(pod))
        .fold(0, u32::saturating_add);
    restarts >= plan.backoff_limit.max(1)
}

/// The earliest time for a new pod, given the failures since the last success.
pub(crate) fn earliest_start(pods: &[&Pod]) -> Option<Timestamp> {
    let ends = |phase: PodPhase| {
        let ended = pods
            .iter()
            .filter(move |pod| PodPhase::of(pod) == phase && !pod_facts::is_leaving(pod));
        ended.filter_map(|pod| pod_facts::finished_at(pod))
    };
    let success = ends(PodPhase::Succeeded).max();
    let failures: Vec<Timestamp> = ends(PodPhase::Failed)
        .filter(|end| success.is_none_or(|success| *end > success))
        .collect();
    let last = failures.iter().max()?;
    let doublings = failures.len().saturating_sub(1).min(16);
    Some(later(
        *last,
        WAIT_FIRST.saturating_mul(1 << doublings).min(WAIT_MAX),
    ))
}
