//! A Deployment's status: the counts, and the conditions `Available`, `Progressing` and `ReplicaFailure` as Kubernetes
//! 1.34 writes them.

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DeploymentCondition, DeploymentSpec, DeploymentStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use resources::numbers::later;
use resources::times::whole;

use super::super::positive;
use super::super::replicaset::REPLICA_FAILURE;
use super::sets::{DeploymentPlan, SetState};
use crate::action::ReconcileOutcome;

const PROGRESSING: &str = "Progressing";
const AVAILABLE: &str = "Available";
/// The reason of a rollout that is complete.
const COMPLETE: &str = "NewReplicaSetAvailable";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
const PAUSED: &str = "DeploymentPaused";

fn condition<'s>(status: &'s DeploymentStatus, type_: &str) -> Option<&'s DeploymentCondition> {
    let mut all = status.conditions.iter().flatten();
    all.find(|known| known.type_ == type_)
}

fn remove(status: &mut DeploymentStatus, type_: &str) {
    if let Some(conditions) = &mut status.conditions {
        conditions.retain(|known| known.type_ != type_);
        if conditions.is_empty() {
            status.conditions = None;
        }
    }
}

/// Sets a condition, unless its status and reason are so already.
fn set(
    status: &mut DeploymentStatus,
    type_: &str,
    holds: &str,
    reason: &str,
    message: String,
    now: Timestamp,
) {
    let now = Some(Time(whole(now)));
    let known = condition(status, type_);
    if known.is_some_and(|known| known.status == holds && known.reason.as_deref() == Some(reason)) {
        return;
    }
    let same = known.filter(|known| known.status == holds);
    let since = same.and_then(|known| known.last_transition_time.clone());
    let fresh = DeploymentCondition {
        type_: type_.to_owned(),
        status: holds.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_transition_time: since.or_else(|| now.clone()),
        last_update_time: now,
    };
    let conditions = status.conditions.get_or_insert_default();
    conditions.retain(|known| known.type_ != type_);
    conditions.push(fresh);
}

fn has_deadline(spec: &DeploymentSpec) -> bool {
    // As in Kubernetes, the largest number stands for no deadline.
    spec.progress_deadline_seconds
        .is_some_and(|seconds| seconds != i32::MAX)
}

/// The condition of a new set that was found.
pub(super) fn found(
    spec: &DeploymentSpec,
    name: &str,
    outcome: &mut ReconcileOutcome<DeploymentStatus>,
    now: Timestamp,
) {
    if has_deadline(spec) && condition(&outcome.status, PROGRESSING).is_none() {
        let message = format!("Found new replica set \"{name}\"");
        let status = &mut outcome.status;
        set(
            status,
            PROGRESSING,
            "True",
            "FoundNewReplicaSet",
            message,
            now,
        );
    }
}

/// The condition of a new set that this pass creates.
pub(super) fn created(
    spec: &DeploymentSpec,
    name: &str,
    outcome: &mut ReconcileOutcome<DeploymentStatus>,
    now: Timestamp,
) {
    if has_deadline(spec) {
        let message = format!("Created new replica set \"{name}\"");
        let status = &mut outcome.status;
        set(
            status,
            PROGRESSING,
            "True",
            "NewReplicaSetCreated",
            message,
            now,
        );
    }
}

/// The condition while the rollout is paused, and after.
pub(super) fn note_pause(
    spec: &DeploymentSpec,
    outcome: &mut ReconcileOutcome<DeploymentStatus>,
    now: Timestamp,
) {
    let known = condition(&outcome.status, PROGRESSING);
    let reason = known.and_then(|known| known.reason.as_deref());
    if !has_deadline(spec) || reason == Some(TIMED_OUT) {
        return;
    }
    let paused = reason == Some(PAUSED);
    let status = &mut outcome.status;
    if spec.paused == Some(true) && !paused {
        let message = "Deployment is paused".to_owned();
        set(status, PROGRESSING, "Unknown", PAUSED, message, now);
    } else if spec.paused != Some(true) && paused {
        let message = "Deployment is resumed".to_owned();
        set(
            status,
            PROGRESSING,
            "Unknown",
            "DeploymentResumed",
            message,
            now,
        );
    }
}

