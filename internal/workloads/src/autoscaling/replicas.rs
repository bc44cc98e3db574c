//! The replicas that one metric proposes: `replica_calculator.go` of Kubernetes 1.34.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::autoscaling::v2::{MetricTarget, MetricValueStatus};
use k8s_openapi::api::core::v1::{Container, Pod};
use resources::quantity::Quantity;

use super::{ObservedScaler, PodUsage};

/// How long after its start a pod's CPU use counts only as far as it was measured while the pod was ready
/// (`--horizontal-pod-autoscaler-cpu-initialization-period`).
const CPU_INITIALIZATION: SignedDuration = SignedDuration::from_mins(5);
/// How long after its start a pod's first change of readiness counts as its start
/// (`--horizontal-pod-autoscaler-initial-readiness-delay`).
const INITIAL_READINESS: SignedDuration = SignedDuration::from_secs(30);

/// Why a metric proposes nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum MetricError {
    /// No pod was measured.
    #[error(
        "unable to get metrics for resource {resource}: no metrics of ready pods; agents measure running pods each 15 seconds, \
         and GPUs that a pod holds alone"
    )]
    Unmeasured {
        /// The resource.
        resource: String,
    },
    /// There are no pods.
    #[error("no pods returned by selector while calculating replica count")]
    NoPods,
    /// A percentage needs requests.
    #[error(
        "missing request for {resource} in container {container} of Pod {pod}; set resources.requests, or aim at an averageValue"
    )]
    NoRequest {
        /// The resource.
        resource: String,
        /// The container.
        container: String,
        /// The pod.
        pod: String,
    },
    /// The container of a ContainerResource is missing.
    #[error("container {container} not present in metrics for pod {pod}")]
    NoContainer {
        /// The container.
        container: String,
        /// The pod.
        pod: String,
    },
    /// The target is of a type that the source does not have.
    #[error(
        "invalid target of type {type_:?}: a resource is scaled by averageUtilization or averageValue"
    )]
    Target {
        /// The type.
        type_: String,
    },
    /// Muster answers no such metrics.
    #[error(
        "metrics of type {type_} are not measured by Muster; use type Resource or ContainerResource with cpu, memory or a GPU's resource"
    )]
    NotServed {
        /// The type.
        type_: String,
    },
}

/// What a metric aims at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aim {
    /// A percentage of what the pods request.
    Utilization(i32),
    /// A mean over the pods, in thousandths.
    Average(i64),
}

impl Aim {
    pub(super) fn of(target: &MetricTarget) -> Result<Aim, MetricError> {
        if let Some(value) = &target.average_value
            && let Ok(value) = Quantity::parse_k8s(value)
            && value.milli() > 0
        {
            return Ok(Aim::Average(value.milli()));
        }
        match target.average_utilization {
            Some(percent) if percent > 0 => Ok(Aim::Utilization(percent)),
            _ => Err(MetricError::Target {
                type_: target.type_.clone(),
            }),
        }
    }
}

/// By how much a ratio may differ from one without a change, up and down.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tolerances {
    pub(super) up: f64,
    pub(super) down: f64,
}

impl Tolerances {
    fn includes(self, ratio: f64) -> bool {
        (1.0 - self.down..=1.0 + self.up).contains(&ratio)
    }
}

/// What a metric proposes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Proposal {
    /// The replicas.
    pub(super) replicas: i32,
    /// The metric, in words.
    pub(super) metric: String,
}

/// The pods by what their measurements are worth.
#[derive(Default)]
struct Groups<'a> {
    ready: usize,
    unready: BTreeSet<&'a str>,
    missing: BTreeSet<&'a str>,
    ignored: BTreeSet<&'a str>,
}

