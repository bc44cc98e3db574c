//! A service's conditions, in KubeRay's terms, and what they say of its suspension.

use jiff::Timestamp;
use resources::kinds::{RayService, RayServiceStatus};

use super::plan::InvalidRayService;
use crate::action::{EventNote, ReconcileOutcome};
use crate::ray::set_condition;

/// Requests are answered.
const READY: &str = "Ready";
/// Another cluster is about to take over.
const UPGRADES: &str = "UpgradeInProgress";
/// All that the service has made is being deleted.
pub(crate) const SUSPENDING: &str = "Suspending";
/// The service has nothing left.
pub(crate) const SUSPENDED: &str = "Suspended";

pub(crate) fn is_true(status: &RayServiceStatus, type_: &str) -> bool {
    let mut conditions = status.conditions.iter();
    conditions.any(|known| known.type_ == type_ && known.status == "True")
}

fn reason_of<'s>(status: &'s RayServiceStatus, type_: &str) -> Option<&'s str> {
    let mut conditions = status.conditions.iter();
    let known = conditions.find(|known| known.type_ == type_)?;
    Some(known.reason.as_str())
}

/// Whether a service is to be suspended, is being suspended, or stays so.
pub(crate) fn suspends(service: &RayService, status: &RayServiceStatus) -> bool {
    service.spec.suspend == Some(true) || is_true(status, SUSPENDING)
}

/// The status of a service that has begun to be suspended, or that has this many objects left.
pub(crate) fn suspend(
    begun: bool,
    left: usize,
    outcome: &mut ReconcileOutcome<RayServiceStatus>,
    now: Timestamp,
) {
    let status = &mut outcome.status;
    if is_true(status, SUSPENDED) {
        return;
    }
    status.active_service_status = None;
    status.pending_service_status = None;
    status.retired_clusters.clear();
    status.num_serve_endpoints = Some(0);
    status.service_status = None;
    let list = &mut status.conditions;
    if begun && left == 0 {
        let text = "The service is suspended: its clusters and Services are deleted.";
        let reason = "SuspendComplete";
        set_condition(list, SUSPENDING, false, reason, text, now);
        set_condition(list, SUSPENDED, true, reason, text, now);
        set_condition(list, READY, false, reason, text, now);
        set_condition(list, UPGRADES, false, reason, text, now);
        outcome.events.push(EventNote::normal("Suspended", text));
        return;
    }
    let text = format!("{left} RayClusters and Services are being deleted.");
    let reason = if begun {
        "SuspendInProgress"
    } else {
        "SuspendRequested"
    };
    set_condition(list, SUSPENDING, true, reason, &text, now);
    set_condition(list, READY, false, "SuspendInProgress", &text, now);
    set_condition(list, UPGRADES, false, "SuspendInProgress", &text, now);
}

/// The status of a service that is not suspended any more.
pub(crate) fn resume(outcome: &mut ReconcileOutcome<RayServiceStatus>, now: Timestamp) {
    if !is_true(&outcome.status, SUSPENDED) {
        return;
    }
    let text = "The service is resumed.";
    let list = &mut outcome.status.conditions;
    set_condition(list, SUSPENDED, false, "RayServiceResumed", text, now);
    list.retain(|known| ![READY, UPGRADES].contains(&known.type_.as_str()));
    outcome.events.push(EventNote::normal("Resumed", text));
}

/// The conditions of a service that should run: how many pods get requests, and what it waits for.
pub(crate) fn judge(
    endpoints: usize,
    cause: &str,
    outcome: &mut ReconcileOutcome<RayServiceStatus>,
    now: Timestamp,
) {
    let status = &mut outcome.status;
    status.num_serve_endpoints = Some(i32::try_from(endpoints).unwrap_or(i32::MAX));
    let before = reason_of(status, READY).map(str::to_owned);
    let initial = matches!(
        before.as_deref(),
        None | Some("Initializing" | "ValidationFailed")
    );
    let active = status.active_service_status.is_some();
    let pending = status.pending_service_status.as_ref();
    let pending = pending.and_then(|pending| pending.ray_cluster_name.clone());
    let list = &mut status.conditions;
    if endpoints > 0 {
        let text = match endpoints {
            1 => "1 pod answers requests.".to_owned(),
            many => format!("{many} pods answer requests."),
        };
        let text = match cause.is_empty() || pending.is_some() {
            true => text,
            false => format!("{text} {cause}"),
        };
        set_condition(list, READY, true, "NonZeroServeEndpoints", &text, now);
    } else {
        let reason = if initial {
            "Initializing"
        } else {
            "ZeroServeEndpoints"
        };
        set_condition(list, READY, false, reason, cause, now);
    }
    let (upgrades, reason, text) = match (active, pending) {
        (true, Some(next)) => {
            let text = format!("RayCluster {next} takes over once its applications run. {cause}");
            let text = text.trim_end().to_owned();
            (true, "BothActivePendingClustersExist", text)
        }
        (true, None) => {
            let text = "No other cluster is about to take over.";
            (false, "NoPendingCluster", text.to_owned())
        }
        (false, _) => (false, "Initializing", "No cluster serves yet.".to_owned()),
    };
    set_condition(list, UPGRADES, upgrades, reason, &text, now);
    let running = endpoints > 0;
    status.service_status = running.then(|| "Running".to_owned());
    let after = reason_of(status, READY).map(str::to_owned);
    if after != before {
        let note = match after.as_deref() {
            Some("NonZeroServeEndpoints") => {
                Some(EventNote::normal("Ready", "The service answers requests."))
            }
            Some("ZeroServeEndpoints") => {
                let text = format!("No pod answers requests any more. {cause}");
                Some(EventNote::warning("ZeroServeEndpoints", text.trim_end()))
            }
            _ => None,
        };
        outcome.events.extend(note);
    }
}

/// The status of a service whose spec is refused. What serves goes on.
pub(crate) fn refused(
    refusal: &InvalidRayService,
    outcome: &mut ReconcileOutcome<RayServiceStatus>,
    now: Timestamp,
) {
    let text = refusal.to_string();
    let reason = "ValidationFailed";
    let list = &mut outcome.status.conditions;
    let changed = set_condition(list, READY, false, reason, &text, now);
    outcome.status.service_status = None;
    if changed {
        outcome.events.push(EventNote::warning(reason, text));
    }
}
