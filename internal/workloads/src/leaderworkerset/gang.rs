//! The gang of a group: a PodGroup. Its pods start together or wait together; with `LeaderReady` the leader starts alone.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::amounts::{self, Amounts};
use resources::kinds::{PodGroup, PodGroupSpec};
use resources::leader_worker_set::{KIND, gang_name};
use resources::names;

use super::API_VERSION;
use super::plan::{GroupPlan, ParsedSet};
use crate::gang;
use crate::ownership::controller_reference;
use crate::terms;

/// The name of a group's PodGroup.
pub(crate) fn name(set: &ParsedSet<'_>, index: u32, revision: &str) -> String {
    gang_name(set.name, index, revision)
}

/// The change that brings the PodGroup to its desired state; `None` if it is there.
pub(crate) fn change(
    set: &ParsedSet<'_>,
    name: &str,
    template: &GroupPlan<'_>,
    observed: Option<&PodGroup>,
) -> Option<PodGroup> {
    let owner = ObjectMeta {
        name: Some(name.to_owned()),
        ..set.meta.clone()
    };
    let reference = controller_reference(API_VERSION, KIND, set.meta);
    let said = terms::of_gang(set.meta);
    gang::change(&owner, reference, wanted(set, template), said, observed)
}

fn wanted(set: &ParsedSet<'_>, template: &GroupPlan<'_>) -> PodGroupSpec {
    let requests = |worker: u32| {
        let spec = template.of(worker).spec.as_ref();
        spec.map(amounts::pod_requests).unwrap_or_default()
    };
    let mut sum = Amounts::new();
    sum.add(&requests(0));
    sum.add(&requests(1).times(i64::from(template.size - 1)));
    sum.0.remove(amounts::PODS);
    let together = if template.leader_first {
        1
    } else {
        template.size
    };
    let class = |worker: u32| {
        let spec = template.of(worker).spec.as_ref()?;
        spec.priority_class_name.clone()
    };
    let class = class(0).or_else(|| class(1));
    PodGroupSpec {
        min_member: Some(i32::try_from(together).unwrap_or(i32::MAX)),
        min_resources: Some(sum.to_k8s()),
        queue: Some(terms::queue(set.meta).unwrap_or_else(|| names::DEFAULT_QUEUE.to_owned())),
        priority_class_name: class.filter(|class| !class.is_empty()),
        ..PodGroupSpec::default()
    }
}
