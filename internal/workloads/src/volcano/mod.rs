//! Volcano's Job, `batch.volcano.sh/v1alpha1`: tasks of pods that start together, with policies for what goes wrong.
//! Owns the order of the decision; the sibling modules own its parts. Behaviour: Volcano's `pkg/controllers/job`, with
//! these differences: what the platform ended is replaced without a policy; a restarted pod keeps its gang; `*` stands
//! for what goes wrong; and no pod runs on after the job has failed.

mod commands;
mod gang;
mod members;
mod objects;
mod plan;
mod plugins;
mod pods;
mod policy;
mod status;

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Service};
use resources::failure::{FailureAction, FailureRecord};
use resources::kinds::{PodGroup, VolcanoCommand, VolcanoJob, VolcanoJobStatus};
use resources::names;
use resources::numbers::later;
pub use resources::volcano::JOB_NAME;
use resources::volcano::TASK_INDEX;

use self::members::{Counts, Members};
use self::plan::ParsedVolcanoJob;
use self::pods::PodSettings;
use self::policy::{Due, PolicyAction, Verdict};
use self::status::{VolcanoPhase, enter, explain};
use crate::action::{Action, EventNote, ReconcileOutcome, delete_pod};
use crate::failure;
use crate::pod_facts::{self, PodPhase};
use crate::pod_room::PodRoom;
use crate::training::{Network, annotated_port};

const API_VERSION: &str = "batch.volcano.sh/v1alpha1";
const KIND: &str = "Job";

const JOB_NAMESPACE: &str = "volcano.sh/job-namespace";
/// Label on a pod: the job's `status.version` when it was created.
const VERSION: &str = "volcano.sh/job-version";
const RETRY_COUNT: &str = "volcano.sh/job-retry-count";
const QUEUE: &str = "volcano.sh/queue-name";

/// Why a job is restarting after the platform ended one of its pods: that spends no retry.
const RESTART_UNCHARGED: &str = "JobRestartingAfterEviction";
/// Seconds until a job looks for a free port again.
const PORT_AGAIN: i64 = 5;
/// The most pods that one reconciliation creates.
const CREATED_AT_ONCE: usize = 500;

/// The observed state to decide on.
pub struct ObservedVolcanoJob<'a> {
    /// The job, with its status and annotations as last written.
    pub job: &'a VolcanoJob,
    /// Pods of the job; other pods are ignored.
    pub pods: &'a [&'a Pod],
    /// The job's PodGroup.
    pub pod_group: Option<&'a PodGroup>,
    /// Services of the job.
    pub services: &'a [&'a Service],
    /// Commands whose target has the job's name.
    pub commands: &'a [&'a VolcanoCommand],
    /// The network that its pods use.
    pub network: &'a Network,
    /// The ports that other jobs hold.
    pub taken_ports: &'a BTreeSet<u16>,
    /// The scheduler of a job that names none.
    pub scheduler_name: &'a str,
    /// What bounds the number of its pods.
    pub room: PodRoom,
}

/// Whether the job has come to its end, so that it holds no ports.
#[must_use]
pub fn is_finished(job: &VolcanoJob) -> bool {
    job.status
        .as_ref()
        .is_some_and(|status| VolcanoPhase::of(status).is_final())
}

/// The number of ports that a job holds where pods share their nodes' address.
#[must_use]
pub fn ports_needed(job: &VolcanoJob) -> u16 {
    ParsedVolcanoJob::of(job).map_or(0, |plan| plan.plugins.ports_needed(&plan))
}

