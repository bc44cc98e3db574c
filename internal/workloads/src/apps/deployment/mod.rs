//! Deployment, `apps/v1`: one ReplicaSet for each template that it had, and the rollout from the old ones to the new
//! one. Owns the order of the decision: the revision, then scaling, then one step of the rollout, then the status. The
//! sibling modules own these parts. The rules are those of Kubernetes 1.34's Deployment controller.
//!
//! Example: 10 replicas, `maxSurge: 3`, `maxUnavailable: 2`. The new set starts with 3 pods, the old one shrinks to 8;
//! as each new pod becomes available, an old one goes and the next new one comes.

mod rollout;
mod scale;
mod sets;
mod status;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, DeploymentStatus, ReplicaSet};

use self::sets::DeploymentPlan;
use crate::action::{DependentKind, ReconcileOutcome};
use crate::ownership::Claimant;

pub use self::sets::REVISION;

/// The observed state to decide on.
#[derive(Clone, Copy)]
pub struct ObservedDeployment<'a> {
    /// The deployment, with its status and annotations as last written.
    pub deployment: &'a Deployment,
    /// Its ReplicaSets, and those of its namespace without a controller; others are ignored.
    pub sets: &'a [&'a ReplicaSet],
}

/// Decides the next actions for a Deployment.
#[must_use]
pub fn reconcile(
    observed: &ObservedDeployment<'_>,
    now: Timestamp,
) -> ReconcileOutcome<DeploymentStatus> {
    let deployment = observed.deployment;
    let known = deployment.status.clone().unwrap_or_default();
    let mut outcome = ReconcileOutcome::keep(known);
    let Some(spec) = deployment.spec.as_ref() else {
        return outcome;
    };
    let claimant = Claimant::of("Deployment", &deployment.metadata, &spec.selector);
    let claimed = claimant.claim(DependentKind::ReplicaSet, observed.sets, |_| true);
    let mut plan = DeploymentPlan::of(deployment, spec, claimed.own.into_iter());
    if deployment.metadata.deletion_timestamp.is_some() {
        status::count(&plan, &mut outcome);
        return outcome;
    }
    outcome.actions.extend(claimed.releases);
    if !claimed.adoptions.is_empty() {
        outcome.actions.extend(claimed.adoptions);
        return outcome;
    }
    status::note_pause(spec, &mut outcome, now);
    let paused = spec.paused == Some(true);
    if !paused {
        plan.sync_revision(&mut outcome, now);
    } else {
        plan.keep_revision(&mut outcome);
    }
    if paused || plan.is_scaling() {
        scale::all(&mut plan);
        if paused && spec_has_no_rollout(&plan) {
            plan.delete_history(&mut outcome);
        }
        status::write_counts(&plan, &mut outcome, now);
    } else {
        let done = match strategy(spec) {
            Strategy::Recreate => rollout::recreate(&mut plan, &mut outcome, now),
            Strategy::RollingUpdate => rollout::rolling(&mut plan, &mut outcome, now),
        };
        if !done && status::is_complete(&plan, deployment.status.as_ref()) {
            plan.delete_history(&mut outcome);
        }
        status::write(&plan, &mut outcome, now);
    }
    plan.write(&mut outcome);
    outcome
}

fn spec_has_no_rollout(plan: &DeploymentPlan<'_>) -> bool {
    plan.old.iter().all(|set| set.replicas == 0)
}

/// How a template is replaced.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Strategy {
    /// All old pods end before new ones start.
    Recreate,
    /// Step by step.
    RollingUpdate,
}

fn strategy(spec: &DeploymentSpec) -> Strategy {
    let strategy = spec.strategy.as_ref();
    match strategy.and_then(|strategy| strategy.type_.as_deref()) {
        Some("Recreate") => Strategy::Recreate,
        _ => Strategy::RollingUpdate,
    }
}

#[cfg(test)]
mod tests;
