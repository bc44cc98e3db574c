//! The gang of a Volcano Job: the PodGroup with the job's name.

use std::collections::BTreeMap;

use resources::amounts::{self, Amounts};
use resources::kinds::{PodGroup, PodGroupSpec};

use super::members::Members;
use super::plan::{ParsedVolcanoJob, Task};
use super::{API_VERSION, KIND};
use crate::gang;
use crate::ownership::controller_reference;
use crate::pod_facts;
use crate::terms;

/// The change that brings the group to its desired state; `None` if it is there. A group of this name with another
/// owner is left alone.
pub(crate) fn change(
    plan: &ParsedVolcanoJob<'_>,
    members: &Members<'_>,
    observed: Option<&PodGroup>,
) -> Option<PodGroup> {
    let reference = controller_reference(API_VERSION, KIND, plan.meta);
    let annotations = terms::of_gang(plan.meta);
    gang::change(
        plan.meta,
        reference,
        wanted(plan, members),
        annotations,
        observed,
    )
}

/// How many pods must start together now: the job's minimum, but no more than the tasks have whose dependencies are
/// met, because the others have no pods yet.
pub(crate) fn least_members(plan: &ParsedVolcanoJob<'_>, members: &Members<'_>) -> u32 {
    let open = open_tasks(plan, members).map(|task| task.replicas);
    let open = open.fold(0, u32::saturating_add);
    plan.min_available().min(open)
}

/// The tasks whose pods may exist.
pub(crate) fn open_tasks<'p, 'a>(
    plan: &'p ParsedVolcanoJob<'a>,
    members: &Members<'_>,
) -> impl Iterator<Item = &'p Task<'a>> {
    plan.tasks
        .iter()
        .filter(|task| is_open(plan, members, task))
}

/// Whether the tasks that a task depends on have come so far: as many of their pods as their minimum run and are ready,
/// or have succeeded. A task that has pods stays open.
pub(crate) fn is_open(plan: &ParsedVolcanoJob<'_>, members: &Members<'_>, task: &Task<'_>) -> bool {
    let Some(depends_on) = task
        .depends_on
        .filter(|depends_on| !depends_on.name.is_empty())
    else {
        return true;
    };
    if !members.of_task(&task.name).is_empty() {
        return true;
    }
    let mut met = depends_on.name.iter().map(|name| {
        // Admission refuses a task that does not exist.
        plan.task(name).is_none_or(|other| {
            let pods = members.of_present(name).map(|member| member.pod);
            let far = pods.filter(|pod| {
                pod_facts::PodPhase::of(pod) == pod_facts::PodPhase::Succeeded
                    || pod_facts::is_ready(pod)
            });
            far.count() >= usize::try_from(other.min_available).unwrap_or(usize::MAX)
        })
    });
    match depends_on.iteration.as_deref() {
        Some("any") => met.any(|met| met),
        _ => met.all(|met| met),
    }
}

fn wanted(plan: &ParsedVolcanoJob<'_>, members: &Members<'_>) -> PodGroupSpec {
    let least = least_members(plan, members);
    let mut left = least;
    let mut sum = Amounts::new();
    let mut by_task: BTreeMap<String, i32> = BTreeMap::new();
    for task in open_tasks(plan, members) {
        let count = task.min_available.min(task.replicas).min(left);
        left -= count;
        if count == 0 {
            continue;
        }
        by_task.insert(task.name.clone(), i32::try_from(count).unwrap_or(i32::MAX));
        if let Some(spec) = &task.template.spec {
            sum.add(&amounts::pod_requests(spec).times(i64::from(count)));
        }
    }
    sum.0.remove(amounts::PODS);
    let priority = plan.spec.priority_class_name.clone();
    PodGroupSpec {
        min_member: Some(i32::try_from(least).unwrap_or(i32::MAX)),
        min_task_member: Some(by_task),
        min_resources: Some(sum.to_k8s()),
        queue: Some(plan.queue()),
        priority_class_name: priority.filter(|class| !class.is_empty()),
        network_topology: plan.spec.network_topology.clone(),
        ..PodGroupSpec::default()
    }
}
