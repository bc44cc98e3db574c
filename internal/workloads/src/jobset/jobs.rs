//! Creates a JobSet's Jobs, with JobSet's labels and annotations, and its headless Service.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PodTemplateSpec, Service, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::jobset;
use resources::names;
use sha1::{Digest as _, Sha1};

use super::plan::{ParsedJobSet, ParsedReplicatedJob};
use super::{API_VERSION, KIND};
use crate::failure;
use crate::ownership::controller_reference;
use crate::terms;

/// The restarts that a new Job is part of.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    /// Of the whole JobSet.
    pub(crate) restarts: u32,
    /// Of the Job alone.
    pub(crate) job_restarts: u32,
}

/// One Job of the JobSet.
pub(crate) fn job(
    plan: &ParsedJobSet<'_>,
    replicated: &ParsedReplicatedJob<'_>,
    index: u32,
    run: Run,
) -> Job {
    let mut spec = replicated.spec().cloned().unwrap_or_default();
    spec.suspend = Some(plan.suspended());
    spec.parallelism.get_or_insert(1);
    let mode = spec
        .completion_mode
        .get_or_insert_with(|| "Indexed".to_owned());
    if mode == "Indexed" && spec.completions.is_none() {
        spec.completions = spec.parallelism;
    }
    let labels = labels(plan, replicated, index, run);
    complete_template(plan, replicated, &labels, &mut spec.template);
    let of_template = replicated.template.metadata.clone().unwrap_or_default();
    let mut own = of_template.labels.unwrap_or_default();
    own.extend(labels.clone());
    let mut annotations = of_template.annotations.unwrap_or_default();
    annotations.extend(labels);
    // Records of the Job's controller.
    for record in [names::ATTEMPTS, names::FAILURE] {
        annotations.remove(record);
    }
    terms::inherit(plan.meta, &mut own, &mut annotations);
    Job {
        metadata: ObjectMeta {
            name: Some(plan.job_name(replicated, index)),
            namespace: plan.meta.namespace.clone(),
            labels: Some(own),
            annotations: Some(annotations),
            owner_references: Some(vec![controller_reference(API_VERSION, KIND, plan.meta)]),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    }
}

/// The template of the pods of one Job, with what the JobSet adds to it.
fn complete_template(
    plan: &ParsedJobSet<'_>,
    replicated: &ParsedReplicatedJob<'_>,
    labels: &BTreeMap<String, String>,
    template: &mut PodTemplateSpec,
) {
    let meta = template.metadata.get_or_insert_default();
    let task = (names::TASK_SPEC.to_owned(), replicated.name.to_owned());
    let own = meta.labels.get_or_insert_default();
    own.extend(labels.clone());
    own.extend([task.clone()]);
    let annotations = meta.annotations.get_or_insert_default();
    annotations.extend(labels.clone());
    annotations.extend([task]);
    annotations.insert(names::GROUP_NAME.to_owned(), plan.name().to_owned());
    let spec = template.spec.get_or_insert_default();
    if spec.restart_policy.as_ref().is_none_or(String::is_empty) {
        spec.restart_policy = Some("OnFailure".to_owned());
    }
    if plan.has_host_names() {
        spec.subdomain = Some(plan.subdomain().to_owned());
    }
    failure::report_log_end(&mut spec.containers);
}

/// JobSet's labels, which are annotations as well.
fn labels(
    plan: &ParsedJobSet<'_>,
    replicated: &ParsedReplicatedJob<'_>,
    index: u32,
    run: Run,
) -> BTreeMap<String, String> {
    let name = plan.job_name(replicated, index);
    let namespace = plan.meta.namespace.as_deref().unwrap_or_default();
    let (group_replicas, group_index) = group(plan, replicated, index);
    let mut labels = vec![
        (jobset::NAME, plan.name().to_owned()),
        (jobset::UID, plan.uid().to_owned()),
        (jobset::REPLICATED_JOB, replicated.name.to_owned()),
        (jobset::REPLICAS, replicated.replicas.to_string()),
        (jobset::GLOBAL_REPLICAS, plan.replicas().to_string()),
        (jobset::JOB_INDEX, index.to_string()),
        (
            jobset::GLOBAL_INDEX,
            replicated.first_job.saturating_add(index).to_string(),
        ),
        (jobset::JOB_KEY, sha1_hex(&format!("{namespace}/{name}"))),
        (jobset::RESTART_ATTEMPT, run.restarts.to_string()),
        (jobset::JOB_RESTART_ATTEMPT, run.job_restarts.to_string()),
        (jobset::GROUP_NAME, replicated.group.to_owned()),
        (jobset::GROUP_REPLICAS, group_replicas.to_string()),
        (jobset::GROUP_INDEX, group_index.to_string()),
    ];
    if let Some(endpoint) = coordinator(plan) {
        labels.push((jobset::COORDINATOR, endpoint));
    }
    let owned = |(name, value): (&str, String)| (name.to_owned(), value);
    labels.into_iter().map(owned).collect()
}

/// The Jobs of a job's group, and one Job's number among them.
fn group(plan: &ParsedJobSet<'_>, replicated: &ParsedReplicatedJob<'_>, index: u32) -> (u32, u32) {
    let members = plan.jobs.iter().filter(|job| job.group == replicated.group);
    let all = members
        .clone()
        .map(|job| job.replicas)
        .fold(0, u32::saturating_add);
    let before = members.take_while(|job| job.name != replicated.name);
    let before = before.map(|job| job.replicas).fold(0, u32::saturating_add);
    (all, before.saturating_add(index))
}

/// Where the coordinator's pod is reached.
fn coordinator(plan: &ParsedJobSet<'_>) -> Option<String> {
    let coordinator = plan.spec.coordinator.as_ref()?;
    Some(format!(
        "{}-{}-{}-{}.{}",
        plan.name(),
        coordinator.replicated_job,
        coordinator.job_index,
        coordinator.pod_index,
        plan.subdomain()
    ))
}

fn sha1_hex(text: &str) -> String {
    let digest = Sha1::digest(text.as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The headless Service by which the pods have names.
pub(crate) fn service(plan: &ParsedJobSet<'_>) -> Service {
    let network = plan.spec.network.as_ref();
    let early = network.and_then(|network| network.publish_not_ready_addresses);
    let selector = BTreeMap::from([(jobset::NAME.to_owned(), plan.name().to_owned())]);
    Service {
        metadata: ObjectMeta {
            name: Some(plan.subdomain().to_owned()),
            namespace: plan.meta.namespace.clone(),
            owner_references: Some(vec![controller_reference(API_VERSION, KIND, plan.meta)]),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            selector: Some(selector),
            publish_not_ready_addresses: Some(early.unwrap_or(true)),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}
