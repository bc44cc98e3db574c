//! CronJob, `batch/v1`: creates Jobs at the times of a schedule, and deletes old ones. Owns the order of the decision;
//! [`due`] owns which time is due. The rules are those of Kubernetes 1.34's CronJob controller.

mod due;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use k8s_openapi::api::batch::v1::{CronJob, CronJobSpec, CronJobStatus, Job};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use resources::names;
use resources::numbers::later;
use resources::schedule::Schedule;
use resources::times::seconds;

use self::due::{Due, MISSED_MAX};
use crate::action::{Action, Dependent, DependentKind, EventNote, ReconcileOutcome};
use crate::ownership::{controlled_by, controller_reference};
use crate::terms;

/// The annotation on a Job that holds the time for which it was created.
pub const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";
/// Finished Jobs that are kept if the spec names no limits.
const SUCCESSFUL_KEPT: i32 = 3;
const FAILED_KEPT: i32 = 1;

/// The observed state to decide on.
#[derive(Clone, Copy)]
pub struct ObservedCronJob<'a> {
    /// The CronJob, with its status as last written.
    pub cron: &'a CronJob,
    /// Its Jobs; others are ignored.
    pub jobs: &'a [&'a Job],
    /// The time zone that its spec names, or UTC; `None` if this machine does not know the zone.
    pub zone: Option<&'a TimeZone>,
}

/// Decides the next actions for a CronJob. The status counts only if all actions succeed: it says which time has had
/// its Job.
#[must_use]
pub fn reconcile(
    observed: &ObservedCronJob<'_>,
    now: Timestamp,
) -> ReconcileOutcome<CronJobStatus> {
    let cron = observed.cron;
    let status = cron.status.clone().unwrap_or_default();
    let Some(spec) = cron
        .spec
        .as_ref()
        .filter(|_| cron.metadata.deletion_timestamp.is_none())
    else {
        return ReconcileOutcome::keep(status);
    };
    let jobs: Vec<&Job> = observed
        .jobs
        .iter()
        .copied()
        .filter(|job| controlled_by(&job.metadata, &cron.metadata))
        .collect();
    let mut outcome = ReconcileOutcome::keep(status);
    follow_jobs(&jobs, &mut outcome);
    delete_old(spec, &jobs, &mut outcome);
    if spec.suspend != Some(true) {
        start_due(observed, spec, &jobs, &mut outcome, now);
    }
    outcome
}

/// How a Job ended.
fn ending(job: &Job) -> Option<&'static str> {
    let conditions = job.status.as_ref()?.conditions.as_deref()?;
    let holds = |type_: &str| {
        let mut all = conditions.iter();
        all.any(|known| known.type_ == type_ && known.status == "True")
    };
    ["Complete", "Failed"]
        .into_iter()
        .find(|type_| holds(type_))
}

fn name(meta: &ObjectMeta) -> &str {
    meta.name.as_deref().unwrap_or_default()
}

fn uid(meta: &ObjectMeta) -> &str {
    meta.uid.as_deref().unwrap_or_default()
}

/// A Job that the schedule created and that has not ended. Jobs that users created from the CronJob do not count.
fn is_active(job: &Job) -> bool {
    let annotations = job.metadata.annotations.as_ref();
    ending(job).is_none() && annotations.is_some_and(|map| map.contains_key(SCHEDULED))
}

/// Writes the active Jobs and the last success, and reports the Jobs that ended or are gone.
fn follow_jobs(jobs: &[&Job], outcome: &mut ReconcileOutcome<CronJobStatus>) {
    for known in outcome.status.active.take().unwrap_or_default() {
        let shown = jobs
            .iter()
            .find(|job| Some(uid(&job.metadata)) == known.uid.as_deref());
        let name = known.name.unwrap_or_default();
        let event = match shown.map(|job| ending(job)) {
            Some(None) => continue,
            Some(Some(condition)) => EventNote::normal(
                "SawCompletedJob",
                format!("Saw completed job: {name}, condition: {condition}"),
            ),
            None => EventNote::normal("MissingJob", format!("Active job went missing: {name}")),
        };
        outcome.events.push(event);
    }
    let mut active: Vec<&Job> = jobs.iter().copied().filter(|job| is_active(job)).collect();
    active.sort_by_key(|job| name(&job.metadata));
    let active: Vec<ObjectReference> = active.into_iter().map(reference).collect();
    outcome.status.active = Some(active).filter(|all| !all.is_empty());
    let successes = jobs
        .iter()
        .filter(|job| ending(job) == Some("Complete"))
        .filter_map(|job| job.status.as_ref()?.completion_time.clone());
    let last = outcome.status.last_successful_time.take();
    outcome.status.last_successful_time = successes.chain(last).max_by_key(|time| time.0);
}

