//! A StatefulSet's pod: its name and labels, and the volumes of its claims.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};

use super::super::revisions::POD_REVISION;
use super::super::{add_volumes, pod_of};
use crate::ownership::controller_reference;
use crate::pod_facts;

const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

/// The number in a pod's name.
pub(super) fn number(set: &str, pod: &Pod) -> Option<i64> {
    let rest = pod_facts::name(pod).strip_prefix(set)?.strip_prefix('-')?;
    let number: u32 = rest.parse().ok()?;
    // `web-01` is not the pod of number 1.
    (number.to_string() == rest).then_some(i64::from(number))
}

/// The revision of a pod's template.
pub(super) fn revision_of(pod: &Pod) -> Option<&str> {
    let labels = pod.metadata.labels.as_ref()?;
    labels.get(POD_REVISION).map(String::as_str)
}

/// The name of the pod of a number.
pub(super) fn name(set: &StatefulSet, number: i64) -> String {
    let set_name = set.metadata.name.as_deref().unwrap_or_default();
    format!("{set_name}-{number}")
}

/// The pod of a number.
pub(super) fn pod(
    set: &StatefulSet,
    template: &PodTemplateSpec,
    number: i64,
    revision: &str,
) -> Pod {
    let meta = &set.metadata;
    let reference = controller_reference("apps/v1", "StatefulSet", meta);
    let mut pod = pod_of(template, meta, reference);
    let name = name(set, number);
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(POD_NAME.to_owned(), name.clone());
    labels.insert(POD_INDEX.to_owned(), number.to_string());
    labels.insert(POD_REVISION.to_owned(), revision.to_owned());
    let mut spec = pod.spec.take().unwrap_or_default();
    let of_set = set.spec.as_ref();
    let service = of_set.and_then(|spec| spec.service_name.clone());
    spec.subdomain = service.filter(|name| !name.is_empty());
    spec.hostname = Some(name.clone());
    let templates = of_set.and_then(|spec| spec.volume_claim_templates.as_deref());
    add_volumes(templates.unwrap_or_default(), &name, &mut spec);
    pod.spec = Some(spec);
    pod.metadata.name = Some(name);
    pod
}