/// The replicas by one resource of all containers, or of one.
pub(super) fn propose(
    observed: &ObservedScaler<'_>,
    resource: &str,
    container: Option<&str>,
    aim: Aim,
    tolerances: Tolerances,
    now: Timestamp,
) -> Result<(Proposal, MetricValueStatus), MetricError> {
    if observed.pods.is_empty() {
        return Err(MetricError::NoPods);
    }
    let mut used = used(observed, resource, container)?;
    let groups = group(observed, &used, resource, now);
    used.retain(|pod, _| !groups.ignored.contains(pod) && !groups.unready.contains(pod));
    if used.is_empty() {
        return Err(MetricError::Unmeasured {
            resource: resource.to_owned(),
        });
    }
    let requests = match aim {
        Aim::Utilization(_) => requests(observed, resource, container)?,
        Aim::Average(_) => BTreeMap::new(),
    };
    let ratio = |used: &BTreeMap<&str, i64>| ratio(used, &requests, aim);
    let first = ratio(&used);
    let status = shown(&used, &requests, aim);
    let name = match (container, aim) {
        (Some(container), Aim::Utilization(_)) => {
            format!(
                "{resource} container resource utilization (percentage of request) of {container}"
            )
        }
        (None, Aim::Utilization(_)) => {
            format!("{resource} resource utilization (percentage of request)")
        }
        (Some(container), Aim::Average(_)) => {
            format!("{resource} container resource of {container}")
        }
        (None, Aim::Average(_)) => format!("{resource} resource"),
    };
    let answer = |replicas: i32| {
        let proposal = Proposal {
            replicas,
            metric: name.clone(),
        };
        Ok((proposal, status.clone()))
    };
    let current = observed.replicas;
    let up_with_unready = !groups.unready.is_empty() && first > 1.0;
    if !up_with_unready && groups.missing.is_empty() {
        return answer(if tolerances.includes(first) {
            current
        } else {
            whole(first * groups.ready as f64)
        });
    }
    // A pod that was not measured counts so that it holds the change back.
    for pod in &groups.missing {
        let assumed = match aim {
            _ if first > 1.0 => 0,
            Aim::Utilization(percent) => {
                let request = requests.get(pod).copied().unwrap_or(0);
                request.saturating_mul(i64::from(percent.max(100))) / 100
            }
            Aim::Average(milli) => milli,
        };
        if first != 1.0 {
            used.insert(pod, assumed);
        }
    }
    if up_with_unready {
        used.extend(groups.unready.iter().map(|pod| (*pod, 0)));
    }
    let second = ratio(&used);
    let turned = (first < 1.0 && second > 1.0) || (first > 1.0 && second < 1.0);
    if tolerances.includes(second) || turned {
        return answer(current);
    }
    let replicas = whole(second * used.len() as f64);
    let contrary = (second < 1.0 && replicas > current) || (second > 1.0 && replicas < current);
    answer(if contrary { current } else { replicas })
}

/// What each measured pod uses, in thousandths. A pod of which a container has no value counts as not measured.
fn used<'a>(
    observed: &ObservedScaler<'a>,
    resource: &str,
    container: Option<&str>,
) -> Result<BTreeMap<&'a str, i64>, MetricError> {
    let mut found = BTreeMap::new();
    for pod in observed.pods {
        let name = name_of(pod);
        let Some(usage) = observed.usage.get(name) else {
            continue;
        };
        let value = match container {
            Some(container) => {
                let of = usage.containers.get(container);
                let of = of.ok_or_else(|| MetricError::NoContainer {
                    container: container.to_owned(),
                    pod: name.to_owned(),
                })?;
                of.get(resource).copied()
            }
            None => total(usage, resource),
        };
        if let Some(value) = value {
            found.insert(name, value);
        }
    }
    Ok(found)
}

/// The sum over the containers. A GPU is measured only where a container holds one; CPU and memory everywhere.
fn total(usage: &PodUsage, resource: &str) -> Option<i64> {
    let values = usage
        .containers
        .values()
        .map(|of| of.get(resource).copied());
    if ["cpu", "memory"].contains(&resource) {
        return values
            .collect::<Option<Vec<i64>>>()
            .filter(|all| !all.is_empty())
            .map(|all| sum(all.into_iter()));
    }
    let values: Vec<i64> = values.flatten().collect();
    (!values.is_empty()).then(|| sum(values.into_iter()))
}

fn sum(values: impl Iterator<Item = i64>) -> i64 {
    values.fold(0, i64::saturating_add)
}

fn group<'a>(
    observed: &ObservedScaler<'a>,
    used: &BTreeMap<&'a str, i64>,
    resource: &str,
    now: Timestamp,
) -> Groups<'a> {
    let mut groups = Groups::default();
    for pod in observed.pods {
        let name = name_of(pod);
        let status = pod.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref());
        if pod.metadata.deletion_timestamp.is_some() || phase == Some("Failed") {
            groups.ignored.insert(name);
        } else if phase == Some("Pending") {
            groups.unready.insert(name);
        } else if !used.contains_key(name) {
            groups.missing.insert(name);
        } else if resource == "cpu"
            && observed
                .usage
                .get(name)
                .is_none_or(|usage| is_starting(pod, usage, now))
        {
            groups.unready.insert(name);
        } else {
            groups.ready += 1;
        }
    }
    groups
}

