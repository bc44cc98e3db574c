//! A JobSet's status: the counts of its Jobs, and its conditions in JobSet's words.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use resources::kinds::{JobSetStatus, ReplicatedJobStatus};
use resources::times::whole;

use super::children::{ChildEnd, Children};
use super::plan::ParsedJobSet;
use crate::action::EventNote;
use crate::ray::set_condition;

pub(crate) const COMPLETED: &str = "Completed";
pub(crate) const FAILED: &str = "Failed";
pub(crate) const SUSPENDED: &str = "Suspended";
pub(crate) const RESTARTING: &str = "RestartingJobSet";
pub(crate) const STARTING: &str = "StartupPolicyInProgress";
pub(crate) const STARTED: &str = "StartupPolicyCompleted";

/// Counts the Jobs of each replicated job.
pub(crate) fn count(plan: &ParsedJobSet<'_>, children: &Children<'_>, status: &mut JobSetStatus) {
    let before = std::mem::take(&mut status.replicated_jobs_status);
    for job in &plan.jobs {
        let known = before.iter().find(|known| known.name == job.name);
        let mut counts = ReplicatedJobStatus {
            name: job.name.to_owned(),
            job_restarts: known.and_then(|known| known.job_restarts.clone()),
            job_restarts_count_towards_max: known
                .and_then(|known| known.job_restarts_count_towards_max.clone()),
            ..ReplicatedJobStatus::default()
        };
        for child in children.of_job(job) {
            match child.end() {
                Some(ChildEnd::Complete) => counts.succeeded += 1,
                Some(ChildEnd::Failed { .. }) => counts.failed += 1,
                None => {
                    counts.ready += i32::from(child.is_ready(job.at_once));
                    counts.active += i32::from(child.is_active());
                    counts.suspended += i32::from(child.is_suspended());
                }
            }
        }
        status.replicated_jobs_status.push(counts);
    }
}

/// Notes when the JobSet began to run.
pub(crate) fn note_start(status: &mut JobSetStatus, suspended: bool, now: Timestamp) {
    let began = |counts: &ReplicatedJobStatus| counts.ready > 0 || counts.succeeded > 0;
    if suspended {
        status.start_time = None;
    } else if status.start_time.is_none() && status.replicated_jobs_status.iter().any(began) {
        status.start_time = Some(Time(whole(now)));
    }
}

/// Whether all Jobs are ready or complete.
pub(crate) fn all_ready(plan: &ParsedJobSet<'_>, status: &JobSetStatus) -> bool {
    let began = status.replicated_jobs_status.iter();
    let began = began.map(|counts| counts.ready.saturating_add(counts.succeeded));
    let began = began.fold(0, i32::saturating_add);
    u32::try_from(began).unwrap_or_default() >= plan.replicas()
}

pub(crate) fn holds(status: &JobSetStatus, type_: &str) -> bool {
    let mut all = status.conditions.iter();
    all.any(|known| known.type_ == type_ && known.status == "True")
}

/// When the JobSet ended.
pub(crate) fn ended_at(status: &JobSetStatus) -> Option<Timestamp> {
    let mut all = status.conditions.iter();
    let end = all.find(|known| {
        [COMPLETED, FAILED].contains(&known.type_.as_str()) && known.status == "True"
    });
    end.map(|known| known.last_transition_time.0)
}

/// Sets a condition that holds. The event, if the condition or its reason is new.
pub(crate) fn hold(
    status: &mut JobSetStatus,
    type_: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> Option<EventNote> {
    let new = set_condition(&mut status.conditions, type_, true, reason, message, now);
    new.then(|| match type_ {
        FAILED | RESTARTING => EventNote::warning(reason, message),
        _ => EventNote::normal(reason, message),
    })
}

/// Ends a condition, if it is there.
pub(crate) fn end(
    status: &mut JobSetStatus,
    type_: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> Option<EventNote> {
    if !holds(status, type_) {
        return None;
    }
    set_condition(&mut status.conditions, type_, false, reason, message, now);
    Some(EventNote::normal(reason, message))
}
