//! HorizontalPodAutoscaler, `autoscaling/v2`: how many replicas a target should have by what its pods use. Pure: the caller
//! reads the scale, the pods and their usage, and writes the decision.
//!
//! The rules are those of Kubernetes 1.34's controller (`horizontal.go`, `replica_calculator.go`): every metric proposes a
//! number by the ratio of what is measured to what is aimed at, the largest number counts, and the behavior limits how
//! fast the target follows ([`behavior`]). Pods that are new, not ready or not measured count so that they cannot cause a
//! change in the direction that their absence suggests ([`replicas`]).
//!
//! Example: two pods that request one GPU each and use 1.9 GPUs together, at a target of 80 %, become
//! ceil(2 × 0.95 / 0.8) = 3. Cost: linear in the target's pods and their containers for each metric.
//! The tests that hold it: `autoscaling::tests`, `replicas::tests` and `behavior::tests`.

mod behavior;
mod replicas;
mod status;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::autoscaling::v2::{
    ContainerResourceMetricStatus, HorizontalPodAutoscaler, HorizontalPodAutoscalerStatus,
    MetricSpec, MetricStatus, MetricTarget, MetricValueStatus, ResourceMetricStatus,
};
use k8s_openapi::api::core::v1::Pod;

pub use self::behavior::ScalingMemory;
use self::behavior::{Limit, Limited};
use self::replicas::{Aim, MetricError, Proposal};
pub use self::status::unscalable;
use self::status::{ABLE, ACTIVE, Conditions, LIMITED};
use crate::action::{EventNote, NoteKind};

/// What the containers of a pod used in a window of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodUsage {
    /// The end of the window.
    pub at: Timestamp,
    /// Its length.
    pub window: SignedDuration,
    /// By container and resource, in thousandths of the resource's unit.
    pub containers: BTreeMap<String, BTreeMap<String, i64>>,
}

/// The observed state to decide on.
#[derive(Clone, Copy)]
pub struct ObservedScaler<'a> {
    /// The autoscaler, with its status as last written.
    pub scaler: &'a HorizontalPodAutoscaler,
    /// The replicas that the target's scale asks for.
    pub replicas: i32,
    /// The replicas that its status counts.
    pub current: i32,
    /// The pods that its selector matches.
    pub pods: &'a [Pod],
    /// What they use, by name; pods that were not measured are absent.
    pub usage: &'a BTreeMap<String, PodUsage>,
}

/// What to do.
#[derive(Clone, Debug)]
pub struct ScalingDecision {
    /// The replicas to write to the target's scale, if they change.
    pub replicas: Option<i32>,
    /// The status to write. It says that the scale was written, if that is to be done.
    pub status: HorizontalPodAutoscalerStatus,
    /// What to record about the autoscaler.
    pub notes: Vec<EventNote>,
}

/// Decides the replicas of an autoscaler's target. The recommendation is kept in `memory`; the caller calls
/// [`ScalingMemory::scaled`] after it has written the scale.
#[must_use]
pub fn decide(
    observed: &ObservedScaler<'_>,
    memory: &mut ScalingMemory,
    now: Timestamp,
) -> ScalingDecision {
    let scaler = observed.scaler;
    let mut conditions = Conditions::of(scaler, now);
    let read = "the HPA controller was able to get the target's current scale";
    conditions.set(ABLE, true, "SucceededGetScale", read.to_owned());
    let Some(spec) = &scaler.spec else {
        let status = status::of(observed, observed.replicas, None, conditions, None);
        return ScalingDecision {
            replicas: None,
            status,
            notes: Vec::new(),
        };
    };
    let min = spec.min_replicas.unwrap_or(1);
    let max = spec.max_replicas;
    let mut notes = Vec::new();
    let mut measured = None;
    let current = observed.replicas;
    let (wanted, reason) = if current == 0 && min != 0 {
        conditions.set(
            ACTIVE,
            false,
            "ScalingDisabled",
            "scaling is disabled since the replica count of the target is zero".to_owned(),
        );
        (0, String::new())
    } else if current > max {
        (
            max,
            "Current number of replicas above Spec.MaxReplicas".to_owned(),
        )
    } else if current < min {
        (
            min,
            "Current number of replicas below Spec.MinReplicas".to_owned(),
        )
    } else {
        let metrics = spec.metrics.as_deref().unwrap_or_default();
        let (proposed, failed) = propose_all(observed, metrics, now);
        measured = Some(proposed.iter().map(|one| one.1.clone()).collect());
        let best = proposed.iter().max_by_key(|one| one.0.replicas);
        // A metric that could not be read must not let the others scale down.
        let usable = best.filter(|one| failed.is_empty() || one.0.replicas > current);
        if let Some((type_, error)) = failed.first() {
            let reason = format!("FailedGet{type_}Metric");
            notes.push(EventNote {
                kind: NoteKind::Warning,
                reason: reason.clone(),
                message: error.to_string(),
            });
            if usable.is_none() {
                let message = format!("the HPA was unable to compute the replica count: {error}");
                conditions.set(ACTIVE, false, &reason, message);
            }
        }
        match usable {
            None => (current, String::new()),
            Some((proposal, _)) => {
                let name = &proposal.metric;
                conditions.set(
                    ACTIVE,
                    true,
                    "ValidMetricFound",
                    format!(
                        "the HPA was able to successfully calculate a replica count from {name}"
                    ),
                );
                let wanted = limited(
                    observed,
                    memory,
                    proposal.replicas,
                    (min, max),
                    &mut conditions,
                    now,
                );
                let reason = if wanted < current {
                    "All metrics below target".to_owned()
                } else {
                    format!("{name} above target")
                };
                (wanted, reason)
            }
        }
    };
    let change = (wanted != current).then_some(wanted);
    if let Some(wanted) = change {
        conditions.set(
            ABLE,
            true,
            "SucceededRescale",
            format!("the HPA controller was able to update the target scale to {wanted}"),
        );
        let message = format!("New size: {wanted}; reason: {reason}");
        notes.push(EventNote::normal("SuccessfulRescale", message));
    }
    let status = status::of(
        observed,
        wanted,
        measured,
        conditions,
        change.is_some().then_some(now),
    );
    ScalingDecision {
        replicas: change,
        status,
        notes,
    }
}

