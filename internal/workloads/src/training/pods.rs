//! Creates a replica's pod from its template.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::kinds::RestartPolicy;
use resources::names;
use resources::training::{ReplicaType, TrainingKind};

use super::environment;
use super::mpi;
use super::plan::{ParsedTrainingJob, Replicas};
use super::recovery::{self, Recovery};
use super::rendezvous::{Network, Ports};
use super::view::Details;
use crate::failure;
use crate::ownership::controller_reference;
use crate::terms;

/// The longest host name.
const HOSTNAME_MAX: usize = 63;

/// What a pod's definition takes from outside its job.
pub(crate) struct Surroundings<'a> {
    pub(crate) ports: &'a Ports,
    pub(crate) network: &'a Network,
    /// The scheduler that places pods whose template names none.
    pub(crate) scheduler_name: &'a str,
    /// The state of the job's recovery, if it has a policy or had one.
    pub(crate) recovery: Option<&'a Recovery>,
    /// The controller decides about every failure; the node restarts nothing.
    pub(crate) has_policy: bool,
}

impl Surroundings<'_> {
    /// The number of the attempt that the pod is part of; 0 is the first.
    pub(crate) fn attempt(&self) -> u32 {
        self.recovery.map_or(0, |recovery| recovery.attempt)
    }
}

/// The pod of one replica. A pod that replaces one `lost` with its node may use spare nodes.
pub(crate) fn pod(
    plan: &ParsedTrainingJob<'_>,
    replicas: &Replicas<'_>,
    index: u32,
    lost: bool,
    surroundings: &Surroundings<'_>,
) -> Pod {
    let name = plan.pod_name(replicas.role, index);
    let template = replicas.template;
    let template_meta = template.metadata.clone().unwrap_or_default();
    let mut spec = template.spec.clone().unwrap_or_default();
    let variables = environment::variables(plan, replicas.role, index, surroundings);
    for container in &mut spec.containers {
        environment::add(container, &variables);
    }
    failure::report_log_end(&mut spec.containers);
    if spec.hostname.is_none() && name.len() <= HOSTNAME_MAX {
        spec.hostname = Some(name.clone());
    }
    if spec
        .scheduler_name
        .as_deref()
        .unwrap_or_default()
        .is_empty()
    {
        spec.scheduler_name = Some(surroundings.scheduler_name.to_owned());
    }
    let restarts = match surroundings.has_policy {
        true => RestartPolicy::Never,
        false => replicas.restart,
    };
    spec.restart_policy = Some(pod_restart_policy(restarts).to_owned());
    if let Some(recovery) = surroundings.recovery {
        recovery::keep_off(&mut spec, &recovery.excluded);
    }

    let mut labels = template_meta.labels.unwrap_or_default();
    labels.extend(replica_labels(plan, replicas.role, index));
    if lost {
        labels.insert(names::REPLACES_LOST.to_owned(), "true".to_owned());
    }
    if surroundings.recovery.is_some() {
        labels.insert(
            names::ATTEMPT.to_owned(),
            surroundings.attempt().to_string(),
        );
    }
    let mut annotations = template_meta.annotations.unwrap_or_default();
    annotations.insert(names::GROUP_NAME.to_owned(), plan.name().to_owned());
    annotations.insert(
        names::TASK_SPEC.to_owned(),
        replicas.role.lower().to_owned(),
    );
    if let Some(settings) = mpi::Settings::of(plan, surroundings.network) {
        mpi::prepare(plan, &settings, replicas, &mut spec, &mut annotations);
    }
    terms::run_for(plan.meta, &mut labels, &mut annotations);
    Pod {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: plan.meta.namespace.clone(),
            labels: Some(labels),
            annotations: Some(annotations),
            finalizers: template_meta.finalizers,
            owner_references: Some(vec![controller_reference(
                &plan.kind.api_version(),
                plan.kind.kind,
                plan.meta,
            )]),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    }
}

/// The labels that every pod of a replica type carries.
pub(crate) fn role_labels(
    kind: &TrainingKind,
    job: &str,
    role: ReplicaType,
) -> BTreeMap<String, String> {
    [
        (names::JOB_NAME, job),
        (names::OPERATOR_NAME, kind.operator),
        (names::REPLICA_TYPE, role.lower()),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .collect()
}

/// The labels that select one replica.
pub(crate) fn replica_labels(
    plan: &ParsedTrainingJob<'_>,
    role: ReplicaType,
    index: u32,
) -> BTreeMap<String, String> {
    let mut labels = role_labels(plan.kind, plan.name(), role);
    labels.insert(names::REPLICA_INDEX.to_owned(), index.to_string());
    if leads(plan, role, index) {
        labels.insert(names::JOB_ROLE.to_owned(), "master".to_owned());
    }
    labels
}

/// Whether a replica carries the label of the leading one: the chief or master, and the first worker of a TFJob that has
/// neither. The training operator labels no worker of the other kinds.
fn leads(plan: &ParsedTrainingJob<'_>, role: ReplicaType, index: u32) -> bool {
    let first_worker = matches!(plan.job.details, Details::TensorFlow { .. })
        && plan.first() == Some(ReplicaType::Worker)
        && (role, index) == (ReplicaType::Worker, 0);
    role.is_single() || first_worker
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