/// Writes the counts and whether enough pods are available.
pub(super) fn count(plan: &DeploymentPlan<'_>, outcome: &mut ReconcileOutcome<DeploymentStatus>) {
    let status = &mut outcome.status;
    let sum = |number: fn(&SetState<'_>) -> i64| plan.all().map(number).sum::<i64>();
    let of =
        |set: &SetState<'_>| i64::from(set.replica_set.status.as_ref().map_or(0, |s| s.replicas));
    let ready = |set: &SetState<'_>| {
        let status = set.replica_set.status.as_ref();
        i64::from(status.and_then(|status| status.ready_replicas).unwrap_or(0))
    };
    let leaving = |set: &SetState<'_>| {
        let status = set.replica_set.status.as_ref();
        i64::from(
            status
                .and_then(|status| status.terminating_replicas)
                .unwrap_or(0),
        )
    };
    let available = sum(|set| set.available());
    status.observed_generation = plan.deployment.metadata.generation;
    status.replicas = positive(sum(of));
    status.updated_replicas = positive(plan.new.as_ref().map_or(0, of));
    status.ready_replicas = positive(sum(ready));
    status.available_replicas = positive(available);
    status.unavailable_replicas = positive(plan.total() - available);
    status.terminating_replicas = i32::try_from(sum(leaving)).ok();
}

fn note_available(
    plan: &DeploymentPlan<'_>,
    outcome: &mut ReconcileOutcome<DeploymentStatus>,
    now: Timestamp,
) {
    let available: i64 = plan.all().map(SetState::available).sum();
    let status = &mut outcome.status;
    if available >= plan.desired - plan.unavailable {
        let message = "Deployment has minimum availability.".to_owned();
        let reason = "MinimumReplicasAvailable";
        set(status, AVAILABLE, "True", reason, message, now);
    } else {
        let message = "Deployment does not have minimum availability.".to_owned();
        let reason = "MinimumReplicasUnavailable";
        set(status, AVAILABLE, "False", reason, message, now);
    }
}

/// True if all pods have the current template and are available.
pub(super) fn is_complete(plan: &DeploymentPlan<'_>, status: Option<&DeploymentStatus>) -> bool {
    let Some(status) = status else { return false };
    let is_all = |count: Option<i32>| i64::from(count.unwrap_or(0)) == plan.desired;
    is_all(status.updated_replicas)
        && is_all(status.replicas)
        && is_all(status.available_replicas)
        && status.observed_generation >= plan.deployment.metadata.generation
}

/// Writes all but the progress of a rollout.
pub(super) fn write_counts(
    plan: &DeploymentPlan<'_>,
    outcome: &mut ReconcileOutcome<DeploymentStatus>,
    now: Timestamp,
) {
    count(plan, outcome);
    note_available(plan, outcome, now);
    move_failures(plan, outcome);
}

/// Copies the failure of a set to create pods.
fn move_failures(plan: &DeploymentPlan<'_>, outcome: &mut ReconcileOutcome<DeploymentStatus>) {
    let failure = plan.new.iter().chain(&plan.old).find_map(|set| {
        let conditions = set.replica_set.status.as_ref()?.conditions.as_ref()?;
        conditions
            .iter()
            .find(|known| known.type_ == REPLICA_FAILURE)
    });
    remove(&mut outcome.status, REPLICA_FAILURE);
    if let Some(failure) = failure {
        let conditions = outcome.status.conditions.get_or_insert_default();
        conditions.push(DeploymentCondition {
            type_: REPLICA_FAILURE.to_owned(),
            status: failure.status.clone(),
            reason: failure.reason.clone(),
            message: failure.message.clone(),
            last_transition_time: failure.last_transition_time.clone(),
            last_update_time: failure.last_transition_time.clone(),
        });
    }
}

