//! The elastic policy for torchrun: the rendezvous variables.

use k8s_openapi::api::core::v1::EnvVar;

use super::environment::variable;
use super::plan::{Elastic, ParsedPyTorchJob, ReplicaType};
use super::rendezvous::Ports;

/// torchrun's backend if the policy names none.
const DEFAULT_BACKEND: &str = "c10d";

/// The `PET_*` variables of an elastic job, the same for every replica.
pub(crate) fn variables(
    plan: &ParsedPyTorchJob<'_>,
    elastic: &Elastic<'_>,
    ports: &Ports,
) -> Vec<EnvVar> {
    let policy = elastic.policy;
    let host = policy.rdzv_host.clone().filter(|host| !host.is_empty());
    let host = host.unwrap_or_else(|| plan.pod_name(ReplicaType::Worker, 0));
    let backend = policy
        .rdzv_backend
        .as_deref()
        .filter(|backend| !backend.is_empty());
    let mut variables = vec![
        variable("PET_RDZV_ENDPOINT", format!("{host}:{}", ports.elastic)),
        variable("PET_RDZV_BACKEND", backend.unwrap_or(DEFAULT_BACKEND)),
        variable("PET_NNODES", nodes(plan, elastic)),
    ];
    if let Some(restarts) = policy.max_restarts {
        variables.push(variable("PET_MAX_RESTARTS", restarts));
    }
    if let Some(id) = &policy.rdzv_id {
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
fn nodes(plan: &ParsedPyTorchJob<'_>, elastic: &Elastic<'_>) -> String {
    if elastic.policy.min_replicas.is_none() && elastic.policy.max_replicas.is_none() {
        let workers = plan
            .replicas_of(ReplicaType::Worker)
            .map_or(0, |workers| workers.count);
        return workers.to_string();
    }
    format!("{}:{}", elastic.min, elastic.max)
}
