//! Reads a training job's spec: sets defaults, reads replicas as roles, and refuses an invalid spec
//! with its field. All later code works on a [`ParsedTrainingJob`].

use std::fmt;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::failure::OnFailure;
use resources::kinds::{CleanPodPolicy, ReplicaSpec, RestartPolicy, SchedulingPolicy};
use resources::names::ON_FAILURE;
use resources::numbers::{GANG_MEMBERS_MAX, later};
use resources::training::{MPI_JOB, ReplicaType, TrainingKind, XGBOOST_JOB};

use super::view::{Details, ElasticBounds, TrainingJobView};

/// The `managedBy` values for which this controller works, as it does if the field is absent.
const MANAGED_BY: [&str; 2] = [
    "kubeflow.org/training-operator",
    "kubeflow.org/mpi-operator",
];

/// The restarts of an MPIJob's launcher, if the job does not limit them: those of the Job by which the MPI operator runs
/// it.
const LAUNCHER_BACKOFF: u32 = 6;

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
    kind: &'static TrainingKind,
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

    /// The container that runs the training: the one with the kind's name, else the first.
    pub(crate) fn main_container(&self) -> Option<&'a Container> {
        let containers = self.containers();
        containers
            .iter()
            .find(|container| container.name == self.kind.container)
            .or_else(|| containers.first())
    }

    pub(crate) fn main_container_name(&self) -> &'a str {
        self.main_container()
            .map_or(self.kind.container, |container| container.name.as_str())
    }

    /// The port that a container gives the kind's port name, which the user chose.
    pub(crate) fn named_port(&self) -> Option<u16> {
        let main = self.main_container();
        let ports = main
            .into_iter()
            .chain(self.containers())
            .flat_map(|container| container.ports.iter().flatten());
        ports
            .filter(|port| port.name.as_deref() == Some(self.kind.port_name))
            .find_map(|port| u16::try_from(port.container_port).ok())
    }
}

/// The bounds of an elastic job's workers.
#[derive(Clone, Copy)]
pub(crate) struct Elastic {
    pub(crate) min: u32,
    pub(crate) max: u32,
}

/// A job's parsed spec.
pub(crate) struct ParsedTrainingJob<'a> {
    pub(crate) meta: &'a ObjectMeta,
    pub(crate) kind: &'static TrainingKind,
    pub(crate) job: TrainingJobView<'a>,
    /// In the order of ranks.
    pub(crate) replicas: Vec<Replicas<'a>>,
    pub(crate) elastic: Option<Elastic>,
    /// What follows a failure by its class, if the job says it.
    pub(crate) on_failure: Option<OnFailure>,
}

