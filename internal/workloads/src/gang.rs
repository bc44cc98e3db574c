//! The PodGroup of a workload: created, and brought to its desired state.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use resources::amounts::Amounts;
use resources::kinds::{PodGroup, PodGroupSpec};

use crate::action::Action;
use crate::ownership::controlled_by;

/// The change that brings the PodGroup with the owner's name to this state, with these annotations; `None` if it is
/// there. A group of this name with another owner is left alone.
pub(crate) fn change(
    owner: &ObjectMeta,
    reference: OwnerReference,
    wanted: PodGroupSpec,
    annotations: BTreeMap<String, String>,
    observed: Option<&PodGroup>,
) -> Option<PodGroup> {
    let Some(observed) = observed else {
        return Some(PodGroup {
            metadata: ObjectMeta {
                name: owner.name.clone(),
                namespace: owner.namespace.clone(),
                owner_references: Some(vec![reference]),
                annotations: (!annotations.is_empty()).then_some(annotations),
                ..ObjectMeta::default()
            },
            spec: wanted,
            status: None,
        });
    };
    // Annotations set on the group itself are kept, unless the owner sets them differently.
    let there = observed.metadata.annotations.as_ref();
    let has_annotations = annotations
        .iter()
        .all(|(name, value)| there.and_then(|all| all.get(name)) == Some(value));
    let same = has_annotations && agrees(&observed.spec, &wanted);
    if !controlled_by(&observed.metadata, owner) || same {
        return None;
    }
    let mut changed = observed.clone();
    if !has_annotations {
        let present = changed.metadata.annotations.get_or_insert_default();
        present.extend(annotations);
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

/// Deletes a job's PodGroup if it exists and the job controls it. The scheduler would see a job whose pods have ended as
/// one that waits.
pub(crate) fn deletion(owner: &ObjectMeta, group: Option<&PodGroup>) -> Option<Action> {
    let ours = group.filter(|group| controlled_by(&group.metadata, owner))?;
    let stays = ours.metadata.deletion_timestamp.is_none();
    stays.then(|| Action::DeletePodGroup {
        name: ours.metadata.name.clone().unwrap_or_default(),
        uid: ours.metadata.uid.clone().unwrap_or_default(),
    })
}
