//! The response to failed replicas: fail the job, or recreate the pods, and when. The wait grows
//! for a replica whose new pods keep failing early.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use resources::failure::FailureRecord;
use resources::numbers::later;
use resources::training::ReplicaType;

use super::ledger::ReplicaLedger;
use super::plan::ParsedTrainingJob;
use super::roster::{ReplicaState, Roster, Slot};
use crate::failure;
use crate::pod_facts;

/// The wait before the second new pod in a row, in seconds; it doubles with each further one.
const WAIT_FIRST: i64 = 10;
/// The longest wait, in seconds.
const WAIT_MAX: i64 = 300;
/// A pod that ran this long was healthy: after its failure it is replaced at once.
pub(super) const HEALTHY_AFTER: SignedDuration = SignedDuration::from_secs(600);

/// The scope of a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RestartScope {
    /// Only the failed replicas, each at its own index: the kind's contract.
    Replica,
    /// Every member has failed: all start anew, with a new rendezvous.
    Gang,
}

/// The response to failed replicas.
pub(crate) struct FailureResponse<'a> {
    /// Why the job fails, if it does.
    pub(crate) failure: Option<String>,
    /// Why the job counts as restarting, if it does.
    pub(crate) restarting: Option<String>,
    /// Failed pods to delete now.
    pub(crate) replace: Vec<&'a Pod>,
    /// When the next of the failed pods is due for replacement.
    pub(crate) next_at: Option<Timestamp>,
    pub(crate) reach: RestartScope,
}

impl FailureResponse<'_> {
    /// The response to no failure.
    pub(crate) fn nothing() -> Self {
        FailureResponse {
            failure: None,
            restarting: None,
            replace: Vec::new(),
            next_at: None,
            reach: RestartScope::Replica,
        }
    }
}

/// Decides the response to the failed replicas. `record` is that of the first of them.
pub(crate) fn answer<'a>(
    plan: &ParsedTrainingJob<'_>,
    roster: &Roster<'a>,
    ledger: &ReplicaLedger,
    record: Option<&FailureRecord>,
    now: Timestamp,
) -> FailureResponse<'a> {
    let mut answer = FailureResponse {
        failure: failure(plan, roster, record),
        ..FailureResponse::nothing()
    };
    let failed = failed_slots(plan, roster);
    if failed.is_empty() {
        return answer;
    }
    answer.restarting = Some(restarting_message(plan, &failed, record));
    let mut due: Vec<(Timestamp, &'a Pod)> = failed
        .iter()
        .filter_map(|slot| slot.pod.map(|pod| (due_at(slot, pod, ledger, now), pod)))
        .collect();
    // No member is left to rejoin: members that return at different times would look for a
    // rendezvous that no longer exists.
    if failed.len() == roster.slots.len() && roster.slots.len() > 1 {
        answer.reach = RestartScope::Gang;
        let last = due.iter().map(|(at, _)| *at).max().unwrap_or(now);
        for (at, _) in &mut due {
            *at = last;
        }
    }
    for (at, pod) in due {
        if at <= now {
            answer.replace.push(pod);
        } else {
            answer.next_at = Some(answer.next_at.map_or(at, |known| known.min(at)));
        }
    }
    answer
}

/// Why the job cannot go on, when a failed replica may not be replaced.
fn failure(
    plan: &ParsedTrainingJob<'_>,
    roster: &Roster<'_>,
    record: Option<&FailureRecord>,
) -> Option<String> {
    for replicas in &plan.replicas {
        if replicas.role == ReplicaType::Worker && plan.workers_may_fail() {
            continue;
        }
        let failed: Vec<&Pod> = roster
            .of_role(replicas.role)
            .filter(|slot| slot.state(replicas) == ReplicaState::FailedForGood)
            .filter_map(|slot| slot.pod)
            .collect();
        // The replicas that fail later often fail because of the first one.
        if let Some(first) = failed.iter().min_by_key(|pod| pod_facts::finished_at(pod)) {
            let story = record.map(FailureRecord::sentence);
            let story = story
                .unwrap_or_else(|| failure::failure_story(first, replicas.main_container_name()));
            return Some(format!(
                "{} {} is failed because {} {} replica(s) failed: {story}.",
                plan.kind.kind,
                plan.name(),
                failed.len(),
                replicas.role.key(),
            ));
        }
    }
    None
}

fn failed_slots<'s, 'a>(plan: &ParsedTrainingJob<'_>, roster: &'s Roster<'a>) -> Vec<&'s Slot<'a>> {
    plan.replicas
        .iter()
        .flat_map(|replicas| {
            roster
                .of_role(replicas.role)
                .filter(|slot| slot.state(replicas) == ReplicaState::FailedRetryable)
        })
        .collect()
}

fn restarting_message(
    plan: &ParsedTrainingJob<'_>,
    failed: &[&Slot<'_>],
    record: Option<&FailureRecord>,
) -> String {
    let story = record.map(|record| format!(": {}", record.sentence()));
    let parts: Vec<String> = plan
        .replicas
        .iter()
        .filter_map(|replicas| {
            let count = failed
                .iter()
                .filter(|slot| slot.role == replicas.role)
                .count();
            (count > 0).then(|| format!("{count} {} replica(s)", replicas.role.key()))
        })
        .collect();
    format!(
        "{} {} is restarting because {} failed{}.",
        plan.kind.kind,
        plan.name(),
        parts.join(" and "),
        story.unwrap_or_default()
    )
}

/// When a failed pod is replaced by a new one.
fn due_at(slot: &Slot<'_>, pod: &Pod, ledger: &ReplicaLedger, now: Timestamp) -> Timestamp {
    let Some(finished) = pod_facts::finished_at(pod) else {
        return now;
    };
    let healthy = pod_facts::started_at(pod)
        .is_some_and(|started| finished.duration_since(started) >= HEALTHY_AFTER);
    let failures = ledger.failures_of(slot.role, slot.index);
    if healthy || failures <= 1 {
        return finished;
    }
    later(finished, backoff(failures))
}

/// The seconds to wait after the failure of this number in a row; there is no wait after the first.
pub(super) fn backoff(failures: u32) -> i64 {
    if failures <= 1 {
        return 0;
    }
    let doublings = failures.saturating_sub(2).min(16);
    WAIT_FIRST.saturating_mul(1 << doublings).min(WAIT_MAX)
}