impl<'a> ParsedTrainingJob<'a> {
    /// Reads the spec, or returns the invalid field.
    pub(crate) fn of(job: TrainingJobView<'a>) -> Result<ParsedTrainingJob<'a>, InvalidJob> {
        let kind = job.kind;
        let field = kind.replicas_field;
        let mut roles: Vec<(ReplicaType, &ReplicaSpec)> = Vec::new();
        for (key, replica) in job.replica_specs {
            let role = kind.role(key).ok_or_else(|| {
                InvalidJob(format!(
                    "spec.{field}: {key:?} is not a replica type; use {}",
                    kind.roles
                        .iter()
                        .map(|role| role.key())
                        .collect::<Vec<_>>()
                        .join(" and ")
                ))
            })?;
            if roles.iter().any(|(known, _)| *known == role) {
                return Err(InvalidJob(format!(
                    "spec.{field}: {} occurs twice; write it once",
                    role.key()
                )));
            }
            roles.push((role, replica));
        }
        roles.sort_by_key(|(role, _)| *role);
        if roles.is_empty() {
            let roles: Vec<&str> = kind.roles.iter().map(|role| role.key()).collect();
            return Err(InvalidJob(format!(
                "spec.{field}: give at least one of {}",
                roles.join(", ")
            )));
        }
        let has = |wanted: ReplicaType| roles.iter().any(|(role, _)| *role == wanted);
        if has(ReplicaType::Chief) && has(ReplicaType::Master) {
            return Err(InvalidJob(format!(
                "spec.{field}: Chief and Master are two names of one role; use one of them"
            )));
        }
        if kind.kind == MPI_JOB.kind && !has(ReplicaType::Launcher) {
            return Err(InvalidJob(format!(
                "spec.{field}: give a Launcher: it runs mpirun"
            )));
        }
        if kind.kind == XGBOOST_JOB.kind && !has(ReplicaType::Master) {
            return Err(InvalidJob(format!(
                "spec.{field}: give a Master: it runs the tracker"
            )));
        }
        let asked_workers = roles
            .iter()
            .find(|(role, _)| *role == ReplicaType::Worker)
            .and_then(|(_, replica)| replica.replicas);
        let elastic = match job.elastic {
            Some(bounds) => Some(read_elastic(bounds, asked_workers)?),
            None => None,
        };
        let replicas = roles
            .into_iter()
            .map(|(role, replica)| read_replicas(kind, role, replica, elastic.as_ref()))
            .collect::<Result<Vec<_>, _>>()?;
        let plan = ParsedTrainingJob {
            meta: job.metadata,
            kind,
            job,
            replicas,
            elastic,
            on_failure: read_policy(job.metadata)?,
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
            "spec.{}: the job would have {total} pods; it may have at most {GANG_MEMBERS_MAX}: \
             lower Worker.replicas, or spec.elasticPolicy.minReplicas of an elastic job",
            self.kind.replicas_field
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
        role.pod_name(self.name(), index)
    }

    /// The first replica: the one that the others connect to, and that leads where one leads.
    pub(crate) fn first(&self) -> Option<ReplicaType> {
        self.replicas.first().map(|replicas| replicas.role)
    }

    /// Whether a worker that failed for good does not fail the job: a TFJob's workers that come and go.
    pub(crate) fn workers_may_fail(&self) -> bool {
        matches!(self.job.details, Details::TensorFlow { dynamic: true, .. })
    }

    /// The rank of a replica: its place among all replicas, in the order of ranks.
    pub(crate) fn rank(&self, role: ReplicaType, index: u32) -> u32 {
        let before = self.replicas.iter().filter(|replicas| replicas.role < role);
        before
            .map(|replicas| replicas.count)
            .fold(index, u32::saturating_add)
    }

    pub(crate) fn suspended(&self) -> bool {
        self.job.run_policy.suspend == Some(true)
    }

    /// MPI's workers do not end by themselves: unless the policy says otherwise, they go when the job has ended.
    pub(crate) fn clean_pods(&self) -> CleanPodPolicy {
        let default = match self.job.details {
            Details::Mpi(spec) => spec.clean_pod_policy.unwrap_or(CleanPodPolicy::Running),
            _ => CleanPodPolicy::None,
        };
        self.job.run_policy.clean_pod_policy.unwrap_or(default)
    }

    pub(crate) fn backoff_limit(&self) -> Option<u32> {
        let limit = self.job.run_policy.backoff_limit;
        let given = limit.map(|limit| u32::try_from(limit).unwrap_or_default());
        let default = matches!(self.job.details, Details::Mpi(_)).then_some(LAUNCHER_BACKOFF);
        given.or(default)
    }

    pub(crate) fn scheduling(&self) -> Option<&'a SchedulingPolicy> {
        self.job.run_policy.scheduling_policy.as_ref()
    }

    /// When the job exceeds its deadline, given its start.
    pub(crate) fn deadline(&self, started: Timestamp) -> Option<Timestamp> {
        let seconds = self.job.run_policy.active_deadline_seconds?;
        Some(later(started, seconds))
    }

    /// When a job that finished then is deleted.
    pub(crate) fn expiry(&self, finished: Timestamp) -> Option<Timestamp> {
        let seconds = self.job.run_policy.ttl_seconds_after_finished?;
        Some(later(finished, i64::from(seconds)))
    }
}

/// Whether `managedBy` names another controller for this job.
pub(crate) fn managed_elsewhere(job: &TrainingJobView<'_>) -> bool {
    let manager = job.run_policy.managed_by.as_deref();
    manager.is_some_and(|manager| !MANAGED_BY.contains(&manager))
}

/// Admission checks the annotation where Muster serves the API; in a Kubernetes cluster the job is refused here.
fn read_policy(metadata: &ObjectMeta) -> Result<Option<OnFailure>, InvalidJob> {
    let annotations = metadata.annotations.as_ref();
    let text = annotations.and_then(|all| all.get(ON_FAILURE));
    let policy = text.map(|text| OnFailure::parse(text)).transpose();
    policy.map_err(|error| InvalidJob(format!("metadata.annotations[{ON_FAILURE}]: {error}")))
}

fn read_elastic(bounds: ElasticBounds, asked: Option<i32>) -> Result<Elastic, InvalidJob> {
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
    let min = bound("minReplicas", bounds.min)?;
    let max = bound("maxReplicas", bounds.max)?;
    let min = min
        .or(asked.map(|count| max.map_or(count, |max| count.min(max))))
        .unwrap_or(1);
    let max = max.unwrap_or_else(|| asked.unwrap_or(min).max(min));
    if min > max {
        return Err(InvalidJob(format!(
            "spec.elasticPolicy.minReplicas: {min} must not exceed maxReplicas, which is {max}"
        )));
    }
    Ok(Elastic { min, max })
}

fn read_replicas<'a>(
    kind: &'static TrainingKind,
    role: ReplicaType,
    spec: &'a ReplicaSpec,
    elastic: Option<&Elastic>,
) -> Result<Replicas<'a>, InvalidJob> {
    let field = format!("spec.{}.{}", kind.replicas_field, role.key());
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
    if role.is_single() && count != 1 {
        return Err(InvalidJob(format!(
            "{field}.replicas: a job has one {}; must be 1, not {count}",
            role.lower()
        )));
    }
    let replicas = Replicas {
        kind,
        role,
        count,
        restart: spec.restart_policy.unwrap_or(kind.default_restart(role)),
        template: &spec.template,
    };
    if replicas.main_container().is_none() {
        return Err(InvalidJob(format!(
            "{field}.template.spec.containers: give at least one container"
        )));
    }
    Ok(replicas)
}
