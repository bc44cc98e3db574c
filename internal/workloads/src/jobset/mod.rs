//! JobSet, `jobset.x-k8s.io/v1alpha2`: Jobs of several templates that start, fail and restart together. Owns the order
//! of the decision; the sibling modules own its parts. Behaviour: JobSet's `pkg/controllers`, with these differences:
//! all pods of a JobSet are one gang; no Job is created before the pods of the run before have ended, so that ranks of
//! two runs never meet; a restart for a fault of the platform counts towards no limit; and a suspended Job whose
//! template changed is created anew.

mod children;
mod failure;
mod gang;
mod jobs;
mod plan;
mod startup;
mod status;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Service};
use resources::failure::FailureRecord;
use resources::kinds::{JobSet, JobSetStatus, PodGroup};
use resources::names;
use resources::numbers::later;
use serde_json::json;

use self::children::{Child, ChildEnd, Children, job_restarts};
use self::jobs::Run;
use self::plan::{ParsedJobSet, ParsedReplicatedJob};
use self::status::{COMPLETED, FAILED, RESTARTING, STARTED, STARTING, SUSPENDED, end, hold, holds};
use crate::action::{Action, Dependent, DependentKind, EventNote, ReconcileOutcome};
use crate::pod_room::PodRoom;

const API_VERSION: &str = "jobset.x-k8s.io/v1alpha2";
const KIND: &str = resources::jobset::KIND;
/// The most Jobs that one reconciliation creates; the next ones follow when these have been observed.
const CREATED_AT_ONCE: usize = 200;
/// Seconds until a JobSet looks again at pods of an earlier run that are still ending.
const LOOK_AGAIN: i64 = 2;

/// The observed state to decide on.
#[derive(Clone, Copy)]
pub struct ObservedJobSet<'a> {
    /// The JobSet, with its status and annotations as last written.
    pub job_set: &'a JobSet,
    /// Jobs of the JobSet; others are ignored.
    pub jobs: &'a [&'a Job],
    /// Pods whose label names the JobSet, of any run.
    pub pods: &'a [&'a Pod],
    /// The JobSet's PodGroup.
    pub pod_group: Option<&'a PodGroup>,
    /// Services of the JobSet.
    pub services: &'a [&'a Service],
    /// What bounds the number of its pods.
    pub room: PodRoom,
}

/// Decides the next actions for a JobSet. Once the result was carried out, another call gives the same status and no
/// actions, until something changes.
#[must_use]
pub fn reconcile(observed: &ObservedJobSet<'_>, now: Timestamp) -> ReconcileOutcome<JobSetStatus> {
    let plan = ParsedJobSet::of(observed.job_set);
    let status = observed.job_set.status.clone().unwrap_or_default();
    let mut outcome = ReconcileOutcome::keep(status);
    if plan.meta.deletion_timestamp.is_some() || plan.managed_elsewhere() {
        return outcome;
    }
    let children = Children::of(&plan, &outcome.status, observed.jobs, observed.pods);
    status::count(&plan, &children, &mut outcome.status);
    outcome.status.message = None;
    if holds(&outcome.status, FAILED) || holds(&outcome.status, COMPLETED) {
        finished(&plan, &children, observed, &mut outcome, now);
        return outcome;
    }
    status::note_start(&mut outcome.status, plan.suspended(), now);
    outcome
        .actions
        .extend(children.previous.iter().filter_map(|job| delete(job)));
    if !plan.suspended() && status::all_ready(&plan, &outcome.status) {
        let ready = end(
            &mut outcome.status,
            RESTARTING,
            "JobsReady",
            "all jobs are ready",
            now,
        );
        outcome.events.extend(ready);
    }
    let annotations = plan.meta.annotations.as_ref();
    let known = FailureRecord::read(|name| annotations?.get(name).map(String::as_str));
    let restarts = u32::try_from(outcome.status.restarts).unwrap_or_default();
    let mut record = failure::record(&plan, known.clone(), observed.pods, &children, restarts);
    if children.failed().next().is_some() {
        let events = failure::follow(&plan, &children, &mut record, &mut outcome.status, now);
        outcome.events.extend(events);
    } else if succeeded(&plan, &children) {
        complete(&mut outcome, now);
    } else {
        keep_up(&plan, &children, observed, &mut outcome, now);
    }
    if record != known {
        let written = record.as_ref().map(FailureRecord::write);
        outcome
            .annotations
            .insert(names::FAILURE.to_owned(), written);
    }
    outcome
}