/// Decides the next actions for a job. Once the result was carried out, another call gives the same status and no
/// actions, until something changes.
#[must_use]
pub fn reconcile(
    observed: &ObservedVolcanoJob<'_>,
    now: Timestamp,
) -> ReconcileOutcome<VolcanoJobStatus> {
    let job = observed.job;
    let before = job.status.clone().unwrap_or_default();
    if job.metadata.deletion_timestamp.is_some() {
        return ReconcileOutcome::keep(before);
    }
    let plan = match ParsedVolcanoJob::of(job) {
        Ok(plan) => plan,
        Err(why) => return unrunnable(before, &why.to_string(), now),
    };
    let version = before.version.unwrap_or_default();
    let members = Members::of(&plan, observed.pods, version);
    let mut outcome = ReconcileOutcome::keep(before);
    status::count(&plan, &members, &mut outcome.status);
    let leftovers = members
        .surplus
        .iter()
        .filter(|pod| !pod_facts::is_leaving(pod));
    outcome.actions.extend(leftovers.map(|pod| delete_pod(pod)));
    if commands::obey(&plan, &members, observed.commands, &mut outcome, now) {
        return outcome;
    }
    match VolcanoPhase::of(&outcome.status) {
        VolcanoPhase::Pending | VolcanoPhase::Running => {
            at_work(&plan, &members, observed, &mut outcome, now);
        }
        VolcanoPhase::Restarting => restart(&plan, &members, &mut outcome, now),
        VolcanoPhase::Aborting => {
            let end = (VolcanoPhase::Aborted, "JobAborted");
            stop(&members, end, &mut outcome, now);
        }
        VolcanoPhase::Terminating => {
            let end = (VolcanoPhase::Terminated, "JobTerminated");
            stop(&members, end, &mut outcome, now);
        }
        VolcanoPhase::Completing => {
            let end = (VolcanoPhase::Completed, "JobCompleted");
            stop(&members, end, &mut outcome, now);
        }
        VolcanoPhase::Aborted
        | VolcanoPhase::Completed
        | VolcanoPhase::Terminated
        | VolcanoPhase::Failed => finished(&plan, &members, observed, &mut outcome, now),
    }
    note_failure(&plan, &members, &mut outcome);
    outcome
}

/// Keeps the record of the first failure, with what follows it.
fn note_failure(
    plan: &ParsedVolcanoJob<'_>,
    members: &Members<'_>,
    outcome: &mut ReconcileOutcome<VolcanoJobStatus>,
) {
    let annotations = plan.meta.annotations.as_ref();
    let known = FailureRecord::read(|name| annotations?.get(name).map(String::as_str));
    let Some(mut record) = failure::observe(known.clone(), members.ranks(plan)) else {
        return;
    };
    let replaced =
        |action: &Action| matches!(action, Action::DeletePod { uid, .. } if *uid == record.uid);
    let new = known.as_ref().is_none_or(|known| known.uid != record.uid);
    let follows = match VolcanoPhase::of(&outcome.status) {
        VolcanoPhase::Restarting => Some(FailureAction::RestartGang),
        VolcanoPhase::Failed | VolcanoPhase::Terminating | VolcanoPhase::Terminated => {
            Some(FailureAction::Fail)
        }
        _ if outcome.actions.iter().any(replaced) => Some(FailureAction::RestartRank),
        _ => None,
    };
    if new || record.action.is_none() || follows == Some(FailureAction::Fail) {
        record.action = follows.or(record.action);
    }
    if known.as_ref() != Some(&record) {
        outcome
            .annotations
            .insert(names::FAILURE.to_owned(), Some(record.write()));
    }
}

/// A job that cannot be run waits, and says why.
fn unrunnable(
    mut status: VolcanoJobStatus,
    why: &str,
    now: Timestamp,
) -> ReconcileOutcome<VolcanoJobStatus> {
    let reason = "NotRunnable";
    let mut events = Vec::new();
    if status.state.phase.is_none() {
        enter(&mut status, VolcanoPhase::Pending, reason, why, now);
        events.push(EventNote::warning(reason, why));
    } else if explain(&mut status, reason, why) {
        events.push(EventNote::warning(reason, why));
    }
    ReconcileOutcome {
        events,
        ..ReconcileOutcome::keep(status)
    }
}