/// The proposals of the metrics that could be read, each with the status to show, and the others' types and errors.
type Proposals<'a> = (Vec<(Proposal, MetricStatus)>, Vec<(&'a str, MetricError)>);

fn propose_all<'a>(
    observed: &ObservedScaler<'_>,
    metrics: &'a [MetricSpec],
    now: Timestamp,
) -> Proposals<'a> {
    let mut proposed = Vec::new();
    let mut failed = Vec::new();
    for metric in metrics {
        match propose(observed, metric, now) {
            Ok(one) => proposed.push(one),
            Err(error) => failed.push((metric.type_.as_str(), error)),
        }
    }
    (proposed, failed)
}

fn propose(
    observed: &ObservedScaler<'_>,
    metric: &MetricSpec,
    now: Timestamp,
) -> Result<(Proposal, MetricStatus), MetricError> {
    let blank = MetricStatus {
        type_: metric.type_.clone(),
        ..MetricStatus::default()
    };
    if let Some(source) = &metric.resource {
        let (proposal, current) = by_resource(observed, &source.name, None, &source.target, now)?;
        let status = MetricStatus {
            resource: Some(ResourceMetricStatus {
                current,
                name: source.name.clone(),
            }),
            ..blank
        };
        return Ok((proposal, status));
    }
    if let Some(source) = &metric.container_resource {
        let container = Some(source.container.as_str());
        let (proposal, current) =
            by_resource(observed, &source.name, container, &source.target, now)?;
        let status = MetricStatus {
            container_resource: Some(ContainerResourceMetricStatus {
                container: source.container.clone(),
                current,
                name: source.name.clone(),
            }),
            ..blank
        };
        return Ok((proposal, status));
    }
    Err(MetricError::NotServed {
        type_: metric.type_.clone(),
    })
}

fn by_resource(
    observed: &ObservedScaler<'_>,
    resource: &str,
    container: Option<&str>,
    target: &MetricTarget,
    now: Timestamp,
) -> Result<(Proposal, MetricValueStatus), MetricError> {
    let aim = Aim::of(target)?;
    let tolerances = behavior::tolerances(observed.scaler);
    replicas::propose(observed, resource, container, aim, tolerances, now)
}

/// The proposal within the behavior's limits and the spec's bounds; sets the conditions that say which limit counts.
fn limited(
    observed: &ObservedScaler<'_>,
    memory: &mut ScalingMemory,
    proposed: i32,
    (min, max): (i32, i32),
    conditions: &mut Conditions,
    now: Timestamp,
) -> i32 {
    let rules = behavior::Rules::of(observed.scaler);
    let current = observed.replicas;
    let stable = memory.stabilized(&rules, current, proposed, now);
    if stable == proposed {
        conditions.set(
            ABLE,
            true,
            "ReadyForNewScale",
            "recommended size matches current size".to_owned(),
        );
    } else if stable > proposed {
        conditions.set(
            ABLE,
            true,
            "ScaleDownStabilized",
            "recent recommendations were higher than current one, applying the highest recent recommendation".to_owned(),
        );
    } else {
        conditions.set(
            ABLE,
            true,
            "ScaleUpStabilized",
            "recent recommendations were lower than current one, applying the lowest recent recommendation".to_owned(),
        );
    }
    let Limited { replicas, by } = memory.limited(&rules, current, stable, (min, max), now);
    let (is_limited, reason, message) = match by {
        None => (
            false,
            "DesiredWithinRange",
            "the desired count is within the acceptable range",
        ),
        Some(Limit::ScaleUp) => (
            true,
            "ScaleUpLimit",
            "the desired replica count is increasing faster than the maximum scale rate",
        ),
        Some(Limit::ScaleDown) => (
            true,
            "ScaleDownLimit",
            "the desired replica count is decreasing faster than the maximum scale rate",
        ),
        Some(Limit::Max) => (
            true,
            "TooManyReplicas",
            "the desired replica count is more than the maximum replica count",
        ),
        Some(Limit::Min) => (
            true,
            "TooFewReplicas",
            "the desired replica count is less than the minimum replica count",
        ),
    };
    conditions.set(LIMITED, is_limited, reason, message.to_owned());
    replicas
}
