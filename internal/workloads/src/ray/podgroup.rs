//! The gang of a cluster: the head and each group's least workers, in the cluster's queue. Workers above the least are
//! members too, and start when there is room.

use std::collections::BTreeMap;

use resources::amounts::{self, Amounts};
use resources::kinds::{PodGroup, PodGroupSpec};
use resources::names as shared;

use super::names;
use super::plan::{ParsedRayCluster, RayGroup};
use crate::gang;
use crate::ownership::controller_reference;
use crate::terms;

/// The change that brings the group to its desired state; `None` if it is there. A group of this name with another
/// owner is left alone.
pub(crate) fn change(
    cluster: &ParsedRayCluster<'_>,
    observed: Option<&PodGroup>,
) -> Option<PodGroup> {
    let reference = controller_reference(names::API_VERSION, names::KIND, cluster.meta);
    let annotations = terms::of_gang(cluster.meta);
    gang::change(
        cluster.meta,
        reference,
        wanted_spec(cluster),
        annotations,
        observed,
    )
}

fn wanted_spec(cluster: &ParsedRayCluster<'_>) -> PodGroupSpec {
    let workers = cluster.workers.iter();
    let workers = workers.map(|group| (&group.group, group.least.saturating_mul(group.hosts)));
    let members = [(&cluster.head, 1)].into_iter().chain(workers);
    let (mut tasks, mut sum) = (BTreeMap::new(), Amounts::new());
    for (group, count) in members.filter(|(_, count)| *count > 0) {
        let count = i32::try_from(count).unwrap_or(i32::MAX);
        tasks.insert(group.name.clone(), count);
        if let Some(spec) = &group.template.spec {
            sum.add(&amounts::pod_requests(spec).times(i64::from(count)));
        }
    }
    sum.0.remove(amounts::PODS);
    PodGroupSpec {
        min_member: Some(i32::try_from(cluster.least_members()).unwrap_or(i32::MAX)),
        min_task_member: Some(tasks),
        min_resources: Some(sum.to_k8s()),
        queue: Some(terms::queue(cluster.meta).unwrap_or_else(|| shared::DEFAULT_QUEUE.to_owned())),
        priority_class_name: priority(cluster),
        ..PodGroupSpec::default()
    }
}

/// The first priority class that a template names, the head's before the workers'.
fn priority(cluster: &ParsedRayCluster<'_>) -> Option<String> {
    let workers = cluster.workers.iter().map(|group| &group.group);
    let class = |group: &RayGroup<'_>| group.template.spec.as_ref()?.priority_class_name.clone();
    let mut classes = [&cluster.head].into_iter().chain(workers).filter_map(class);
    classes.find(|class| !class.is_empty())
}
