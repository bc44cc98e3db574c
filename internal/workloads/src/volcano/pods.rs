//! Creates a task's pod, the svc plugin's Service and ConfigMap, and the job's own claims.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    ConfigMap, ConfigMapVolumeSource, Container, EnvVar, PersistentVolumeClaim,
    PersistentVolumeClaimVolumeSource, Pod, Service, ServicePort, ServiceSpec, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use resources::names;

use super::plan::{ParsedVolcanoJob, Task};
use super::plugins::{self, Ssh};
use super::{API_VERSION, JOB_NAME, JOB_NAMESPACE, KIND, QUEUE, RETRY_COUNT, TASK_INDEX, VERSION};
use crate::failure;
use crate::ownership::controller_reference;
use crate::terms;

/// The longest host name.
const HOSTNAME_MAX: usize = 63;
/// Where the svc plugin's files are.
const FILES: &str = "/etc/volcano";

/// The settings that apply to all pods of one reconciliation.
pub(crate) struct PodSettings<'a> {
    pub(crate) version: i32,
    pub(crate) retries: i32,
    /// Whether pods share their node's address.
    pub(crate) shared: bool,
    /// The first of the job's ports there.
    pub(crate) port: Option<u16>,
    pub(crate) scheduler_name: &'a str,
}

fn owner(plan: &ParsedVolcanoJob<'_>) -> Vec<OwnerReference> {
    vec![controller_reference(API_VERSION, KIND, plan.meta)]
}

/// The metadata of an object of the job with this name.
pub(crate) fn metadata(plan: &ParsedVolcanoJob<'_>, name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: plan.meta.namespace.clone(),
        owner_references: Some(owner(plan)),
        ..ObjectMeta::default()
    }
}

/// The labels that select all pods of a job.
fn job_labels(plan: &ParsedVolcanoJob<'_>) -> BTreeMap<String, String> {
    let namespace = plan.meta.namespace.clone().unwrap_or_default();
    BTreeMap::from([
        (JOB_NAME.to_owned(), plan.name().to_owned()),
        (JOB_NAMESPACE.to_owned(), namespace),
    ])
}

/// The pod of one replica.
pub(crate) fn pod(
    plan: &ParsedVolcanoJob<'_>,
    task: &Task<'_>,
    index: u32,
    settings: &PodSettings<'_>,
) -> Pod {
    let name = plan.pod_name(task, index);
    let template_meta = task.template.metadata.clone().unwrap_or_default();
    let mut spec = task.template.spec.clone().unwrap_or_default();
    let variables = plan
        .plugins
        .variables(plan, task, index, settings.shared, settings.port);
    let inits = spec.init_containers.iter_mut().flatten();
    for container in inits.chain(&mut spec.containers) {
        add_variables(container, &variables);
    }
    failure::report_log_end(&mut spec.containers);
    for (number, volume) in plan.spec.volumes.iter().flatten().enumerate() {
        let claim = claim_name(plan, number, volume.volume_claim_name.as_deref());
        let source = Volume {
            name: format!("volcano-job-volume-{number}"),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim,
                read_only: None,
            }),
            ..Volume::default()
        };
        mount(
            &mut spec.volumes,
            &mut spec.containers,
            source,
            &volume.mount_path,
        );
    }
    if plan.plugins.svc() {
        if name.len() <= HOSTNAME_MAX {
            spec.hostname.get_or_insert_with(|| name.clone());
        }
        spec.subdomain.get_or_insert_with(|| plan.name().to_owned());
        let source = Volume {
            name: files_name(plan),
            config_map: Some(ConfigMapVolumeSource {
                name: files_name(plan),
                ..ConfigMapVolumeSource::default()
            }),
            ..Volume::default()
        };
        mount(&mut spec.volumes, &mut spec.containers, source, FILES);
    }
    if let Some(ssh) = plan.plugins.ssh(settings.shared) {
        let inits = spec.init_containers.iter_mut().flatten();
        let containers = inits.chain(&mut spec.containers);
        let path = ssh.path(settings.shared);
        mount(&mut spec.volumes, containers, Ssh::volume(plan), path);
    }
    let empty = |text: &Option<String>| text.as_deref().unwrap_or_default().is_empty();
    if empty(&spec.scheduler_name) {
        let own = plan
            .spec
            .scheduler_name
            .clone()
            .filter(|name| !name.is_empty());
        spec.scheduler_name = Some(own.unwrap_or_else(|| settings.scheduler_name.to_owned()));
    }
    if empty(&spec.priority_class_name) {
        spec.priority_class_name = plan.spec.priority_class_name.clone();
    }
    // Volcano's own default: a batch pod that has succeeded is not started again.
    if empty(&spec.restart_policy) {
        spec.restart_policy = Some("OnFailure".to_owned());
    }

    let number = index.to_string();
    let queue = plan.queue();
    let mut labels = template_meta.labels.unwrap_or_default();
    labels.extend(job_labels(plan));
    let mut annotations = template_meta.annotations.unwrap_or_default();
    for (name, value) in [
        (names::TASK_SPEC, task.name.as_str()),
        (TASK_INDEX, number.as_str()),
        (VERSION, settings.version.to_string().as_str()),
        (QUEUE, queue.as_str()),
    ] {
        labels.insert(name.to_owned(), value.to_owned());
        annotations.insert(name.to_owned(), value.to_owned());
    }
    annotations.insert(RETRY_COUNT.to_owned(), settings.retries.to_string());
    annotations.insert(names::GROUP_NAME.to_owned(), plan.name().to_owned());
    if let Some(mpi) = plan.plugins.mpi() {
        mpi.prepare(plan, task, settings.shared, &mut spec, &mut annotations);
    }
    terms::run_for(plan.meta, &mut labels, &mut annotations);
    Pod {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: plan.meta.namespace.clone(),
            labels: Some(labels),
            annotations: Some(annotations),
            finalizers: template_meta.finalizers,
            owner_references: Some(owner(plan)),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    }
}