/// Decides about a job whose pods may exist.
fn at_work(
    plan: &ParsedVolcanoJob<'_>,
    members: &Members<'_>,
    observed: &ObservedVolcanoJob<'_>,
    outcome: &mut ReconcileOutcome<VolcanoJobStatus>,
    now: Timestamp,
) {
    let counts = members.counts();
    if outcome.status.state.phase.is_none() {
        let message = "The job waits for its pods to start together.";
        let event = enter(
            &mut outcome.status,
            VolcanoPhase::Pending,
            "JobPending",
            message,
            now,
        );
        outcome.events.push(event);
    }
    match policy::judge(plan, members, now) {
        Verdict::Due(due) => {
            if handled(observed.job, members, &due) {
                outcome
                    .actions
                    .extend(pods_of(members, &due).into_iter().map(delete_pod));
            } else {
                act(plan, members, &due, observed.job, outcome, now);
            }
            return;
        }
        Verdict::Later(Some(at)) => outcome.requeue(at),
        Verdict::Later(None) => {}
    }
    if let Some((phase, reason, message)) = end(plan, members, counts) {
        let event = enter(&mut outcome.status, phase, reason, &message, now);
        outcome.events.push(event);
        return;
    }
    let started = counts.started() >= gang::least_members(plan, members) && counts.started() > 0;
    if started && VolcanoPhase::of(&outcome.status) == VolcanoPhase::Pending {
        let message = format!(
            "{} of {} pods have started.",
            counts.started(),
            plan.total()
        );
        let event = enter(
            &mut outcome.status,
            VolcanoPhase::Running,
            "JobRunning",
            &message,
            now,
        );
        outcome.events.push(event);
    }
    keep_up(plan, members, observed, outcome, now);
}

/// The job's end, if it has come: enough pods have succeeded, or none is left to run.
fn end(
    plan: &ParsedVolcanoJob<'_>,
    members: &Members<'_>,
    counts: Counts,
) -> Option<(VolcanoPhase, &'static str, String)> {
    let enough = plan
        .spec
        .min_success
        .and_then(|least| u32::try_from(least).ok());
    if let Some(enough) = enough.filter(|enough| *enough > 0 && counts.succeeded >= *enough) {
        let message = format!(
            "{} pods have succeeded, and minSuccess is {enough}.",
            counts.succeeded
        );
        return Some((VolcanoPhase::Completing, "JobCompleting", message));
    }
    let replaced = members.all().any(failure::is_of_platform);
    if counts.ended() < plan.total() || counts.terminating > 0 || replaced {
        return None;
    }
    let short = plan.tasks.iter().find_map(|task| {
        let succeeded = members.counts_of(&task.name).succeeded;
        let explicit = plan
            .spec
            .tasks
            .iter()
            .find(|one| one.name.as_ref() == Some(&task.name));
        let least = explicit
            .and_then(|one| one.min_available)
            .map(|_| task.min_available)?;
        (succeeded < least).then(|| {
            format!(
                "{succeeded} pods of task {} have succeeded, and its minAvailable is {least}",
                task.name
            )
        })
    });
    let few = (counts.succeeded < plan.min_available()).then(|| {
        format!(
            "{} of {} pods have succeeded, and minAvailable is {}",
            counts.succeeded,
            plan.total(),
            plan.min_available()
        )
    });
    let first = failure::first(members.ranks(plan));
    let story = first.map(|first| failure::record(&first).sentence());
    match short.or(few) {
        None => Some((
            VolcanoPhase::Completed,
            "JobCompleted",
            format!(
                "{} of {} pods have succeeded.",
                counts.succeeded,
                plan.total()
            ),
        )),
        Some(short) => {
            let message =
                story.map_or_else(|| format!("{short}."), |story| format!("{story}; {short}."));
            Some((VolcanoPhase::Failed, "JobFailed", message))
        }
    }
}

/// The pods that a restart of a part is about.
fn pods_of<'a>(members: &Members<'a>, due: &Due<'a>) -> Vec<&'a Pod> {
    match (due.action, due.pod) {
        (PolicyAction::RestartPod, Some(pod)) => vec![pod],
        _ => members
            .of_present(due.task)
            .map(|member| member.pod)
            .collect(),
    }
}