/// The Jobs, the gang and the Service that the controller would make first, for a preview of the JobSet's placement.
#[must_use]
pub fn preview(job_set: &JobSet, now: Timestamp) -> Vec<Action> {
    let observed = ObservedJobSet {
        job_set,
        jobs: &[],
        pods: &[],
        pod_group: None,
        services: &[],
        room: PodRoom::default(),
    };
    reconcile(&observed, now).actions
}

/// Whether as many Jobs are complete as `successPolicy` wants.
fn succeeded(plan: &ParsedJobSet<'_>, children: &Children<'_>) -> bool {
    let policy = plan.spec.success_policy.as_ref();
    let targets = policy.and_then(|policy| policy.target_replicated_jobs.as_deref());
    let targets = targets.unwrap_or_default();
    let counts = |name: &str| targets.is_empty() || targets.iter().any(|target| target == name);
    let done = |child: &&Child<'_>| {
        counts(child.replicated_job) && child.end() == Some(ChildEnd::Complete)
    };
    let done = children.current.values().filter(done).count();
    let done = u32::try_from(done).unwrap_or(u32::MAX);
    let wanted = match policy.map(|policy| policy.operator.as_str()) {
        Some("Any") => 1,
        _ => {
            let jobs = plan.jobs.iter().filter(|job| counts(job.name));
            jobs.map(|job| job.replicas).fold(0, u32::saturating_add)
        }
    };
    done > 0 && done >= wanted
}

fn complete(outcome: &mut ReconcileOutcome<JobSetStatus>, now: Timestamp) {
    let message = "jobset completed successfully";
    let status = &mut outcome.status;
    status.terminal_state = Some(COMPLETED.to_owned());
    let restarted = end(status, RESTARTING, "JobSetCompleted", message, now);
    outcome.events.extend(restarted);
    let completed = hold(status, COMPLETED, "AllJobsCompleted", message, now);
    outcome.events.extend(completed);
}

/// Stops what still runs, deletes the gang, and deletes the JobSet when its time is over.
fn finished(
    plan: &ParsedJobSet<'_>,
    children: &Children<'_>,
    observed: &ObservedJobSet<'_>,
    outcome: &mut ReconcileOutcome<JobSetStatus>,
    now: Timestamp,
) {
    let current = children
        .current
        .values()
        .filter(|child| child.end().is_none());
    let open = current
        .map(|child| child.job)
        .chain(children.previous.iter().copied());
    outcome.actions.extend(open.filter_map(delete));
    outcome
        .actions
        .extend(crate::gang::deletion(plan.meta, observed.pod_group));
    let seconds = plan.spec.ttl_seconds_after_finished.map(i64::from);
    let expiry = seconds.zip(status::ended_at(&outcome.status));
    match expiry.map(|(seconds, end)| later(end, seconds)) {
        Some(at) if at <= now => outcome.actions.push(Action::DeleteJob {
            name: plan.name().to_owned(),
            uid: plan.uid().to_owned(),
        }),
        Some(at) => outcome.requeue(at),
        None => {}
    }
}

