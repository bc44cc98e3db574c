//! The variables of torch.distributed and torchrun.

use k8s_openapi::api::core::v1::EnvVar;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use resources::kinds::ElasticPolicy;
use resources::training::ReplicaType;

use super::variable;
use crate::training::plan::{Elastic, ParsedTrainingJob};
use crate::training::rendezvous::Ports;

/// torchrun's backend if the policy names none.
const DEFAULT_BACKEND: &str = "c10d";

/// What only a PyTorchJob has.
#[derive(Clone, Copy)]
pub(super) struct Settings<'a> {
    /// torchrun's elastic policy.
    pub(super) elastic: Option<&'a ElasticPolicy>,
    /// Processes per replica.
    pub(super) processes: Option<&'a IntOrString>,
    /// The number of the gang's attempt; 0 is the first.
    pub(super) attempt: u32,
}

impl Settings<'_> {
    /// `nprocPerNode` as passed to torchrun: a number, `auto`, `cpu` or `gpu`.
    fn processes(self) -> String {
        let elastic = self.elastic.and_then(|policy| policy.n_proc_per_node);
        match (elastic, self.processes) {
            (Some(number), _) => number.to_string(),
            (None, Some(IntOrString::Int(number))) => number.to_string(),
            (None, Some(IntOrString::String(text))) if !text.is_empty() => text.clone(),
            (None, _) => "auto".to_owned(),
        }
    }
}

/// The variables of one replica, in order.
pub(super) fn variables(
    plan: &ParsedTrainingJob<'_>,
    settings: Settings<'_>,
    role: ReplicaType,
    index: u32,
    ports: &Ports,
) -> Vec<EnvVar> {
    let processes = settings.processes();
    let mut variables = vec![variable("PYTHONUNBUFFERED", "1")];
    if plan.has_master() {
        let address = plan.pod_name(ReplicaType::Master, 0);
        let port = ports.of(plan, ReplicaType::Master, 0);
        let rank = plan.rank(role, index);
        // Words count as one process.
        let world = plan.total().saturating_mul(processes.parse().unwrap_or(1));
        variables.extend([
            variable("MASTER_PORT", port),
            variable("PET_MASTER_PORT", port),
            variable("MASTER_ADDR", &address),
            variable("PET_MASTER_ADDR", &address),
            variable("WORLD_SIZE", world),
            variable("RANK", rank),
            variable("PET_NODE_RANK", rank),
        ]);
    }
    variables.push(variable("PET_NPROC_PER_NODE", processes));
    match (&plan.elastic, settings.elastic) {
        (Some(elastic), Some(policy)) => {
            variables.extend(rendezvous(plan, elastic, policy, settings.attempt, ports));
        }
        _ => variables.push(variable("PET_NNODES", plan.total())),
    }
    variables
}

/// The `PET_*` variables of an elastic job, the same for every replica.
fn rendezvous(
    plan: &ParsedTrainingJob<'_>,
    elastic: &Elastic,
    policy: &ElasticPolicy,
    attempt: u32,
    ports: &Ports,
) -> Vec<EnvVar> {
    let host = policy.rdzv_host.clone().filter(|host| !host.is_empty());
    let host = host.unwrap_or_else(|| plan.pod_name(ReplicaType::Worker, 0));
    let backend = policy
        .rdzv_backend
        .as_deref()
        .filter(|backend| !backend.is_empty());
    let mut variables = vec![
        variable(
            "PET_RDZV_ENDPOINT",
            format!("{host}:{}", ports.of(plan, ReplicaType::Worker, 0)),
        ),
        variable("PET_RDZV_BACKEND", backend.unwrap_or(DEFAULT_BACKEND)),
        variable("PET_NNODES", nodes(plan, elastic, policy)),
    ];
    if let Some(restarts) = policy.max_restarts {
        variables.push(variable("PET_MAX_RESTARTS", restarts));
    }
    // An agent of an earlier attempt asks for another rendezvous than the present ones.
    let id = match (&policy.rdzv_id, attempt) {
        (id, 0) => id.clone(),
        (Some(id), attempt) => Some(format!("{id}-{attempt}")),
        (None, attempt) => Some(format!("{}-{attempt}", plan.name())),
    };
    if let Some(id) = id {
        variables.push(variable("PET_RDZV_ID", id));
    }
    if let Some(settings) = policy
        .rdzv_conf
        .as_ref()
        .filter(|settings| !settings.is_empty())
    {
        let pairs: Vec<String> = settings
            .iter()
            .map(|setting| format!("{}={}", setting.key, setting.value))
            .collect();
        variables.push(variable("PET_RDZV_CONF", pairs.join(",")));
    }
    if policy.standalone == Some(true) {
        variables.push(variable("PET_STANDALONE", ""));
    }
    variables
}

/// `min:max`, or the plain number of workers if the policy has no bounds.
fn nodes(plan: &ParsedTrainingJob<'_>, elastic: &Elastic, policy: &ElasticPolicy) -> String {
    if policy.min_replicas.is_none() && policy.max_replicas.is_none() {
        let workers = plan
            .replicas_of(ReplicaType::Worker)
            .map_or(0, |workers| workers.count);
        return workers.to_string();
    }
    format!("{}:{}", elastic.min, elastic.max)
}
