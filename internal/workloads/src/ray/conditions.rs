//! A cluster's conditions: one per type, in KubeRay's terms.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use resources::kinds::RayClusterStatus;
use resources::times::whole;

/// The head's pod runs and is ready.
pub(crate) const HEAD_READY: &str = "HeadPodReady";
/// All pods have been ready once since the start or the last suspension.
pub(crate) const PROVISIONED: &str = "RayClusterProvisioned";
/// Pods could not be created.
pub(crate) const REPLICA_FAILURE: &str = "ReplicaFailure";
/// The cluster is being suspended: its pods are being deleted.
pub(crate) const SUSPENDING: &str = "RayClusterSuspending";
/// The cluster is suspended: it has no pods.
pub(crate) const SUSPENDED: &str = "RayClusterSuspended";

pub(crate) fn is_true(status: &RayClusterStatus, type_: &str) -> bool {
    let mut conditions = status.conditions.iter();
    conditions.any(|known| known.type_ == type_ && known.status == "True")
}

/// Sets a condition. Returns whether its status or reason changed.
pub(crate) fn set(
    status: &mut RayClusterStatus,
    type_: &str,
    holds: bool,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> bool {
    set_in(&mut status.conditions, type_, holds, reason, message, now)
}

/// Sets a condition of a list. Returns whether its status or reason changed.
pub(crate) fn set_in(
    list: &mut Vec<Condition>,
    type_: &str,
    holds: bool,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> bool {
    let truth = if holds { "True" } else { "False" };
    let known = list.iter_mut().find(|known| known.type_ == type_);
    let Some(known) = known else {
        list.push(Condition {
            type_: type_.to_owned(),
            status: truth.to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            last_transition_time: Time(whole(now)),
            observed_generation: None,
        });
        return true;
    };
    let changed = known.status != truth || known.reason != reason;
    if known.status != truth {
        known.last_transition_time = Time(whole(now));
    }
    known.status = truth.to_owned();
    known.reason = reason.to_owned();
    known.message = message.to_owned();
    changed
}

/// Removes a condition.
pub(crate) fn remove(status: &mut RayClusterStatus, type_: &str) {
    status.conditions.retain(|known| known.type_ != type_);
}
