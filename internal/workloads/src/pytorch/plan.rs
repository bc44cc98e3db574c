//! Reads a PyTorchJob's spec: sets defaults, reads replicas as roles, and refuses an invalid spec
//! with its field. All later code works on a [`ParsedPyTorchJob`].

use std::fmt;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use resources::kinds::{
    CleanPodPolicy, ElasticPolicy, PyTorchJob, ReplicaSpec, RestartPolicy, SchedulingPolicy,
};
use resources::names;
use resources::numbers::{GANG_MEMBERS_MAX, later};

/// The container that runs the training, if a pod has several.
pub(crate) const MAIN_CONTAINER: &str = "pytorch";
/// The `managedBy` value for which this controller works, as it does if the field is absent.
const MANAGED_BY: &str = "kubeflow.org/training-operator";

/// A replica type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ReplicaType {
    Master,
    Worker,
}

impl ReplicaType {
    /// The role as a key of the spec and the status.
    pub(crate) fn key(self) -> &'static str {
        match self {
            ReplicaType::Master => "Master",
            ReplicaType::Worker => "Worker",
        }
    }

    /// The role in names and labels.
    pub(crate) fn lower(self) -> &'static str {
        match self {
            ReplicaType::Master => "master",
            ReplicaType::Worker => "worker",
        }
    }

    fn named(key: &str) -> Option<ReplicaType> {
        [ReplicaType::Master, ReplicaType::Worker]
            .into_iter()
            .find(|role| role.key().eq_ignore_ascii_case(key))
    }
}

/// Why a job cannot run: the field and its accepted values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InvalidJob(pub(crate) String);

impl fmt::Display for InvalidJob {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.0)
    }
}

/// One replica type of the job.
pub(crate) struct Replicas<'a> {
    pub(crate) role: ReplicaType,
    pub(crate) count: u32,
    pub(crate) restart: RestartPolicy,
    pub(crate) template: &'a PodTemplateSpec,
}

impl<'a> Replicas<'a> {
    fn containers(&self) -> &'a [Container] {
        self.template
            .spec
            .as_ref()
            .map_or(&[], |spec| spec.containers.as_slice())
    }

    /// The container that runs the training: the one named `pytorch`, else the first.
    pub(crate) fn main_container(&self) -> Option<&'a Container> {
        let containers = self.containers();
        containers
            .iter()
            .find(|container| container.name == MAIN_CONTAINER)
            .or_else(|| containers.first())
    }

    pub(crate) fn main_container_name(&self) -> &'a str {
        self.main_container()
            .map_or(MAIN_CONTAINER, |container| container.name.as_str())
    }

    /// The port that a container names `pytorchjob-port`, which the user chose.
    pub(crate) fn named_port(&self) -> Option<u16> {
        let main = self.main_container();
        let ports = main
            .into_iter()
            .chain(self.containers())
            .flat_map(|container| container.ports.iter().flatten());
        ports
            .filter(|port| port.name.as_deref() == Some(names::PYTORCH_PORT_NAME))
            .find_map(|port| u16::try_from(port.container_port).ok())
    }
}

/// The bounds of an elastic job's workers.
pub(crate) struct Elastic<'a> {
    pub(crate) policy: &'a ElasticPolicy,
    pub(crate) min: u32,
    pub(crate) max: u32,
}

/// A job's parsed spec.
pub(crate) struct ParsedPyTorchJob<'a> {
    pub(crate) meta: &'a ObjectMeta,
    pub(crate) job: &'a PyTorchJob,
    /// Master before Worker.
    pub(crate) replicas: Vec<Replicas<'a>>,
    pub(crate) elastic: Option<Elastic<'a>>,
}