/// Variables that the container sets itself stand.
fn add_variables(container: &mut Container, variables: &[(String, String)]) {
    if variables.is_empty() {
        return;
    }
    let own = container.env.get_or_insert_default();
    for (name, value) in variables {
        if own.iter().all(|one| one.name != *name) {
            own.push(EnvVar {
                name: name.clone(),
                value: Some(value.clone()),
                value_from: None,
            });
        }
    }
}

/// Gives the pod a volume, which these containers see at a path.
pub(crate) fn mount<'a>(
    volumes: &mut Option<Vec<Volume>>,
    containers: impl IntoIterator<Item = &'a mut Container>,
    source: Volume,
    path: &str,
) {
    for container in containers {
        let mounts = container.volume_mounts.get_or_insert_default();
        if mounts.iter().all(|one| one.mount_path != path) {
            mounts.push(VolumeMount {
                name: source.name.clone(),
                mount_path: path.to_owned(),
                ..VolumeMount::default()
            });
        }
    }
    volumes.get_or_insert_default().push(source);
}

/// The claim of a volume: the one that it names, or the one that is created for it.
fn claim_name(plan: &ParsedVolcanoJob<'_>, number: usize, given: Option<&str>) -> String {
    let given = given.filter(|name| !name.is_empty());
    given.map_or_else(|| format!("{}-volume-{number}", plan.name()), str::to_owned)
}

/// The claims to create for volumes that describe one.
pub(crate) fn claims(plan: &ParsedVolcanoJob<'_>) -> Vec<PersistentVolumeClaim> {
    let volumes = plan.spec.volumes.iter().flatten().enumerate();
    let claims = volumes.filter_map(|(number, volume)| {
        Some(PersistentVolumeClaim {
            metadata: ObjectMeta {
                name: Some(claim_name(
                    plan,
                    number,
                    volume.volume_claim_name.as_deref(),
                )),
                namespace: plan.meta.namespace.clone(),
                owner_references: Some(owner(plan)),
                ..ObjectMeta::default()
            },
            spec: Some(volume.volume_claim.clone()?),
            status: None,
        })
    });
    claims.collect()
}

fn files_name(plan: &ParsedVolcanoJob<'_>) -> String {
    format!("{}-svc", plan.name())
}

/// The ConfigMap with the tasks' hosts.
pub(crate) fn files(plan: &ParsedVolcanoJob<'_>) -> ConfigMap {
    ConfigMap {
        metadata: metadata(plan, &files_name(plan)),
        data: Some(plugins::files(plan)),
        ..ConfigMap::default()
    }
}

/// The headless Service that makes the pods known by `<pod>.<job>`.
pub(crate) fn service(plan: &ParsedVolcanoJob<'_>) -> Service {
    Service {
        metadata: ObjectMeta {
            name: Some(plan.name().to_owned()),
            namespace: plan.meta.namespace.clone(),
            labels: Some(job_labels(plan)),
            owner_references: Some(owner(plan)),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            selector: Some(job_labels(plan)),
            // A Service has a port; none is reached through a headless one.
            ports: Some(vec![ServicePort {
                name: Some("placeholder-volcano".to_owned()),
                port: 1,
                ..ServicePort::default()
            }]),
            publish_not_ready_addresses: Some(true),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}
