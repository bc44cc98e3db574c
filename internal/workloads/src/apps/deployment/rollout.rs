//! One step from the old ReplicaSets to the new one. Each function returns true if it resized a set: what follows from
//! that is decided in the next pass.

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DeploymentStatus;

use super::sets::{DeploymentPlan, SetState};
use crate::action::ReconcileOutcome;

/// `Recreate`: the old pods end, then the new set gets all its pods.
pub(super) fn recreate(
    plan: &mut DeploymentPlan<'_>,
    outcome: &mut ReconcileOutcome<DeploymentStatus>,
    now: Timestamp,
) -> bool {
    let mut resized = false;
    for old in &mut plan.old {
        resized |= old.replicas > 0;
        old.replicas = 0;
    }
    if resized || plan.old.iter().any(has_pods) {
        return true;
    }
    match &mut plan.new {
        Some(new) => {
            let resized = new.replicas != plan.desired;
            new.replicas = plan.desired;
            resized
        }
        None => {
            plan.create(outcome, now);
            true
        }
    }
}

/// True if pods of the set run or end, as far as its status shows.
fn has_pods(set: &SetState<'_>) -> bool {
    let status = set.replica_set.status.as_ref();
    status.is_some_and(|status| {
        let stale = status.observed_generation < set.replica_set.metadata.generation;
        status.replicas > 0 || status.terminating_replicas.unwrap_or(0) > 0 || stale
    })
}

/// `RollingUpdate`: the new set grows by what `maxSurge` leaves, or the old ones shrink by what `maxUnavailable` leaves.
pub(super) fn rolling(
    plan: &mut DeploymentPlan<'_>,
    outcome: &mut ReconcileOutcome<DeploymentStatus>,
    now: Timestamp,
) -> bool {
    let Some(before) = plan.new.as_ref().map(|new| new.replicas) else {
        plan.create(outcome, now);
        return true;
    };
    let size = if before > plan.desired {
        plan.desired
    } else {
        plan.new_size(before)
    };
    if size != before {
        if let Some(new) = &mut plan.new {
            new.replicas = size;
        }
        return true;
    }
    shrink_old(plan)
}

/// Takes pods from the old sets: first those that are not available, then as many as may be unavailable.
fn shrink_old(plan: &mut DeploymentPlan<'_>) -> bool {
    let least = plan.desired - plan.unavailable;
    let (size, ready) = plan
        .new
        .as_ref()
        .map_or((0, 0), |new| (new.replicas, new.available()));
    let mut unhealthy = plan.total() - least - (size - ready);
    if unhealthy <= 0 {
        return false;
    }
    let mut resized = false;
    for old in &mut plan.old {
        let broken = (old.replicas - old.available()).max(0).min(unhealthy);
        old.replicas -= broken;
        unhealthy -= broken;
        resized |= broken > 0;
    }
    // The status of a set that was just resized may still count pods that it no longer has.
    let available = |set: &SetState<'_>| set.available().min(set.before());
    let mut spare = plan.all().map(available).sum::<i64>() - least;
    for old in &mut plan.old {
        if spare <= 0 {
            break;
        }
        let fewer = old.replicas.min(spare);
        old.replicas -= fewer;
        spare -= fewer;
        resized |= fewer > 0;
    }
    resized
}