/// Whether a policy's answer to these pods has been counted: the watch may show a pod for a while after its deletion.
fn handled(job: &VolcanoJob, members: &Members<'_>, due: &Due<'_>) -> bool {
    let known = restarted(job);
    let of_part = matches!(
        due.action,
        PolicyAction::RestartPod | PolicyAction::RestartTask
    );
    of_part
        && pods_of(members, due)
            .iter()
            .any(|pod| known.contains(pod_facts::uid(pod)))
}

/// The uids of pods for which a policy has restarted a pod or a task.
fn restarted(job: &VolcanoJob) -> BTreeSet<&str> {
    let annotations = job.metadata.annotations.as_ref();
    let uids = annotations.and_then(|all| all.get(names::RESTARTS));
    uids.into_iter()
        .flat_map(|uids| uids.split(','))
        .filter(|uid| !uid.is_empty())
        .collect()
}

/// Does what a policy wants.
fn act(
    plan: &ParsedVolcanoJob<'_>,
    members: &Members<'_>,
    due: &Due<'_>,
    job: &VolcanoJob,
    outcome: &mut ReconcileOutcome<VolcanoJobStatus>,
    now: Timestamp,
) {
    let cause = format!("{}.", due.cause);
    let next = match due.action {
        PolicyAction::Abort => (VolcanoPhase::Aborting, "JobAborting"),
        PolicyAction::Terminate => (VolcanoPhase::Terminating, "JobTerminating"),
        PolicyAction::Complete => (VolcanoPhase::Completing, "JobCompleting"),
        PolicyAction::RestartJob if due.pod.is_some_and(failure::is_of_platform) => {
            (VolcanoPhase::Restarting, RESTART_UNCHARGED)
        }
        PolicyAction::RestartJob => (VolcanoPhase::Restarting, "JobRestarting"),
        PolicyAction::RestartTask | PolicyAction::RestartPod => {
            return restart_part(plan, members, due, job, outcome, now);
        }
        PolicyAction::Nothing => return,
    };
    let event = enter(&mut outcome.status, next.0, next.1, &cause, now);
    outcome.events.push(event);
}

/// Deletes a pod, or all of its task; they are created again. Counts as a retry of the job, unless the platform ended the
/// pod.
fn restart_part(
    plan: &ParsedVolcanoJob<'_>,
    members: &Members<'_>,
    due: &Due<'_>,
    job: &VolcanoJob,
    outcome: &mut ReconcileOutcome<VolcanoJobStatus>,
    now: Timestamp,
) {
    let pods = pods_of(members, due);
    let charged = !due.pod.is_some_and(failure::is_of_platform);
    if charged && retry(plan, outcome, &due.cause, now) {
        return;
    }
    let message = format!("{}; {} pods are started again.", due.cause, pods.len());
    outcome
        .events
        .push(EventNote::warning("PodsRestarted", message));
    let known = restarted(job);
    let existing = members
        .all()
        .map(pod_facts::uid)
        .filter(|uid| known.contains(uid));
    let all: BTreeSet<&str> = existing
        .chain(pods.iter().map(|pod| pod_facts::uid(pod)))
        .collect();
    let all: Vec<&str> = all.into_iter().collect();
    outcome
        .annotations
        .insert(names::RESTARTS.to_owned(), Some(all.join(",")));
    outcome.actions.extend(pods.into_iter().map(delete_pod));
}

/// Counts a retry; true if the job failed by it.
fn retry(
    plan: &ParsedVolcanoJob<'_>,
    outcome: &mut ReconcileOutcome<VolcanoJobStatus>,
    cause: &str,
    now: Timestamp,
) -> bool {
    let retries = outcome
        .status
        .retry_count
        .unwrap_or_default()
        .saturating_add(1);
    outcome.status.retry_count = Some(retries);
    if u32::try_from(retries).unwrap_or_default() < plan.max_retry() {
        return false;
    }
    let cause = cause.trim_end_matches('.');
    let message = format!(
        "{cause}; the job was run {retries} times, and maxRetry is {}.",
        plan.max_retry()
    );
    let event = enter(
        &mut outcome.status,
        VolcanoPhase::Failed,
        "JobFailed",
        &message,
        now,
    );
    outcome.events.push(event);
    true
}

