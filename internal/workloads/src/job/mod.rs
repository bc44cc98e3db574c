//! Job, `batch/v1`: pods that run to completion, a number of them at a time. Owns the order of the
//! decision; the sibling modules own its parts.

mod failure_policy;
mod indexes;
mod phase;
mod plan;
mod pods;
mod status;
mod tally;
mod verdict;

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1::Pod;
use resources::failure::{FailureAction, FailureRecord};
use resources::names;
use resources::numbers::{GANG_MEMBERS_MAX, later};

use self::indexes::Indexes;
use self::phase::{JobPhase, JobSignals};
use self::plan::ParsedJob;
use self::pods::{expendable_first, index_of};
use self::status::{is_active, is_terminating};
pub use self::tally::ATTEMPTS;
use self::tally::AttemptTally;
use crate::action::{Action, ReconcileOutcome, delete_pod};
use crate::failure;
use crate::ownership::controlled_by;
use crate::pod_facts;
use crate::pod_room::PodRoom;

/// The most pods that one reconciliation creates; the next ones follow when these have been
/// observed.
const CREATED_AT_ONCE: u32 = 500;
/// The most pods of one Job that wait for a node at a time. A further pod would wait behind these;
/// it is created once one of them has a node. Pods of a gang are an exception: they wait for each
/// other, so as many may wait as a gang has members. So a Job costs as much as its pods that can
/// run, however large its `parallelism` is.
pub const WAITING_MAX: u32 = 2_000;

/// The observed state to decide on.
#[derive(Clone, Copy)]
pub struct ObservedJob<'a> {
    /// The job, with its status and annotations as last written.
    pub job: &'a Job,
    /// Pods of the job; other pods are ignored.
    pub pods: &'a [&'a Pod],
    /// What bounds the number of its pods.
    pub room: PodRoom,
}

/// Decides the next actions for a Job. Once the result was carried out, another call gives the same
/// status and no actions, until something changes.
#[must_use]
pub fn reconcile(observed: &ObservedJob<'_>, now: Timestamp) -> ReconcileOutcome<JobStatus> {
    let job = observed.job;
    let mut status = job.status.clone().unwrap_or_default();
    let phase = JobPhase::of(&status);
    let plan = ParsedJob::of(job)
        .filter(|_| job.metadata.deletion_timestamp.is_none() && !plan::managed_elsewhere(job));
    let Some(plan) = plan else {
        return ReconcileOutcome::keep(status);
    };
    if phase.is_terminal() {
        return finished(&plan, status, now);
    }
    let pods: Vec<&Pod> = observed
        .pods
        .iter()
        .copied()
        .filter(|pod| controlled_by(&pod.metadata, plan.meta))
        .collect();
    let active: Vec<&Pod> = pods.iter().copied().filter(|pod| is_active(pod)).collect();
    let terminating = pods.iter().filter(|pod| is_terminating(pod)).count();
    let tally = AttemptTally::of(&plan, status.completed_indexes.as_deref(), &pods);
    let annotations = job.metadata.annotations.as_ref();
    let known = FailureRecord::read(|name| annotations?.get(name).map(String::as_str));
    let mut record = failure::observe_last(known.clone(), members(&plan, &tally, &pods));
    let signals = JobSignals {
        suspend: plan.suspended(),
        failure: verdict::failure(&plan, &tally, &pods, record.as_ref(), &status, now),
        success: verdict::success(&plan, &tally, active.len() + terminating),
        remaining: active.len() + terminating,
    };
    let next = phase.clone().next(signals);
    let events = status::moved(&mut status, &phase, &next, now);
    status::count(&plan, &tally, &pods, &mut status);
    let mut outcome = ReconcileOutcome {
        events,
        ..ReconcileOutcome::keep(status)
    };
    if let Some(record) = &mut record {
        record.action = match next {
            JobPhase::Failing(_) | JobPhase::Failed(_) => Some(FailureAction::Fail),
            _ if record.class.is_retried_by_node() => None,
            _ => record.action.or(Some(FailureAction::RestartRank)),
        };
    }
    if record != known {
        let written = record.as_ref().map(FailureRecord::write);
        outcome
            .annotations
            .insert(names::FAILURE.to_owned(), written);
    }
    let written = tally.write();
    let known = job
        .metadata
        .annotations
        .as_ref()
        .and_then(|map| map.get(ATTEMPTS));
    if known.map_or("", String::as_str) != written && !written.is_empty() {
        outcome
            .annotations
            .insert(ATTEMPTS.to_owned(), Some(written));
    }
    match &next {
        JobPhase::Active => {
            let room = &observed.room;
            keep_up(
                &plan,
                &tally,
                &pods,
                active,
                terminating,
                room,
                &mut outcome,
                now,
            );
        }
        JobPhase::Suspended | JobPhase::Succeeding(_) | JobPhase::Failing(_) => {
            outcome.actions.extend(active.into_iter().map(delete_pod));
        }
        JobPhase::Complete(_) | JobPhase::Failed(_) => {
            if let Some(at) = expiry(&plan, &outcome.status) {
                outcome.requeue(at);
            }
        }
    }
    outcome
}