impl<'a> ParsedPyTorchJob<'a> {
    /// Reads the spec, or returns the invalid field.
    pub(crate) fn of(job: &'a PyTorchJob) -> Result<ParsedPyTorchJob<'a>, InvalidJob> {
        let spec = &job.spec;
        let mut roles: Vec<(ReplicaType, &ReplicaSpec)> = Vec::new();
        for (key, replica) in &spec.pytorch_replica_specs {
            let role = ReplicaType::named(key).ok_or_else(|| {
                InvalidJob(format!(
                    "spec.pytorchReplicaSpecs: {key:?} is not a replica type; use Master and Worker"
                ))
            })?;
            if roles.iter().any(|(known, _)| *known == role) {
                return Err(InvalidJob(format!(
                    "spec.pytorchReplicaSpecs: {} occurs twice; write it once",
                    role.key()
                )));
            }
            roles.push((role, replica));
        }
        roles.sort_by_key(|(role, _)| *role);
        if roles.is_empty() {
            return Err(InvalidJob(
                "spec.pytorchReplicaSpecs: give a Master, a Worker, or both".to_owned(),
            ));
        }
        let asked_workers = roles
            .iter()
            .find(|(role, _)| *role == ReplicaType::Worker)
            .and_then(|(_, replica)| replica.replicas);
        let elastic = match &spec.elastic_policy {
            Some(policy) => Some(read_elastic(policy, asked_workers)?),
            None => None,
        };
        let replicas = roles
            .into_iter()
            .map(|(role, replica)| read_replicas(role, replica, elastic.as_ref()))
            .collect::<Result<Vec<_>, _>>()?;
        let plan = ParsedPyTorchJob {
            meta: &job.metadata,
            job,
            replicas,
            elastic,
        };
        plan.check_size()?;
        Ok(plan)
    }

    /// Refuses a job with more pods than a gang may have: the cost of all later code is
    /// proportional to the pods.
    fn check_size(&self) -> Result<(), InvalidJob> {
        let total = self.total();
        if i64::from(total) <= GANG_MEMBERS_MAX {
            return Ok(());
        }
        Err(InvalidJob(format!(
            "spec.pytorchReplicaSpecs: the job would have {total} pods; it may have at most {GANG_MEMBERS_MAX}: \
             lower Worker.replicas, or spec.elasticPolicy.minReplicas of an elastic job"
        )))
    }

    pub(crate) fn name(&self) -> &'a str {
        self.meta.name.as_deref().unwrap_or_default()
    }

    pub(crate) fn replicas_of(&self, role: ReplicaType) -> Option<&Replicas<'a>> {
        self.replicas.iter().find(|replicas| replicas.role == role)
    }

    pub(crate) fn has_master(&self) -> bool {
        self.replicas_of(ReplicaType::Master).is_some()
    }

    pub(crate) fn total(&self) -> u32 {
        self.replicas
            .iter()
            .map(|replicas| replicas.count)
            .fold(0, u32::saturating_add)
    }

    /// The pod (and service) of a replica.
    pub(crate) fn pod_name(&self, role: ReplicaType, index: u32) -> String {
        format!("{}-{}-{index}", self.name(), role.lower())
    }

    /// `nprocPerNode` as passed to torchrun: a number, `auto`, `cpu` or `gpu`.
    pub(crate) fn processes(&self) -> String {
        let elastic = self
            .elastic
            .as_ref()
            .and_then(|elastic| elastic.policy.n_proc_per_node);
        match (elastic, &self.job.spec.nproc_per_node) {
            (Some(number), _) => number.to_string(),
            (None, Some(IntOrString::Int(number))) => number.to_string(),
            (None, Some(IntOrString::String(text))) if !text.is_empty() => text.clone(),
            (None, _) => "auto".to_owned(),
        }
    }

    /// `nprocPerNode` as a factor of the world's size: words count as one.
    pub(crate) fn processes_counted(&self) -> u32 {
        self.processes().parse().unwrap_or(1)
    }

    pub(crate) fn suspended(&self) -> bool {
        self.job.spec.run_policy.suspend == Some(true)
    }

    pub(crate) fn clean_pods(&self) -> CleanPodPolicy {
        self.job
            .spec
            .run_policy
            .clean_pod_policy
            .unwrap_or_default()
    }

    pub(crate) fn backoff_limit(&self) -> Option<u32> {
        let limit = self.job.spec.run_policy.backoff_limit?;
        Some(u32::try_from(limit).unwrap_or_default())
    }

    pub(crate) fn scheduling(&self) -> Option<&'a SchedulingPolicy> {
        self.job.spec.run_policy.scheduling_policy.as_ref()
    }

    /// When the job exceeds its deadline, given its start.
    pub(crate) fn deadline(&self, started: Timestamp) -> Option<Timestamp> {
        let seconds = self.job.spec.run_policy.active_deadline_seconds?;
        Some(later(started, seconds))
    }

    /// When a job that finished then is deleted.
    pub(crate) fn expiry(&self, finished: Timestamp) -> Option<Timestamp> {
        let seconds = self.job.spec.run_policy.ttl_seconds_after_finished?;
        Some(later(finished, i64::from(seconds)))
    }
}

