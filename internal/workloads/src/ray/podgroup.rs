//! The gang of a cluster: the head and each group's least workers, in the cluster's queue. Workers above the least are
//! members too, and start when there is room.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::amounts::{self, Amounts};
use resources::kinds::{PodGroup, PodGroupSpec};
use resources::names as shared;

use super::names;
use super::plan::{ParsedRayCluster, RayGroup};
use crate::ownership::{controlled_by, controller_reference};
use crate::terms;

/// The change that brings the group to its desired state; `None` if it is there. A group of this name with another
/// owner is left alone.
pub(crate) fn change(
    cluster: &ParsedRayCluster<'_>,
    observed: Option<&PodGroup>,
) -> Option<PodGroup> {
    let wanted = wanted_spec(cluster);
    let said = terms::of_gang(cluster.meta);
    let Some(observed) = observed else {
        let owner = controller_reference(names::API_VERSION, names::KIND, cluster.meta);
        return Some(PodGroup {
            metadata: ObjectMeta {
                name: cluster.meta.name.clone(),
                namespace: cluster.meta.namespace.clone(),
                owner_references: Some(vec![owner]),
                annotations: (!said.is_empty()).then_some(said),
                ..ObjectMeta::default()
            },
            spec: wanted,
            status: None,
        });
    };
    // Annotations set on the group itself are kept, unless the cluster sets them differently.
    let there = observed.metadata.annotations.as_ref();
    let value = |name: &String| there.and_then(|all| all.get(name));
    let told = said.iter().all(|(name, text)| value(name) == Some(text));
    let same = told && agrees(&observed.spec, &wanted);
    if same || !controlled_by(&observed.metadata, cluster.meta) {
        return None;
    }
    let mut changed = observed.clone();
    if !told {
        changed
            .metadata
            .annotations
            .get_or_insert_default()
            .extend(said);
    }
    changed.spec.min_member = wanted.min_member;
    changed.spec.min_task_member = wanted.min_task_member;
    changed.spec.queue = wanted.queue;
    changed.spec.priority_class_name = wanted.priority_class_name;
    changed.spec.min_resources = wanted.min_resources;
    Some(changed)
}

/// Whether the group's spec equals the desired one, regardless of how quantities are written.
fn agrees(observed: &PodGroupSpec, wanted: &PodGroupSpec) -> bool {
    let amounts = |spec: &PodGroupSpec| spec.min_resources.as_ref().map(Amounts::from_k8s);
    observed.min_member == wanted.min_member
        && observed.min_task_member == wanted.min_task_member
        && observed.queue == wanted.queue
        && observed.priority_class_name == wanted.priority_class_name
        && amounts(observed) == amounts(wanted)
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
