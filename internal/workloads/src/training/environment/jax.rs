//! The variables of `jax.distributed`. JAX itself reads `JAX_COORDINATOR_ADDRESS` and no other of them; programs for the
//! training operator read the rest.

use k8s_openapi::api::core::v1::EnvVar;
use resources::training::ReplicaType;

use super::variable;
use crate::training::plan::ParsedTrainingJob;
use crate::training::rendezvous::Ports;

/// The variables of one replica, in order.
pub(super) fn variables(
    plan: &ParsedTrainingJob<'_>,
    role: ReplicaType,
    index: u32,
    ports: &Ports,
) -> Vec<EnvVar> {
    let coordinator = plan.pod_name(ReplicaType::Worker, 0);
    let port = ports.of(plan, ReplicaType::Worker, 0);
    vec![
        variable("PYTHONUNBUFFERED", "1"),
        variable("COORDINATOR_PORT", port),
        variable("COORDINATOR_ADDRESS", &coordinator),
        variable("NUM_PROCESSES", plan.total()),
        variable("PROCESS_ID", plan.rank(role, index)),
        variable("JAX_COORDINATOR_ADDRESS", format!("{coordinator}:{port}")),
    ]
}