/// Deletes all pods; when none is left, the job begins anew, or fails if it has been run often enough.
fn restart(
    plan: &ParsedVolcanoJob<'_>,
    members: &Members<'_>,
    outcome: &mut ReconcileOutcome<VolcanoJobStatus>,
    now: Timestamp,
) {
    let mut present = members
        .all()
        .filter(|pod| !pod_facts::is_leaving(pod))
        .peekable();
    if present.peek().is_some() {
        outcome.actions.extend(present.map(delete_pod));
        return;
    }
    if members.all().next().is_some() {
        return;
    }
    let cause = outcome.status.state.message.clone().unwrap_or_default();
    let charged = outcome.status.state.reason.as_deref() != Some(RESTART_UNCHARGED);
    if charged && retry(plan, outcome, &cause, now) {
        return;
    }
    outcome.status.version = Some(outcome.status.version.unwrap_or_default().saturating_add(1));
    let message = format!("The job starts again: {cause}");
    let event = enter(
        &mut outcome.status,
        VolcanoPhase::Pending,
        "JobPending",
        &message,
        now,
    );
    outcome.events.push(event);
}

/// Stops the pods that have not ended; those that have stay, for their logs.
fn stop(
    members: &Members<'_>,
    end: (VolcanoPhase, &str),
    outcome: &mut ReconcileOutcome<VolcanoJobStatus>,
    now: Timestamp,
) {
    let open = |pod: &&Pod| !PodPhase::of(pod).is_finished();
    let mut running = members.all().filter(open).peekable();
    if running.peek().is_some() {
        let present = running.filter(|pod| !pod_facts::is_leaving(pod));
        outcome.actions.extend(present.map(delete_pod));
        return;
    }
    let message = outcome.status.state.message.clone().unwrap_or_default();
    let event = enter(&mut outcome.status, end.0, end.1, &message, now);
    outcome.events.push(event);
}

/// Stops what still runs, deletes the gang, and deletes the job when its time is over.
fn finished(
    plan: &ParsedVolcanoJob<'_>,
    members: &Members<'_>,
    observed: &ObservedVolcanoJob<'_>,
    outcome: &mut ReconcileOutcome<VolcanoJobStatus>,
    now: Timestamp,
) {
    let open = |pod: &&Pod| !PodPhase::of(pod).is_finished() && !pod_facts::is_leaving(pod);
    outcome
        .actions
        .extend(members.all().filter(open).map(delete_pod));
    outcome
        .actions
        .extend(crate::gang::deletion(plan.meta, observed.pod_group));
    let since = outcome.status.state.last_transition_time.as_ref();
    let expiry = (plan.spec.ttl_seconds_after_finished)
        .zip(since)
        .map(|(seconds, since)| later(since.0, i64::from(seconds)));
    match expiry {
        Some(at) if at <= now => outcome.actions.push(Action::DeleteJob {
            name: plan.name().to_owned(),
            uid: plan.meta.uid.clone().unwrap_or_default(),
        }),
        Some(at) => outcome.requeue(at),
        None => {}
    }
}