/// Whether a pod's CPU use is that of its start, which says nothing about its load.
fn is_starting(pod: &Pod, usage: &PodUsage, now: Timestamp) -> bool {
    let status = pod.status.as_ref();
    let start = status.and_then(|status| Some(status.start_time.as_ref()?.0));
    let conditions = status.and_then(|status| status.conditions.as_deref());
    let mut conditions = conditions.unwrap_or_default().iter();
    let ready = conditions.find(|condition| condition.type_ == "Ready");
    let (Some(start), Some(ready)) = (start, ready) else {
        return true;
    };
    let is_ready = ready.status == "True";
    let since = ready.last_transition_time.as_ref().map(|time| time.0);
    let since = since.unwrap_or(start);
    if now.duration_since(start) < CPU_INITIALIZATION {
        !is_ready || usage.at < since + usage.window
    } else {
        !is_ready && since.duration_since(start) < INITIAL_READINESS
    }
}

/// What each pod requests, in thousandths.
fn requests<'a>(
    observed: &ObservedScaler<'a>,
    resource: &str,
    container: Option<&str>,
) -> Result<BTreeMap<&'a str, i64>, MetricError> {
    let mut found = BTreeMap::new();
    for pod in observed.pods {
        let containers = pod.spec.as_ref().map(|spec| spec.containers.as_slice());
        let containers = containers.unwrap_or_default().iter();
        let mut total = 0i64;
        let mut any = false;
        for one in containers.filter(|one| container.is_none_or(|name| one.name == name)) {
            match request_of(one, resource) {
                Some(milli) => {
                    any = true;
                    total = total.saturating_add(milli);
                }
                // Only containers that hold GPUs request any.
                None if !["cpu", "memory"].contains(&resource) && container.is_none() => {}
                None => {
                    return Err(MetricError::NoRequest {
                        resource: resource.to_owned(),
                        container: one.name.clone(),
                        pod: name_of(pod).to_owned(),
                    });
                }
            }
        }
        if !any || total <= 0 {
            return Err(MetricError::NoRequest {
                resource: resource.to_owned(),
                container: container.unwrap_or("(any)").to_owned(),
                pod: name_of(pod).to_owned(),
            });
        }
        found.insert(name_of(pod), total);
    }
    Ok(found)
}

/// A limit is the request where there is none.
fn request_of(container: &Container, resource: &str) -> Option<i64> {
    let resources = container.resources.as_ref()?;
    let of = |map: &Option<BTreeMap<String, _>>| map.as_ref()?.get(resource).cloned();
    let asked = of(&resources.requests).or_else(|| of(&resources.limits))?;
    Some(Quantity::parse_k8s(&asked).ok()?.milli())
}

fn ratio(used: &BTreeMap<&str, i64>, requests: &BTreeMap<&str, i64>, aim: Aim) -> f64 {
    match aim {
        Aim::Utilization(target) => percent(used, requests).unwrap_or(0) as f64 / f64::from(target),
        Aim::Average(target) => {
            let total = sum(used.values().copied());
            total as f64 / used.len() as f64 / target as f64
        }
    }
}

/// The used share of what the measured pods request.
fn percent(used: &BTreeMap<&str, i64>, requests: &BTreeMap<&str, i64>) -> Option<i64> {
    let asked = sum(used.keys().filter_map(|pod| requests.get(pod).copied()));
    let total = i128::from(sum(used.values().copied())) * 100;
    i64::try_from(total.checked_div(i128::from(asked))?).ok()
}

fn shown(
    used: &BTreeMap<&str, i64>,
    requests: &BTreeMap<&str, i64>,
    aim: Aim,
) -> MetricValueStatus {
    let count = i64::try_from(used.len()).unwrap_or(i64::MAX).max(1);
    let average = sum(used.values().copied()) / count;
    let percent = match aim {
        Aim::Utilization(_) => percent(used, requests),
        Aim::Average(_) => None,
    };
    MetricValueStatus {
        average_utilization: percent.and_then(|percent| i32::try_from(percent).ok()),
        average_value: Some(Quantity::from_milli(average).to_k8s()),
        value: None,
    }
}

/// The next whole number of replicas.
fn whole(replicas: f64) -> i32 {
    // A product of counts and ratios of finite numbers; a float that is too large becomes the largest integer.
    replicas.ceil() as i32
}

fn name_of(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}