/// Writes the whole status during a rollout, and asks to be called when its deadline has passed.
pub(super) fn write(
    plan: &DeploymentPlan<'_>,
    outcome: &mut ReconcileOutcome<DeploymentStatus>,
    now: Timestamp,
) {
    let before = plan.deployment.status.clone().unwrap_or_default();
    write_counts(plan, outcome, now);
    if has_deadline(plan.spec) {
        progress(plan, &before, outcome, now);
    } else {
        remove(&mut outcome.status, PROGRESSING);
    }
}

fn progress(
    plan: &DeploymentPlan<'_>,
    before: &DeploymentStatus,
    outcome: &mut ReconcileOutcome<DeploymentStatus>,
    now: Timestamp,
) {
    let status = &mut outcome.status;
    let known = condition(before, PROGRESSING).cloned();
    let was_complete = known
        .as_ref()
        .is_some_and(|known| known.reason.as_deref() == Some(COMPLETE));
    if status.replicas == status.updated_replicas && was_complete && plan.created.is_none() {
        return;
    }
    let subject = match (&plan.new, &plan.created) {
        (Some(new), _) => format!("ReplicaSet \"{}\"", new.name()),
        (None, Some((name, _))) => format!("ReplicaSet \"{name}\""),
        (None, None) => {
            let name = plan.deployment.metadata.name.as_deref();
            format!("Deployment \"{}\"", name.unwrap_or_default())
        }
    };
    if is_complete(plan, Some(status)) {
        let message = format!("{subject} has successfully progressed.");
        set(status, PROGRESSING, "True", COMPLETE, message, now);
    } else if progressed(before, status) {
        // The time of the last progress counts for the deadline, so it is written although the reason is the same.
        let since = known.filter(|known| known.status == "True");
        let since = since.and_then(|known| known.last_transition_time);
        remove(status, PROGRESSING);
        let message = format!("{subject} is progressing.");
        set(
            status,
            PROGRESSING,
            "True",
            "ReplicaSetUpdated",
            message,
            now,
        );
        let fresh = status.conditions.iter_mut().flatten();
        for condition in fresh.filter(|condition| condition.type_ == PROGRESSING) {
            condition.last_transition_time =
                since.clone().or(condition.last_transition_time.take());
        }
    } else if let Some(deadline) = deadline(plan.spec, status) {
        if deadline < now {
            let message = format!("{subject} has timed out progressing.");
            set(status, PROGRESSING, "False", TIMED_OUT, message, now);
        } else {
            outcome.requeue(later(deadline, 1));
        }
        return;
    }
    if let Some(deadline) = deadline(plan.spec, &outcome.status) {
        outcome.requeue(later(deadline, 1));
    }
}

fn progressed(before: &DeploymentStatus, now: &DeploymentStatus) -> bool {
    let number = |of: Option<i32>| of.unwrap_or(0);
    let old = |status: &DeploymentStatus| number(status.replicas) - number(status.updated_replicas);
    number(now.updated_replicas) > number(before.updated_replicas)
        || old(now) < old(before)
        || number(now.ready_replicas) > number(before.ready_replicas)
        || number(now.available_replicas) > number(before.available_replicas)
}

/// Until when the rollout must make progress; `None` if it is complete, has timed out or has no deadline.
fn deadline(spec: &DeploymentSpec, status: &DeploymentStatus) -> Option<Timestamp> {
    let known = condition(status, PROGRESSING)?;
    if matches!(known.reason.as_deref(), Some(COMPLETE | TIMED_OUT)) {
        return None;
    }
    let from = known.last_update_time.as_ref()?.0;
    Some(later(from, i64::from(spec.progress_deadline_seconds?)))
}
