//! The variables of XGBoost: the tracker's address, which the master runs, and the ranks.

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
    let mut variables = vec![
        variable("PYTHONUNBUFFERED", "1"),
        variable("MASTER_PORT", ports.of(plan, ReplicaType::Master, 0)),
        variable("MASTER_ADDR", plan.pod_name(ReplicaType::Master, 0)),
        variable("WORLD_SIZE", plan.total()),
        variable("RANK", plan.rank(role, index)),
    ];
    // LightGBM's workers listen, and connect to all others.
    if plan.total() > 1
        && let Some(workers) = plan.replicas_of(ReplicaType::Worker)
    {
        let names: Vec<String> = (0..workers.count)
            .map(|index| plan.pod_name(ReplicaType::Worker, index))
            .collect();
        variables.push(variable(
            "WORKER_PORT",
            ports.of(plan, ReplicaType::Worker, 0),
        ));
        variables.push(variable("WORKER_ADDRS", names.join(",")));
    }
    variables
}