/// Keeps the gang, the Service and the Jobs as the spec has them.
fn keep_up(
    plan: &ParsedJobSet<'_>,
    children: &Children<'_>,
    observed: &ObservedJobSet<'_>,
    outcome: &mut ReconcileOutcome<JobSetStatus>,
    now: Timestamp,
) {
    let open = startup::open(plan, children, &outcome.status);
    let working: Vec<&ParsedReplicatedJob<'_>> = open
        .iter()
        .copied()
        .filter(|job| !startup::is_done(job, &outcome.status))
        .collect();
    if plan.suspended() {
        outcome
            .actions
            .extend(crate::gang::deletion(plan.meta, observed.pod_group));
    } else if children.current.is_empty()
        && let Some(held) = observed.room.holds_back(gang::members(&working))
    {
        if observed
            .job_set
            .status
            .as_ref()
            .and_then(|status| status.message.as_ref())
            != Some(&held.message)
        {
            outcome
                .events
                .push(EventNote::warning(held.reason, &held.message));
        }
        outcome.status.message = Some(held.message);
        outcome.requeue(later(now, held.again));
        return;
    } else if gang::members(&working) > 0
        && let Some(group) = gang::change(plan, &working, observed.pod_group)
    {
        outcome.actions.push(Action::ApplyPodGroup(Box::new(group)));
    }
    serve(plan, children, observed, outcome);
    create(plan, children, &open, outcome, now);
    let turns: Vec<&Child<'_>> = open.iter().flat_map(|job| children.of_job(job)).collect();
    suspend_or_resume(plan, &turns, outcome);
    say_suspension(plan, outcome, now);
    say_startup(plan, outcome, now);
}

/// Creates the Service. One with a name of its own may be another JobSet's, too, and is then not missed later.
fn serve(
    plan: &ParsedJobSet<'_>,
    children: &Children<'_>,
    observed: &ObservedJobSet<'_>,
    outcome: &mut ReconcileOutcome<JobSetStatus>,
) {
    let subdomain = plan.subdomain();
    let mut services = observed.services.iter();
    let exists = services.any(|service| service.metadata.name.as_deref() == Some(subdomain));
    let ours = subdomain == plan.name() || children.current.is_empty();
    if plan.has_host_names() && ours && !exists {
        let service = Box::new(jobs::service(plan));
        outcome.actions.push(Action::CreateService(service));
    }
}