/// The pods with the index of each, if the job has indexes.
fn members<'p>(
    plan: &ParsedJob<'_>,
    tally: &AttemptTally,
    pods: &[&'p Pod],
) -> impl Iterator<Item = failure::Member<'p>> {
    let (indexed, attempts) = (plan.indexed, tally.failures().max(1));
    pods.iter().map(move |pod| failure::Member {
        pod,
        rank: index_of(pod).filter(|_| indexed),
        main: "",
        attempts,
        attempt: 0,
        hang: None,
    })
}

fn finished(
    plan: &ParsedJob<'_>,
    status: JobStatus,
    now: Timestamp,
) -> ReconcileOutcome<JobStatus> {
    let expiry = expiry(plan, &status);
    let mut outcome = ReconcileOutcome::keep(status);
    match expiry {
        Some(at) if at <= now => outcome.actions.push(Action::DeleteJob {
            name: plan.name().to_owned(),
            uid: plan.meta.uid.clone().unwrap_or_default(),
        }),
        Some(at) => outcome.requeue(at),
        None => {}
    }
    outcome
}

fn expiry(plan: &ParsedJob<'_>, status: &JobStatus) -> Option<Timestamp> {
    let seconds = plan.spec.ttl_seconds_after_finished?;
    Some(later(status::ended_at(status)?, i64::from(seconds)))
}

/// The most members of a gang.
fn gang_max() -> u32 {
    u32::try_from(GANG_MEMBERS_MAX).unwrap_or(u32::MAX)
}

/// Whether its pods name a gang. These are bound together: with fewer pods than the gang needs, none
/// would ever be bound.
fn is_gang(plan: &ParsedJob<'_>) -> bool {
    let template = plan.spec.template.metadata.as_ref();
    let notes = template.and_then(|meta| meta.annotations.as_ref());
    let group = notes.and_then(|notes| notes.get(names::GROUP_NAME));
    group.is_some_and(|group| !group.is_empty())
}

