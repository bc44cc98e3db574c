//! Creates a replica's pod from its template.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::kinds::RestartPolicy;
use resources::names;

use super::environment;
use super::plan::{ParsedPyTorchJob, ReplicaType, Replicas};
use super::rendezvous::Ports;
use super::{API_VERSION, KIND};
use crate::ownership::controller_reference;
use crate::terms;

/// The longest host name.
const HOSTNAME_MAX: usize = 63;

/// The pod of one replica. A pod that replaces one `lost` with its node may use spare nodes.
pub(crate) fn pod(
    plan: &ParsedPyTorchJob<'_>,
    replicas: &Replicas<'_>,
    index: u32,
    ports: &Ports,
    lost: bool,
    scheduler_name: &str,
) -> Pod {
    let name = plan.pod_name(replicas.role, index);
    let template = replicas.template;
    let template_meta = template.metadata.clone().unwrap_or_default();
    let mut spec = template.spec.clone().unwrap_or_default();
    let variables = environment::variables(plan, replicas.role, index, ports);
    for container in &mut spec.containers {
        environment::add(container, &variables);
    }
    if spec.hostname.is_none() && name.len() <= HOSTNAME_MAX {
        spec.hostname = Some(name.clone());
    }
    if spec
        .scheduler_name
        .as_deref()
        .unwrap_or_default()
        .is_empty()
    {
        spec.scheduler_name = Some(scheduler_name.to_owned());
    }
    spec.restart_policy = Some(pod_restart_policy(replicas.restart).to_owned());

    let mut labels = template_meta.labels.unwrap_or_default();
    labels.extend(replica_labels(plan, replicas.role, index));
    if lost {
        labels.insert(names::REPLACES_LOST.to_owned(), "true".to_owned());
    }
    let mut annotations = template_meta.annotations.unwrap_or_default();
    annotations.insert(names::GROUP_NAME.to_owned(), plan.name().to_owned());
    annotations.insert(
        names::TASK_SPEC.to_owned(),
        replicas.role.lower().to_owned(),
    );
    terms::run_for(plan.meta, &mut labels, &mut annotations);
    Pod {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: plan.meta.namespace.clone(),
            labels: Some(labels),
            annotations: Some(annotations),
            finalizers: template_meta.finalizers,
            owner_references: Some(vec![controller_reference(API_VERSION, KIND, plan.meta)]),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    }
}

/// The labels that every pod of a replica type carries.
pub(crate) fn role_labels(job: &str, role: ReplicaType) -> BTreeMap<String, String> {
    [
        (names::JOB_NAME, job),
        (names::OPERATOR_NAME, names::PYTORCH_OPERATOR),
        (names::REPLICA_TYPE, role.lower()),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .collect()
}

/// The labels that select one replica.
pub(crate) fn replica_labels(
    plan: &ParsedPyTorchJob<'_>,
    role: ReplicaType,
    index: u32,
) -> BTreeMap<String, String> {
    let mut labels = role_labels(plan.name(), role);
    labels.insert(names::REPLICA_INDEX.to_owned(), index.to_string());
    if role == ReplicaType::Master {
        labels.insert(names::JOB_ROLE.to_owned(), "master".to_owned());
    }
    labels
}

/// The kubelet's action when a container ends. Under `ExitCode` the controller decides, so the
/// kubelet must not restart anything.
fn pod_restart_policy(policy: RestartPolicy) -> &'static str {
    match policy {
        RestartPolicy::Always => "Always",
        RestartPolicy::OnFailure => "OnFailure",
        RestartPolicy::Never | RestartPolicy::ExitCode => "Never",
    }
}
