//! The objects that a RayJob creates: its cluster, in SidecarMode with the container that submits the program and follows
//! it, and else the Job that does.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::{
    Job, JobSpec, PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyRule,
};
use k8s_openapi::api::core::v1::{Container, EnvVar, PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::kinds::RayCluster;
use resources::names;
use serde_json::{Value, json};

use super::plan::{ParsedRayJob, SubmissionMode};
use crate::ownership::controller_reference;
use crate::ray::{API_VERSION, MANAGED_BY};
use crate::terms;

/// The kind of owners.
pub(crate) const KIND: &str = "RayJob";
/// The submitting container.
pub(crate) const CONTAINER: &str = names::RAY_SUBMITTER;
/// The program that submits and follows.
const PROGRAM: &str = include_str!("submitter.py");
/// Exit codes of the submitting container that say nothing about the program: the cluster could not be asked, and the
/// container was killed or asked to stop.
pub(crate) const NOT_THE_PROGRAMS: [i32; 3] = [75, 137, 143];
/// How often the submitting pod is replaced, unless the spec has another number. KubeRay's.
const SUBMITTER_RETRIES: i32 = 2;

/// The job's own cluster of this name. In SidecarMode its head submits the program under this id.
pub(crate) fn cluster(job: &ParsedRayJob<'_>, name: &str, id: &str) -> Option<RayCluster> {
    let mut spec = job.spec.ray_cluster_spec.clone()?;
    // The job suspends by deleting the cluster.
    spec.suspend = None;
    spec.managed_by = Some(MANAGED_BY.to_owned());
    let origin = origin(job);
    let groups = spec.worker_group_specs.iter_mut().flatten();
    let workers = groups.map(|group| &mut group.template);
    let templates = spec.head_group_spec.template.iter_mut().chain(workers);
    for template in templates {
        let meta = template.metadata.get_or_insert_default();
        let labels = meta.labels.get_or_insert_default();
        labels.extend(origin.clone());
    }
    let mut annotations = terms::of_gang(job.meta);
    let queue = terms::queue(job.meta);
    annotations.extend(queue.map(|queue| (names::QUEUE_NAME.to_owned(), queue)));
    if job.mode == SubmissionMode::Sidecar {
        let template = spec.head_group_spec.template.as_mut()?;
        submit_by(template.spec.as_mut()?, job, id);
        // Another head would submit the program again.
        annotations.insert(names::RAY_KEEP_HEAD.to_owned(), "true".to_owned());
    }
    Some(RayCluster {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: job.meta.namespace.clone(),
            labels: Some(origin),
            annotations: Some(annotations),
            owner_references: Some(vec![controller_reference(API_VERSION, KIND, job.meta)]),
            ..ObjectMeta::default()
        },
        spec,
        status: None,
    })
}

/// Adds the submitting container to a head. The cluster's controller gives it the address of the dashboard, whose port
/// it chooses.
fn submit_by(head: &mut PodSpec, job: &ParsedRayJob<'_>, id: &str) {
    head.containers.retain(|known| known.name != CONTAINER);
    let mut container = head.containers.first().map(like_ray).unwrap_or_default();
    equip(&mut container, job, id);
    head.containers.push(container);
    head.restart_policy = Some("Never".to_owned());
}

/// The Job that submits the program under this id, or follows what the user submitted.
pub(crate) fn submitter(
    job: &ParsedRayJob<'_>,
    cluster: &RayCluster,
    id: &str,
    dashboard: &str,
) -> Job {
    let (mut labels, mut annotations) = (origin(job), BTreeMap::new());
    terms::inherit(job.meta, &mut labels, &mut annotations);
    let config = job.spec.submitter_config.as_ref();
    let retries = config.and_then(|config| config.backoff_limit);
    Job {
        metadata: ObjectMeta {
            name: Some(job.name().to_owned()),
            namespace: job.meta.namespace.clone(),
            labels: Some(labels),
            annotations: Some(annotations),
            owner_references: Some(vec![controller_reference(API_VERSION, KIND, job.meta)]),
            ..ObjectMeta::default()
        },
        spec: Some(JobSpec {
            backoff_limit: Some(retries.unwrap_or(SUBMITTER_RETRIES)),
            pod_failure_policy: Some(failure_policy()),
            template: template(job, cluster, id, dashboard),
            ..JobSpec::default()
        }),
        status: None,
    }
}

/// The program's own exit code ends the Job; other ends of the container count for its backoffLimit.
fn failure_policy() -> PodFailurePolicy {
    let codes = PodFailurePolicyOnExitCodesRequirement {
        container_name: Some(CONTAINER.to_owned()),
        operator: "NotIn".to_owned(),
        values: NOT_THE_PROGRAMS.to_vec(),
    };
    PodFailurePolicy {
        rules: vec![PodFailurePolicyRule {
            action: "FailJob".to_owned(),
            on_exit_codes: Some(codes),
            on_pod_conditions: None,
        }],
    }
}