/// Whether `managedBy` names another controller for this job.
pub(crate) fn managed_elsewhere(job: &PyTorchJob) -> bool {
    let manager = job.spec.run_policy.managed_by.as_deref();
    manager.is_some_and(|manager| manager != MANAGED_BY)
}

fn read_elastic(policy: &ElasticPolicy, asked: Option<i32>) -> Result<Elastic<'_>, InvalidJob> {
    let bound = |field: &str, value: Option<i32>| -> Result<Option<u32>, InvalidJob> {
        match value.map(u32::try_from) {
            None => Ok(None),
            Some(Ok(count)) if count > 0 => Ok(Some(count)),
            Some(_) => Err(InvalidJob(format!(
                "spec.elasticPolicy.{field}: must be greater than or equal to 1"
            ))),
        }
    };
    let asked = asked.and_then(|count| u32::try_from(count).ok());
    let min = bound("minReplicas", policy.min_replicas)?;
    let max = bound("maxReplicas", policy.max_replicas)?;
    let min = min
        .or(asked.map(|count| max.map_or(count, |max| count.min(max))))
        .unwrap_or(1);
    let max = max.unwrap_or_else(|| asked.unwrap_or(min).max(min));
    if min > max {
        return Err(InvalidJob(format!(
            "spec.elasticPolicy.minReplicas: {min} must not exceed maxReplicas, which is {max}"
        )));
    }
    Ok(Elastic { policy, min, max })
}

fn read_replicas<'a>(
    role: ReplicaType,
    spec: &'a ReplicaSpec,
    elastic: Option<&Elastic<'_>>,
) -> Result<Replicas<'a>, InvalidJob> {
    let field = format!("spec.pytorchReplicaSpecs.{}", role.key());
    let asked = match spec.replicas.map(u32::try_from) {
        None => None,
        Some(Ok(count)) => Some(count),
        Some(Err(_)) => {
            return Err(InvalidJob(format!(
                "{field}.replicas: must not be negative"
            )));
        }
    };
    let count = match (role, elastic) {
        (ReplicaType::Worker, Some(elastic)) => {
            asked.unwrap_or(elastic.min).clamp(elastic.min, elastic.max)
        }
        _ => asked.unwrap_or(1),
    };
    if role == ReplicaType::Master && count != 1 {
        return Err(InvalidJob(format!(
            "{field}.replicas: a job has one master; must be 1, not {count}"
        )));
    }
    let replicas = Replicas {
        role,
        count,
        restart: spec.restart_policy.unwrap_or_default(),
        template: &spec.template,
    };
    if replicas.main_container().is_none() {
        return Err(InvalidJob(format!(
            "{field}.template.spec.containers: give at least one container"
        )));
    }
    Ok(replicas)
}