/// Keeps the gang, the plugins' objects and the pods as the spec has them.
fn keep_up(
    plan: &ParsedVolcanoJob<'_>,
    members: &Members<'_>,
    observed: &ObservedVolcanoJob<'_>,
    outcome: &mut ReconcileOutcome<VolcanoJobStatus>,
    now: Timestamp,
) {
    if let Some(group) = gang::change(plan, members, observed.pod_group) {
        outcome.actions.push(Action::ApplyPodGroup(Box::new(group)));
    }
    let none = members.all().next().is_none();
    if none && let Some(held) = observed.room.holds_back(gang::least_members(plan, members)) {
        if explain(&mut outcome.status, held.reason, &held.message) {
            outcome
                .events
                .push(EventNote::warning(held.reason, &held.message));
        }
        outcome.requeue(later(now, held.again));
        return;
    }
    let Some(port) = port(plan, observed, outcome, now) else {
        return;
    };
    let shared = matches!(observed.network, Network::HostShared { .. });
    if objects::prepare(plan, shared, outcome) {
        return;
    }
    let serves = |service: &&&Service| service.metadata.name.as_deref() == Some(plan.name());
    if plan.plugins.svc() && observed.services.iter().find(serves).is_none() {
        let service = Box::new(pods::service(plan));
        outcome.actions.push(Action::CreateService(service));
    }
    // What the platform ended is replaced.
    let ended = members
        .all()
        .filter(|pod| failure::is_of_platform(pod) && !pod_facts::is_leaving(pod));
    outcome.actions.extend(ended.map(delete_pod));
    let settings = PodSettings {
        version: outcome.status.version.unwrap_or_default(),
        retries: outcome.status.retry_count.unwrap_or_default(),
        shared,
        port: port.shared,
        scheduler_name: observed.scheduler_name,
    };
    let most = usize::try_from(observed.room.members_max()).unwrap_or(usize::MAX);
    let mut left = most
        .saturating_sub(members.all().count())
        .min(CREATED_AT_ONCE);
    let mut created = Vec::new();
    'tasks: for task in gang::open_tasks(plan, members) {
        let taken: BTreeSet<u32> = members
            .of_task(&task.name)
            .iter()
            .map(|one| one.index)
            .collect();
        for index in (0..task.replicas).filter(|index| !taken.contains(index)) {
            if left == 0 {
                break 'tasks;
            }
            left -= 1;
            let pod = pods::pod(plan, task, index, &settings);
            created.push(Action::CreatePod(Box::new(pod)));
        }
    }
    // With each pod, so that what could not be created, or was an earlier job's and has gone, is there.
    if !created.is_empty() {
        outcome.actions.extend(plan.plugins.access(plan, shared));
    }
    outcome.actions.extend(created);
}

/// The job's ports.
struct JobPorts {
    /// The first of them where pods share their nodes' address.
    shared: Option<u16>,
}

/// The job's ports; none if too few are free: the job looks again.
fn port(
    plan: &ParsedVolcanoJob<'_>,
    observed: &ObservedVolcanoJob<'_>,
    outcome: &mut ReconcileOutcome<VolcanoJobStatus>,
    now: Timestamp,
) -> Option<JobPorts> {
    let needed = plan.plugins.ports_needed(plan);
    let Network::HostShared { ports } = observed.network else {
        return Some(JobPorts { shared: None });
    };
    if needed == 0 {
        return Some(JobPorts { shared: None });
    }
    if let Some(known) = annotated_port(plan.meta.annotations.as_ref()) {
        return Some(JobPorts {
            shared: Some(known),
        });
    }
    let free = |first: &u16| {
        let Some(last) = first.checked_add(needed - 1) else {
            return false;
        };
        last <= *ports.end() && (*first..=last).all(|port| !observed.taken_ports.contains(&port))
    };
    let Some(first) = ports.clone().find(free) else {
        outcome.requeue(later(now, PORT_AGAIN));
        let message = "Other jobs hold the ports of Volcano Jobs; the job waits for free ones. End another job, or give \
                       the plugin a --port.";
        if explain(&mut outcome.status, "NoRendezvousPort", message) {
            outcome
                .events
                .push(EventNote::warning("NoRendezvousPort", message));
        }
        return None;
    };
    outcome
        .annotations
        .insert(names::RENDEZVOUS_PORT.to_owned(), Some(first.to_string()));
    Some(JobPorts {
        shared: Some(first),
    })
}

#[cfg(test)]
mod tests;
