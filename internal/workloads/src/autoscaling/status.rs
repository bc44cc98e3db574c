//! The status of an autoscaler: its conditions, and the statuses that say why it cannot work.

use jiff::Timestamp;
use k8s_openapi::api::autoscaling::v2::{
    HorizontalPodAutoscaler, HorizontalPodAutoscalerCondition, HorizontalPodAutoscalerStatus,
    MetricStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::ObservedScaler;

/// The condition that says whether the target can be scaled.
pub(super) const ABLE: &str = "AbleToScale";
/// The condition that says whether metrics are read.
pub(super) const ACTIVE: &str = "ScalingActive";
/// The condition that says whether a limit counts.
pub(super) const LIMITED: &str = "ScalingLimited";

/// The conditions, as they become.
pub(super) struct Conditions {
    all: Vec<HorizontalPodAutoscalerCondition>,
    now: Timestamp,
}

impl Conditions {
    /// Those that were written last.
    pub(super) fn of(scaler: &HorizontalPodAutoscaler, now: Timestamp) -> Conditions {
        let stored = scaler.status.as_ref();
        let stored = stored.and_then(|status| status.conditions.clone());
        let mut conditions = Conditions {
            all: stored.unwrap_or_default(),
            now,
        };
        // A former version said this of every autoscaler.
        conditions
            .all
            .retain(|one| one.reason.as_deref() != Some(resources::inert_kinds::REASON));
        conditions
    }

    /// Sets a condition. Its transition time changes only with its status.
    pub(super) fn set(&mut self, type_: &str, is: bool, reason: &str, message: String) {
        let status = if is { "True" } else { "False" };
        let found = self.all.iter_mut().find(|one| one.type_ == type_);
        let now = Some(Time(self.now));
        match found {
            Some(one) => {
                if one.status != status {
                    one.last_transition_time = now;
                }
                one.status = status.to_owned();
                one.reason = Some(reason.to_owned());
                one.message = Some(message);
            }
            None => self.all.push(HorizontalPodAutoscalerCondition {
                last_transition_time: now,
                message: Some(message),
                reason: Some(reason.to_owned()),
                status: status.to_owned(),
                type_: type_.to_owned(),
            }),
        }
    }
}

/// The status after a decision. Without new measurements the last ones go.
pub(super) fn of(
    observed: &ObservedScaler<'_>,
    desired: i32,
    measured: Option<Vec<MetricStatus>>,
    conditions: Conditions,
    scaled: Option<Timestamp>,
) -> HorizontalPodAutoscalerStatus {
    let before = observed.scaler.status.as_ref();
    let last = before.and_then(|status| status.last_scale_time.clone());
    HorizontalPodAutoscalerStatus {
        conditions: Some(conditions.all),
        current_metrics: measured,
        current_replicas: Some(observed.current),
        desired_replicas: desired,
        last_scale_time: scaled.map(Time).or(last),
        observed_generation: observed.scaler.metadata.generation,
    }
}

/// The status of an autoscaler whose target could not be read or scaled; nothing is decided.
#[must_use]
pub fn unscalable(
    scaler: &HorizontalPodAutoscaler,
    reason: &str,
    message: String,
    now: Timestamp,
) -> HorizontalPodAutoscalerStatus {
    let mut conditions = Conditions::of(scaler, now);
    conditions.set(ABLE, false, reason, message);
    HorizontalPodAutoscalerStatus {
        conditions: Some(conditions.all),
        ..scaler.status.clone().unwrap_or_default()
    }
}
