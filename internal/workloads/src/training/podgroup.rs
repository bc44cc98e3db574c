//! The gang: which of the job's pods must start together, in which queue, and with which
//! annotations for the scheduler (copied from the job's own).

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as K8sQuantity;
use resources::amounts::{self, Amounts};
use resources::kinds::{PodGroup, PodGroupSpec};
use resources::names;
use resources::training::ReplicaType;

use super::mpi;
use super::plan::ParsedTrainingJob;
use crate::gang;
use crate::ownership::controller_reference;
use crate::terms;

/// The change that brings the group to its desired state; `None` if it is there. A group of this
/// name with another owner is left alone.
pub(crate) fn change(
    plan: &ParsedTrainingJob<'_>,
    observed: Option<&PodGroup>,
) -> Option<PodGroup> {
    let wanted = wanted_spec(plan);
    let mut annotations = terms::of_gang(plan.meta);
    if !annotations.contains_key(names::WALLTIME)
        && let Some(deadline) = deadline(plan)
    {
        annotations.insert(names::WALLTIME.to_owned(), deadline.to_string());
    }
    let reference = controller_reference(&plan.kind.api_version(), plan.kind.kind, plan.meta);
    gang::change(plan.meta, reference, wanted, annotations, observed)
}

/// The seconds until the job's own or its pods' deadline, if its templates do not state their
/// walltime.
fn deadline(plan: &ParsedTrainingJob<'_>) -> Option<i64> {
    let templates = || plan.replicas.iter().map(|replicas| replicas.template);
    let metas = templates().filter_map(|template| template.metadata.as_ref());
    let mut annotations = metas.filter_map(|meta| meta.annotations.as_ref());
    if annotations.any(|annotations| annotations.contains_key(names::WALLTIME)) {
        return None;
    }
    let own = plan.job.run_policy.active_deadline_seconds;
    let pods = templates().filter_map(|template| template.spec.as_ref()?.active_deadline_seconds);
    own.into_iter().chain(pods).min()
}

/// How many of the job's pods must start together.
pub(crate) fn least_members(plan: &ParsedTrainingJob<'_>) -> u32 {
    let given = plan.scheduling().and_then(|policy| policy.min_available);
    let given = given.and_then(|count| u32::try_from(count).ok());
    given.unwrap_or_else(|| smallest_gang(plan))
}

fn wanted_spec(plan: &ParsedTrainingJob<'_>) -> PodGroupSpec {
    let policy = plan.scheduling();
    let members = least_members(plan);
    let tasks = members_by_task(plan, members);
    let resources = policy.and_then(|policy| policy.min_resources.clone());
    let priority = policy.and_then(|policy| policy.priority_class.clone());
    PodGroupSpec {
        min_member: Some(i32::try_from(members).unwrap_or(i32::MAX)),
        min_resources: Some(resources.unwrap_or_else(|| resources_of(plan, &tasks))),
        min_task_member: Some(
            tasks
                .into_iter()
                .map(|(role, count)| {
                    (
                        role.lower().to_owned(),
                        i32::try_from(count).unwrap_or(i32::MAX),
                    )
                })
                .collect(),
        ),
        queue: Some(queue(plan)),
        priority_class_name: priority
            .filter(|class| !class.is_empty())
            .or_else(|| template_priority(plan)),
        ..PodGroupSpec::default()
    }
}

/// All replicas; of an elastic job's workers only the required minimum. A launcher that waits for its workers is no
/// member: its pod would keep the others from being placed.
fn smallest_gang(plan: &ParsedTrainingJob<'_>) -> u32 {
    let count = |role: ReplicaType, count: u32| match (role, &plan.elastic) {
        (ReplicaType::Worker, Some(elastic)) => count.min(elastic.min),
        (ReplicaType::Launcher, _) if mpi::launcher_waits(plan) => 0,
        _ => count,
    };
    plan.replicas
        .iter()
        .map(|replicas| count(replicas.role, replicas.count))
        .fold(0, u32::saturating_add)
}

/// The gang's members by task: the first rank first, since no other works without it.
fn members_by_task(plan: &ParsedTrainingJob<'_>, members: u32) -> Vec<(ReplicaType, u32)> {
    let mut left = members;
    let mut tasks = Vec::new();
    let waits = mpi::launcher_waits(plan);
    for replicas in &plan.replicas {
        if waits && replicas.role == ReplicaType::Launcher {
            continue;
        }
        let count = replicas.count.min(left);
        left -= count;
        if count > 0 {
            tasks.push((replicas.role, count));
        }
    }
    tasks
}

fn resources_of(
    plan: &ParsedTrainingJob<'_>,
    tasks: &[(ReplicaType, u32)],
) -> BTreeMap<String, K8sQuantity> {
    let mut sum = Amounts::new();
    for (role, count) in tasks {
        let template = plan
            .replicas_of(*role)
            .and_then(|replicas| replicas.template.spec.as_ref());
        if let Some(spec) = template {
            sum.add(&amounts::pod_requests(spec).times(i64::from(*count)));
        }
    }
    sum.0.remove(amounts::PODS);
    sum.to_k8s()
}

/// The scheduling policy's queue, else the label's or annotation's, else the default.
fn queue(plan: &ParsedTrainingJob<'_>) -> String {
    let policy = plan.scheduling().and_then(|policy| policy.queue.as_ref());
    let named = |map: &Option<BTreeMap<String, String>>| {
        map.as_ref()
            .and_then(|map| map.get(names::QUEUE_NAME))
            .cloned()
    };
    policy
        .cloned()
        .or_else(|| named(&plan.meta.labels))
        .or_else(|| named(&plan.meta.annotations))
        .filter(|queue| !queue.is_empty())
        .unwrap_or_else(|| names::DEFAULT_QUEUE.to_owned())
}

/// The first priority class that a template names, the master's before the workers'.
fn template_priority(plan: &ParsedTrainingJob<'_>) -> Option<String> {
    let classes = plan.replicas.iter().filter_map(|replicas| {
        let spec = replicas.template.spec.as_ref()?;
        spec.priority_class_name.clone()
    });
    classes.into_iter().find(|class| !class.is_empty())
}
