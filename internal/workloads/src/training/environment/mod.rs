//! The environment of a replica's containers: the addresses by which the framework's processes find each other. A
//! variable that the user set is kept. Each kind has a module; what they share is here.

mod jax;
mod mpi;
mod paddle;
mod tensorflow;
mod torch;
mod xgboost;

use k8s_openapi::api::core::v1::{Container, EnvVar};
use resources::training::ReplicaType;

use super::plan::ParsedTrainingJob;
use super::pods::Surroundings;
use super::view::Details;

/// The number of the gang's attempt, for jobs with a policy for failures; 0 is the first.
const ATTEMPT: &str = "MUSTER_ATTEMPT";

/// The variables of one replica, in order.
pub(crate) fn variables(
    plan: &ParsedTrainingJob<'_>,
    role: ReplicaType,
    index: u32,
    surroundings: &Surroundings<'_>,
) -> Vec<EnvVar> {
    let ports = surroundings.ports;
    let mut variables = match plan.job.details {
        Details::Torch { elastic, processes } => torch::variables(
            plan,
            torch::Settings {
                elastic,
                processes,
                attempt: surroundings.attempt(),
            },
            role,
            index,
            ports,
        ),
        Details::TensorFlow { dynamic, .. } => {
            tensorflow::variables(plan, dynamic, role, index, ports)
        }
        Details::XGBoost => xgboost::variables(plan, role, index, ports),
        Details::Paddle => paddle::variables(plan, role, index, ports),
        Details::Jax => jax::variables(plan, role, index, ports),
        Details::Mpi(spec) => mpi::variables(plan, spec, role, surroundings.network),
    };
    if surroundings.recovery.is_some() {
        variables.push(variable(ATTEMPT, surroundings.attempt()));
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