fn reference(job: &Job) -> ObjectReference {
    ObjectReference {
        api_version: Some("batch/v1".to_owned()),
        kind: Some("Job".to_owned()),
        name: job.metadata.name.clone(),
        namespace: job.metadata.namespace.clone(),
        uid: job.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

/// Deletes the oldest ended Jobs beyond the limits.
fn delete_old(spec: &CronJobSpec, jobs: &[&Job], outcome: &mut ReconcileOutcome<CronJobStatus>) {
    let limits = [
        (
            "Complete",
            spec.successful_jobs_history_limit
                .unwrap_or(SUCCESSFUL_KEPT),
        ),
        (
            "Failed",
            spec.failed_jobs_history_limit.unwrap_or(FAILED_KEPT),
        ),
    ];
    for (condition, limit) in limits {
        let ended = jobs
            .iter()
            .filter(|job| ending(job) == Some(condition) && !is_leaving(job));
        let mut ended: Vec<&&Job> = ended.collect();
        ended.sort_by_key(|job| {
            let started = job
                .status
                .as_ref()
                .and_then(|status| status.start_time.as_ref());
            Reverse((started.map(|time| time.0), name(&job.metadata)))
        });
        let kept = usize::try_from(limit).unwrap_or_default();
        let old = ended.into_iter().skip(kept);
        outcome.actions.extend(old.map(|job| delete(job)));
    }
}

fn is_leaving(job: &Job) -> bool {
    job.metadata.deletion_timestamp.is_some()
}

fn delete(job: &Job) -> Action {
    Action::Delete {
        kind: DependentKind::Job,
        name: name(&job.metadata).to_owned(),
        uid: uid(&job.metadata).to_owned(),
    }
}

/// Creates the Job of the time that is due, if the policy allows it now.
fn start_due(
    observed: &ObservedCronJob<'_>,
    spec: &CronJobSpec,
    jobs: &[&Job],
    outcome: &mut ReconcileOutcome<CronJobStatus>,
    now: Timestamp,
) {
    let cron = observed.cron;
    let Some(zone) = observed.zone else {
        let named = spec.time_zone.as_deref().unwrap_or_default();
        let message = format!(
            "invalid timeZone: {named:?}: the server knows no such time zone; write one of the IANA database, such as \
             Europe/Berlin, and check that the package tzdata is installed there"
        );
        outcome
            .events
            .push(EventNote::warning("UnknownTimeZone", message));
        return;
    };
    let schedule = match Schedule::parse(&spec.schedule) {
        Ok(schedule) => schedule,
        Err(error) => {
            let message = format!("unparseable schedule: {:?} : {error}", spec.schedule);
            let event = EventNote::warning("UnparseableCronJobSchedule", message);
            outcome.events.push(event);
            return;
        }
    };
    let last = outcome
        .status
        .last_schedule_time
        .as_ref()
        .map(|time| time.0);
    let created = cron.metadata.creation_timestamp.as_ref();
    let deadline = spec.starting_deadline_seconds;
    let from = due::earliest(last, created.map(|time| time.0), deadline, now);
    if let Some(next) = schedule.next(now, zone) {
        outcome.requeue(next);
    }
    let Some(Due { time, missed }) = due::due(&schedule, zone, from, now) else {
        return;
    };
    if missed > MISSED_MAX {
        let message = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
        let event = EventNote::warning("TooManyMissedTimes", message);
        outcome.events.push(event);
    }
    if deadline.is_some_and(|seconds| later(time, seconds) < now) {
        let message = format!("Missed scheduled time to start a job: {}", seconds(time));
        outcome
            .events
            .push(EventNote::warning("MissSchedule", message));
        return;
    }
    let job = job(cron, spec, time, zone);
    let made = jobs
        .iter()
        .any(|known| known.metadata.name == job.metadata.name);
    if last == Some(time) || made {
        // The Job exists although the status does not say so: the server stopped between the two writes.
        outcome.status.last_schedule_time = Some(Time(time.max(last.unwrap_or(time))));
        return;
    }
    let active = jobs.iter().copied().filter(|job| is_active(job));
    let active: Vec<&Job> = active.collect();
    match spec.concurrency_policy.as_deref() {
        Some("Forbid") if !active.is_empty() => {
            let message = "Not starting job because prior execution is running and concurrency policy is Forbid";
            let event = EventNote::normal("JobAlreadyActive", message);
            outcome.events.push(event);
            return;
        }
        Some("Replace") => {
            let stale = active.into_iter().filter(|job| !is_leaving(job));
            outcome.actions.extend(stale.map(delete));
        }
        _ => {}
    }
    outcome.status.last_schedule_time = Some(Time(time));
    outcome
        .actions
        .push(Action::Create(Dependent::Job(Box::new(job))));
}

/// The Job for one time. Its name is fixed by the time, so a repetition cannot create a second one.
fn job(cron: &CronJob, spec: &CronJobSpec, time: Timestamp, zone: &TimeZone) -> Job {
    let template = spec.job_template.metadata.clone().unwrap_or_default();
    let mut labels: BTreeMap<String, String> = template.labels.unwrap_or_default();
    let mut annotations = template.annotations.unwrap_or_default();
    terms::inherit(&cron.metadata, &mut labels, &mut annotations);
    // The Job controller's own record, which no template may set.
    annotations.remove(names::ATTEMPTS);
    annotations.insert(SCHEDULED.to_owned(), local(time, zone));
    let owner = controller_reference("batch/v1", "CronJob", &cron.metadata);
    let minutes = time.as_second().div_euclid(60);
    Job {
        metadata: ObjectMeta {
            name: Some(format!("{}-{minutes}", name(&cron.metadata))),
            namespace: cron.metadata.namespace.clone(),
            labels: Some(labels).filter(|all| !all.is_empty()),
            annotations: Some(annotations),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: spec.job_template.spec.clone(),
        status: None,
    }
}

/// A time with its zone's offset, `Z` for none, as RFC 3339 has it.
fn local(time: Timestamp, zone: &TimeZone) -> String {
    let offset = zone.to_offset(time);
    if offset.is_zero() {
        seconds(time)
    } else {
        time.display_with_offset(offset).to_string()
    }
}

#[cfg(test)]
mod tests;