fn template(
    job: &ParsedRayJob<'_>,
    cluster: &RayCluster,
    id: &str,
    dashboard: &str,
) -> PodTemplateSpec {
    let given = job.spec.submitter_pod_template.clone();
    let mut template = given.unwrap_or_else(|| like_the_head(cluster));
    let labels = template.metadata.get_or_insert_default();
    labels.labels.get_or_insert_default().extend(origin(job));
    let spec = template.spec.get_or_insert_default();
    spec.restart_policy = Some("Never".to_owned());
    if let Some(container) = spec.containers.first_mut() {
        equip(container, job, id);
        set_env(container, "RAY_DASHBOARD_ADDRESS", dashboard);
    }
    template
}

/// Makes a container submit the program, unless it has a command of its own.
fn equip(container: &mut Container, job: &ParsedRayJob<'_>, id: &str) {
    container.name = CONTAINER.to_owned();
    if container.command.as_ref().is_none_or(Vec::is_empty) {
        let command = ["python3", "-c", PROGRAM].map(str::to_owned);
        container.command = Some(command.to_vec());
        container.args = None;
    }
    set_env(container, "PYTHONUNBUFFERED", "1");
    set_env(container, "RAY_JOB_SUBMISSION_ID", id);
    set_env(container, "MUSTER_RAY_JOB", &program(job));
}

fn set_env(container: &mut Container, name: &str, value: &str) {
    let env = container.env.get_or_insert_default();
    env.retain(|known| known.name != name);
    env.push(EnvVar {
        name: name.to_owned(),
        value: Some(value.to_owned()),
        ..EnvVar::default()
    });
}

/// What the program is submitted with, as the submitter reads it.
fn program(job: &ParsedRayJob<'_>) -> String {
    let spec = job.spec;
    let entrypoint = spec.entrypoint.as_ref().filter(|_| !job.is_interactive());
    json!({
        "entrypoint": entrypoint,
        "runtimeEnvYAML": spec.runtime_env_yaml,
        "metadata": spec.metadata,
        "entrypointNumCpus": spec.entrypoint_num_cpus,
        "entrypointNumGpus": spec.entrypoint_num_gpus,
        "entrypointResources": spec.entrypoint_resources,
        // The program on a cluster of the job's own ends with the cluster.
        "stopOnTermination": job.selected.is_some(),
    })
    .to_string()
}

/// What the server posts to Ray's REST API (`POST /api/jobs/`).
pub(crate) fn request(job: &ParsedRayJob<'_>, id: &str) -> Value {
    let spec = job.spec;
    let resources = spec.entrypoint_resources.as_deref().unwrap_or_default();
    let resources: Option<BTreeMap<String, f64>> = serde_json::from_str(resources).ok();
    let members = [
        ("metadata", json!(spec.metadata)),
        ("entrypoint_num_cpus", json!(spec.entrypoint_num_cpus)),
        ("entrypoint_num_gpus", json!(spec.entrypoint_num_gpus)),
        ("entrypoint_resources", json!(resources)),
    ];
    let mut body = json!({
        "entrypoint": spec.entrypoint.as_deref().unwrap_or_default(),
        "submission_id": id,
        "runtime_env": job.runtime_env.clone().unwrap_or_else(|| json!({})),
    });
    for (name, value) in members.into_iter().filter(|(_, value)| !value.is_null()) {
        body[name] = value;
    }
    body
}

/// A pod with the image, the environment and the rights of the head's container. It requests nothing, so that it starts
/// beside a cluster that fills its queue.
fn like_the_head(cluster: &RayCluster) -> PodTemplateSpec {
    let spec = &cluster.spec;
    let head = spec.head_group_spec.template.as_ref();
    let workers = spec.worker_group_specs.iter().flatten();
    let template = head.or_else(|| workers.map(|group| &group.template).next());
    let pod = template.and_then(|template| template.spec.clone());
    let pod = pod.unwrap_or_default();
    let container = pod.containers.first().map(like_ray).unwrap_or_default();
    PodTemplateSpec {
        metadata: None,
        spec: Some(PodSpec {
            containers: vec![container],
            volumes: pod.volumes,
            image_pull_secrets: pod.image_pull_secrets,
            node_selector: pod.node_selector,
            tolerations: pod.tolerations,
            security_context: pod.security_context,
            scheduler_name: pod.scheduler_name,
            ..PodSpec::default()
        }),
    }
}

/// A container with the image, the environment and the rights of the one that runs Ray. It requests nothing.
fn like_ray(ray: &Container) -> Container {
    Container {
        image: ray.image.clone(),
        image_pull_policy: ray.image_pull_policy.clone(),
        env: ray.env.clone(),
        env_from: ray.env_from.clone(),
        working_dir: ray.working_dir.clone(),
        security_context: ray.security_context.clone(),
        volume_mounts: ray.volume_mounts.clone(),
        ..Container::default()
    }
}

fn origin(job: &ParsedRayJob<'_>) -> BTreeMap<String, String> {
    BTreeMap::from([
        (names::RAY_ORIGIN_NAME.to_owned(), job.name().to_owned()),
        (names::RAY_ORIGIN_KIND.to_owned(), KIND.to_owned()),
    ])
}