/// Creates the missing Jobs of the jobs that may start.
fn create(
    plan: &ParsedJobSet<'_>,
    children: &Children<'_>,
    open: &[&ParsedReplicatedJob<'_>],
    outcome: &mut ReconcileOutcome<JobSetStatus>,
    now: Timestamp,
) {
    let restarts = u32::try_from(outcome.status.restarts).unwrap_or_default();
    if children.earlier_run_ends(restarts) {
        return await_earlier_pods(outcome, now);
    }
    let mut left = CREATED_AT_ONCE;
    for replicated in open {
        for index in 0..replicated.replicas {
            let name = plan.job_name(replicated, index);
            if children.current.contains_key(name.as_str()) {
                continue;
            }
            if children.blocks(&name) {
                await_earlier_pods(outcome, now);
                continue;
            }
            if left == 0 {
                return;
            }
            left -= 1;
            let run = Run {
                restarts,
                job_restarts: job_restarts(&outcome.status, replicated.name, index),
            };
            let job = Box::new(jobs::job(plan, replicated, index, run));
            outcome.actions.push(Action::Create(Dependent::Job(job)));
        }
    }
}

fn await_earlier_pods(outcome: &mut ReconcileOutcome<JobSetStatus>, now: Timestamp) {
    outcome.status.message = Some("The pods of the run before are ending.".to_owned());
    outcome.requeue(later(now, LOOK_AGAIN));
}

/// Suspends or resumes the Jobs. A suspended one whose pods would be others now is deleted, and created anew.
fn suspend_or_resume(
    plan: &ParsedJobSet<'_>,
    children: &[&Child<'_>],
    outcome: &mut ReconcileOutcome<JobSetStatus>,
) {
    for child in children.iter().filter(|child| child.end().is_none()) {
        if child.is_suspended() == plan.suspended() {
            continue;
        }
        let meta = &child.job.metadata;
        if !plan.suspended() && changed(plan, child, &outcome.status) {
            outcome.actions.extend(delete(child.job));
            continue;
        }
        outcome.actions.push(Action::Change {
            kind: DependentKind::Job,
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            patch: json!({"metadata": {}, "spec": {"suspend": plan.suspended()}}),
        });
    }
}

/// Whether a Job's pods lack something that the JobSet's template has by now. The server and other controllers may have
/// added to the Job's template.
fn changed(plan: &ParsedJobSet<'_>, child: &Child<'_>, status: &JobSetStatus) -> bool {
    let Some(replicated) = plan.job(child.replicated_job) else {
        return false;
    };
    let run = Run {
        restarts: u32::try_from(status.restarts).unwrap_or_default(),
        job_restarts: job_restarts(status, replicated.name, child.index),
    };
    let wanted = jobs::job(plan, replicated, child.index, run);
    let template = |job: &Job| {
        job.spec
            .as_ref()
            .map(|spec| spec.template.clone())
            .unwrap_or_default()
    };
    let (wanted, found) = (template(&wanted), template(child.job));
    let (wanted_meta, found_meta) = (
        wanted.metadata.unwrap_or_default(),
        found.metadata.unwrap_or_default(),
    );
    let lacks = |wanted: &Option<std::collections::BTreeMap<String, String>>,
                 found: &Option<std::collections::BTreeMap<String, String>>| {
        let there = |(name, value): (&String, &String)| {
            found.as_ref().and_then(|found| found.get(name)) == Some(value)
        };
        !wanted.iter().flatten().all(there)
    };
    let (wanted, found) = (
        wanted.spec.unwrap_or_default(),
        found.spec.unwrap_or_default(),
    );
    let gates = |spec: &k8s_openapi::api::core::v1::PodSpec| {
        spec.scheduling_gates.clone().unwrap_or_default()
    };
    lacks(&wanted_meta.labels, &found_meta.labels)
        || lacks(&wanted_meta.annotations, &found_meta.annotations)
        || wanted.node_selector.clone().unwrap_or_default()
            != found.node_selector.clone().unwrap_or_default()
        || wanted.tolerations.clone().unwrap_or_default()
            != found.tolerations.clone().unwrap_or_default()
        || gates(&wanted) != gates(&found)
}

fn say_suspension(
    plan: &ParsedJobSet<'_>,
    outcome: &mut ReconcileOutcome<JobSetStatus>,
    now: Timestamp,
) {
    let status = &mut outcome.status;
    let message = "jobset is suspended";
    let events = if plan.suspended() {
        [
            end(status, RESTARTING, "JobSetSuspended", message, now),
            hold(status, SUSPENDED, "SuspendedJobs", message, now),
        ]
    } else {
        let resumed = end(status, SUSPENDED, "ResumeJobs", "jobset is resumed", now);
        [resumed, None]
    };
    outcome.events.extend(events.into_iter().flatten());
}

fn say_startup(
    plan: &ParsedJobSet<'_>,
    outcome: &mut ReconcileOutcome<JobSetStatus>,
    now: Timestamp,
) {
    if !plan.in_order() || plan.suspended() {
        return;
    }
    let status = &mut outcome.status;
    let started = startup::is_complete(plan, status);
    // What has started once stays started; a Job whose pod is replaced is not ready for a while.
    if holds(status, STARTED) && !holds(status, RESTARTING) {
        return;
    }
    let events = if started {
        let (reason, message) = (
            "InOrderStartupPolicyCompleted",
            "in order startup policy has completed",
        );
        [
            end(status, STARTING, reason, message, now).and(None),
            hold(status, STARTED, reason, message, now),
        ]
    } else {
        let (reason, message) = (
            "InOrderStartupPolicyInProgress",
            "in order startup policy is in progress",
        );
        [
            end(status, STARTED, reason, message, now).and(None),
            hold(status, STARTING, reason, message, now),
        ]
    };
    outcome.events.extend(events.into_iter().flatten());
}

/// Deletes a Job and its pods, unless that is under way.
fn delete(job: &Job) -> Option<Action> {
    let meta = &job.metadata;
    meta.deletion_timestamp.is_none().then(|| Action::Delete {
        kind: DependentKind::Job,
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests;
