//! The gang of a JobSet: the PodGroup with its name. Its pods start together or wait together.

use std::collections::BTreeMap;

use resources::amounts::{self, Amounts};
use resources::kinds::{PodGroup, PodGroupSpec};
use resources::names;

use super::plan::{ParsedJobSet, ParsedReplicatedJob};
use super::{API_VERSION, KIND};
use crate::gang;
use crate::ownership::controller_reference;
use crate::terms;

/// The change that brings the group to its desired state; `None` if it is there. `open` are the jobs whose pods exist or
/// may be created, without those that are complete.
pub(crate) fn change(
    plan: &ParsedJobSet<'_>,
    open: &[&ParsedReplicatedJob<'_>],
    observed: Option<&PodGroup>,
) -> Option<PodGroup> {
    let reference = controller_reference(API_VERSION, KIND, plan.meta);
    let annotations = terms::of_gang(plan.meta);
    gang::change(
        plan.meta,
        reference,
        wanted(plan, open),
        annotations,
        observed,
    )
}

/// How many pods must start together now.
pub(crate) fn members(open: &[&ParsedReplicatedJob<'_>]) -> u32 {
    let pods = open.iter().map(|job| job.pods());
    pods.fold(0, u32::saturating_add)
}

fn wanted(plan: &ParsedJobSet<'_>, open: &[&ParsedReplicatedJob<'_>]) -> PodGroupSpec {
    let number = |count: u32| i32::try_from(count).unwrap_or(i32::MAX);
    let mut sum = Amounts::new();
    let mut by_task: BTreeMap<String, i32> = BTreeMap::new();
    for job in open.iter().filter(|job| job.pods() > 0) {
        by_task.insert(job.name.to_owned(), number(job.pods()));
        if let Some(spec) = job.pod_spec() {
            sum.add(&amounts::pod_requests(spec).times(i64::from(job.pods())));
        }
    }
    sum.0.remove(amounts::PODS);
    let queue = terms::queue(plan.meta);
    PodGroupSpec {
        min_member: Some(number(members(open))),
        min_task_member: Some(by_task),
        min_resources: Some(sum.to_k8s()),
        queue: Some(queue.unwrap_or_else(|| names::DEFAULT_QUEUE.to_owned())),
        priority_class_name: priority(plan),
        ..PodGroupSpec::default()
    }
}

/// The first priority class that a template names.
fn priority(plan: &ParsedJobSet<'_>) -> Option<String> {
    let class = |job: &ParsedReplicatedJob<'_>| job.pod_spec()?.priority_class_name.clone();
    let mut classes = plan.jobs.iter().filter_map(class);
    classes.find(|class| !class.is_empty())
}
