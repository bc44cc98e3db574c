//! Creates a Job's pod, and reads back its attempt and index.

use k8s_openapi::api::core::v1::{Container, EnvVar, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::names;

use super::plan::ParsedJob;
use crate::ownership::controller_reference;
use crate::pod_facts;
use crate::pod_names;
use crate::terms;

/// The annotation on a pod that holds its attempt.
const ATTEMPT: &str = "muster.io/attempt";
/// The annotation on a pod that holds its index's earlier failures.
const INDEX_FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
/// The variable that holds the index in an Indexed Job's containers.
const INDEX_VARIABLE: &str = "JOB_COMPLETION_INDEX";

/// The pod of one attempt; `failures` is the number of its index's earlier failures.
pub(crate) fn pod(plan: &ParsedJob<'_>, attempt: u32, index: Option<u32>, failures: u32) -> Pod {
    let template = &plan.spec.template;
    let template_meta = template.metadata.clone().unwrap_or_default();
    let mut spec = template.spec.clone().unwrap_or_default();
    let uid = plan.meta.uid.clone().unwrap_or_default();

    let mut labels = template_meta.labels.unwrap_or_default();
    for (key, value) in [
        (names::BATCH_JOB_NAME, plan.name()),
        (names::LEGACY_JOB_NAME, plan.name()),
        (names::BATCH_CONTROLLER_UID, uid.as_str()),
        (names::LEGACY_CONTROLLER_UID, uid.as_str()),
    ] {
        labels.insert(key.to_owned(), value.to_owned());
    }
    let mut annotations = template_meta.annotations.unwrap_or_default();
    annotations.insert(ATTEMPT.to_owned(), attempt.to_string());
    for (name, value) in terms::of_each(plan.meta) {
        annotations.entry(name).or_insert(value);
    }
    terms::run_for(plan.meta, &mut labels, &mut annotations);
    if let Some(queue) = terms::queue(plan.meta) {
        annotations
            .entry(names::QUEUE_NAME.to_owned())
            .or_insert(queue);
    }
    if !annotations.contains_key(names::WALLTIME)
        && let Some(deadline) = deadline(plan, spec.active_deadline_seconds)
    {
        annotations.insert(names::WALLTIME.to_owned(), deadline.to_string());
    }
    if let Some(index) = index {
        labels.insert(names::COMPLETION_INDEX.to_owned(), index.to_string());
        annotations.insert(names::COMPLETION_INDEX.to_owned(), index.to_string());
        if plan.backoff_limit_per_index.is_some() {
            annotations.insert(INDEX_FAILURES.to_owned(), failures.to_string());
        }
        let hostname = format!("{}-{index}", plan.name());
        if spec.hostname.is_none() && hostname.len() <= pod_names::NAME_MAX {
            spec.hostname = Some(hostname);
        }
        let inits = spec.init_containers.iter_mut().flatten();
        for container in inits.chain(&mut spec.containers) {
            set_index(container, index);
        }
    }
    Pod {
        metadata: ObjectMeta {
            name: Some(pod_name(plan, &uid, attempt, index)),
            namespace: plan.meta.namespace.clone(),
            labels: Some(labels),
            annotations: Some(annotations),
            finalizers: template_meta.finalizers,
            owner_references: Some(vec![controller_reference("batch/v1", "Job", plan.meta)]),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    }
}

/// The pod's attempt, if this controller created the pod.
pub(crate) fn attempt_of(pod: &Pod) -> Option<u32> {
    pod.metadata
        .annotations
        .as_ref()?
        .get(ATTEMPT)?
        .parse()
        .ok()
}

/// The pod's completion index, if it has one.
pub(crate) fn index_of(pod: &Pod) -> Option<u32> {
    pod.metadata
        .annotations
        .as_ref()?
        .get(names::COMPLETION_INDEX)?
        .parse()
        .ok()
}

/// The order in which surplus pods are deleted, terminating and ended ones aside.
pub(crate) fn expendable_first(pod: &Pod) -> impl Ord + use<> {
    (
        pod_facts::is_bound(pod),
        pod_facts::PodPhase::of(pod) == pod_facts::PodPhase::Running,
        pod_facts::is_ready(pod),
        std::cmp::Reverse(attempt_of(pod)),
    )
}

/// `<job>-<suffix>` or `<job>-<index>-<suffix>`, fixed for an attempt.
fn pod_name(plan: &ParsedJob<'_>, uid: &str, attempt: u32, index: Option<u32>) -> String {
    let index = index.map(|index| format!("-{index}")).unwrap_or_default();
    pod_names::numbered(plan.name(), &index, uid, attempt)
}

fn set_index(container: &mut Container, index: u32) {
    let variables = container.env.get_or_insert_default();
    if variables
        .iter()
        .all(|variable| variable.name != INDEX_VARIABLE)
    {
        variables.push(EnvVar {
            name: INDEX_VARIABLE.to_owned(),
            value: Some(index.to_string()),
            value_from: None,
        });
    }
}

/// The seconds until the earlier of the job's deadline and its pod's own.
fn deadline(plan: &ParsedJob<'_>, own: Option<i64>) -> Option<i64> {
    plan.spec
        .active_deadline_seconds
        .into_iter()
        .chain(own)
        .min()
}
