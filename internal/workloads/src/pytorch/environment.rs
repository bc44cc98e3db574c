//! The environment of a replica's containers: the addresses by which torch.distributed and torchrun
//! form the group. A variable that the user set is kept.

use k8s_openapi::api::core::v1::{Container, EnvVar};

use super::elastic;
use super::plan::{ParsedPyTorchJob, ReplicaType};
use super::rendezvous::Ports;

/// The variables of one replica, in order.
pub(crate) fn variables(
    plan: &ParsedPyTorchJob<'_>,
    role: ReplicaType,
    index: u32,
    ports: &Ports,
) -> Vec<EnvVar> {
    let mut variables = vec![variable("PYTHONUNBUFFERED", "1")];
    if plan.has_master() {
        let address = plan.pod_name(ReplicaType::Master, 0);
        let rank = match role {
            ReplicaType::Master => 0,
            ReplicaType::Worker => index.saturating_add(1),
        };
        let world = plan.total().saturating_mul(plan.processes_counted());
        variables.extend([
            variable("MASTER_PORT", ports.master),
            variable("PET_MASTER_PORT", ports.master),
            variable("MASTER_ADDR", &address),
            variable("PET_MASTER_ADDR", &address),
            variable("WORLD_SIZE", world),
            variable("RANK", rank),
            variable("PET_NODE_RANK", rank),
        ]);
    }
    variables.push(variable("PET_NPROC_PER_NODE", plan.processes()));
    match &plan.elastic {
        Some(policy) => variables.extend(elastic::variables(plan, policy, ports)),
        None => variables.push(variable("PET_NNODES", plan.total())),
    }
    variables
}

/// Puts the variables before the container's own, so that references such as `$(MASTER_ADDR)` in
/// the user's variables resolve; names that the user set are left out.
pub(crate) fn add(container: &mut Container, variables: &[EnvVar]) {
    let own = container.env.take().unwrap_or_default();
    let mut all: Vec<EnvVar> = variables
        .iter()
        .filter(|variable| own.iter().all(|given| given.name != variable.name))
        .cloned()
        .collect();
    all.extend(own);
    container.env = Some(all);
}

pub(crate) fn variable(name: &str, value: impl ToString) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value: Some(value.to_string()),
        value_from: None,
    }
}
