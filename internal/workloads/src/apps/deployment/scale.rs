//! Spreads a change of the Deployment's replicas over its ReplicaSets: to the only one with pods, or in proportion to
//! their sizes while a rollout is under way.

use std::cmp::Reverse;

use super::sets::{DeploymentPlan, SetState};
use super::{Strategy, strategy};

/// Sizes all sets for the Deployment's replicas.
pub(super) fn all(plan: &mut DeploymentPlan<'_>) {
    let desired = plan.desired;
    let active = plan.all().filter(|set| set.replicas > 0).count();
    if active <= 1 {
        if let Some(set) = active_or_latest(plan) {
            set.replicas = desired;
        }
        return;
    }
    let saturated = plan
        .new
        .as_ref()
        .is_some_and(|new| new.replicas == desired && new.available() == desired);
    if saturated {
        for old in &mut plan.old {
            old.replicas = 0;
        }
    } else if strategy(plan.spec) == Strategy::RollingUpdate {
        proportionally(plan);
    }
}

fn active_or_latest<'p, 'a>(plan: &'p mut DeploymentPlan<'a>) -> Option<&'p mut SetState<'a>> {
    if plan.old.iter().any(|set| set.replicas > 0) {
        return plan.old.iter_mut().find(|set| set.replicas > 0);
    }
    plan.new.as_mut().or(plan.old.last_mut())
}

/// Each set gets its share of the pods that come or go, the largest first; the largest gets what rounding leaves.
fn proportionally(plan: &mut DeploymentPlan<'_>) {
    let (desired, surge) = (plan.desired, plan.surge);
    let allowed = if desired > 0 { desired + surge } else { 0 };
    let to_add = allowed - plan.total();
    if to_add == 0 {
        return;
    }
    let status = plan.deployment.status.as_ref();
    let known = i64::from(status.and_then(|status| status.replicas).unwrap_or(0));
    let sets = plan.old.iter_mut().chain(&mut plan.new);
    let mut sets: Vec<&mut SetState<'_>> = sets.filter(|set| set.replicas > 0).collect();
    // Old sets come first in the plan's order, so that the position says which of two equal ones is newer.
    let mut order: Vec<usize> = (0..sets.len()).collect();
    order.sort_by_key(|at| {
        let size = Reverse(sets[*at].replicas);
        let age = i64::try_from(*at).unwrap_or(i64::MAX);
        (size, if to_add > 0 { -age } else { age })
    });
    let mut added = 0;
    for at in &order {
        let set = &mut sets[*at];
        let share = share(set, desired, surge, known);
        let left = to_add - added;
        let share = if to_add > 0 {
            share.clamp(0, left)
        } else {
            share.clamp(left, 0)
        };
        set.replicas += share;
        added += share;
    }
    if let Some(largest) = order.first() {
        let set = &mut sets[*largest];
        set.replicas = (set.replicas + to_add - added).max(0);
    }
}

/// The set's share of the change, by its part of the most pods that there could be before.
fn share(set: &SetState<'_>, desired: i64, surge: i64, known: i64) -> i64 {
    if desired == 0 {
        return -set.replicas;
    }
    let before = set.max_before().unwrap_or(known);
    if before <= 0 {
        return 0;
    }
    let product = i128::from(set.replicas) * i128::from(desired + surge);
    let rounded = (product * 2 + i128::from(before)) / (i128::from(before) * 2);
    i64::try_from(rounded).unwrap_or(i64::MAX) - set.replicas
}