/// Keeps as many pods active as the spec requests and as can exist.
#[allow(
    clippy::too_many_arguments,
    reason = "each is a part of one reconciliation's state"
)]
fn keep_up(
    plan: &ParsedJob<'_>,
    tally: &AttemptTally,
    pods: &[&Pod],
    mut active: Vec<&Pod>,
    terminating: usize,
    room: &PodRoom,
    outcome: &mut ReconcileOutcome<JobStatus>,
    now: Timestamp,
) {
    if let Some(deadline) = verdict::deadline(plan, &outcome.status) {
        outcome.requeue(deadline);
    }
    if plan.indexed {
        let (kept, unwanted) = sort_out_indexes(plan, tally, active);
        outcome.actions.extend(unwanted.into_iter().map(delete_pod));
        active = kept;
    }
    let at_work = u32::try_from(active.len()).unwrap_or(u32::MAX);
    let successes = tally.successes(plan);
    let wanted = match plan.completions {
        Some(completions) => plan.parallelism.min(completions.saturating_sub(successes)),
        None if successes > 0 => at_work.min(plan.parallelism),
        None => plan.parallelism,
    };
    if at_work > wanted {
        active.sort_by_key(|pod| expendable_first(pod));
        let surplus = usize::try_from(at_work - wanted).unwrap_or(usize::MAX);
        outcome
            .actions
            .extend(active.into_iter().take(surplus).map(delete_pod));
        return;
    }
    let held = if plan.waits_for_stopping() {
        terminating
    } else {
        0
    };
    let held = u32::try_from(held).unwrap_or(u32::MAX);
    let waiting = active
        .iter()
        .filter(|pod| !pod_facts::is_bound(pod))
        .count();
    let waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
    let missing = wanted.saturating_sub(at_work).saturating_sub(held);
    let gang = is_gang(plan);
    let held_back = match gang {
        true if at_work == 0 => room.holds_back(missing.min(gang_max())),
        true => None,
        false => room.spent(missing),
    };
    status::hold_back(&mut outcome.status, held_back.as_ref(), now);
    if let Some(held) = held_back {
        outcome.requeue(later(now, held.again));
        return;
    }
    let waiting_max = match gang {
        true => room.members_max(),
        false => room.waiting_max(WAITING_MAX),
    };
    let missing = missing
        .min(waiting_max.saturating_sub(waiting))
        .min(room.quota_left())
        .min(CREATED_AT_ONCE);
    if missing == 0 {
        return;
    }
    if let Some(at) = verdict::earliest_start(pods).filter(|at| *at > now) {
        outcome.requeue(at);
        return;
    }
    let used = tally.used_attempts(pods);
    let attempts = used.missing_below(u32::MAX);
    if plan.indexed {
        let mut taken: Indexes = active.iter().filter_map(|pod| index_of(pod)).collect();
        taken.insert_all(&tally.completed_indexes);
        taken.insert_all(&tally.failed_indexes);
        let open = taken.missing_below(plan.completions.unwrap_or_default());
        let missing = usize::try_from(missing).unwrap_or(usize::MAX);
        for (index, attempt) in open.take(missing).zip(attempts) {
            let pod = pods::pod(plan, attempt, Some(index), tally.failures_of(index));
            outcome.actions.push(Action::CreatePod(Box::new(pod)));
        }
    } else {
        for (_, attempt) in (0..missing).zip(attempts) {
            let pod = pods::pod(plan, attempt, None, 0);
            outcome.actions.push(Action::CreatePod(Box::new(pod)));
        }
    }
}

/// The active pods to keep, one for each unfinished index, and the others.
fn sort_out_indexes<'a>(
    plan: &ParsedJob<'_>,
    tally: &AttemptTally,
    active: Vec<&'a Pod>,
) -> (Vec<&'a Pod>, Vec<&'a Pod>) {
    let mut kept: BTreeMap<u32, &Pod> = BTreeMap::new();
    let mut unwanted = Vec::new();
    for pod in active {
        let index = index_of(pod).filter(|index| {
            *index < plan.completions.unwrap_or_default()
                && !tally.completed_indexes.contains(*index)
                && !tally.failed_indexes.contains(*index)
        });
        match index {
            None => unwanted.push(pod),
            Some(index) => {
                let rival = kept.get(&index).copied();
                match rival {
                    Some(rival) if expendable_first(rival) >= expendable_first(pod) => {
                        unwanted.push(pod);
                    }
                    _ => unwanted.extend(kept.insert(index, pod)),
                }
            }
        }
    }
    (kept.into_values().collect(), unwanted)
}

#[cfg(test)]
mod tests;
