//! The objects that a job's pods refer to and that are created once: ConfigMaps and claims.

use resources::kinds::VolcanoJobStatus;

use super::plan::ParsedVolcanoJob;
use super::plugins::Mpi;
use super::pods;
use crate::action::{Action, Dependent, ReconcileOutcome};

/// Creates what pods need before they are created, once; true if it does. The status notes it only if all of it exists,
/// and the next reconciliation creates the pods. `shared`: pods share their node's address.
pub(crate) fn prepare(
    plan: &ParsedVolcanoJob<'_>,
    shared: bool,
    outcome: &mut ReconcileOutcome<VolcanoJobStatus>,
) -> bool {
    let mut made = outcome
        .status
        .controlled_resources
        .clone()
        .unwrap_or_default();
    let before = made.len();
    let mut is_new = |key: String, value: &str| made.insert(key, value.to_owned()).is_none();
    let mut create = |dependent| outcome.actions.push(Action::Create(dependent));
    if plan.plugins.svc() && is_new("plugin-svc".to_owned(), "svc") {
        create(Dependent::ConfigMap(Box::new(pods::files(plan))));
    }
    // Its Secret is created with the pods, as are the rights for mpirun.
    if plan.plugins.ssh(shared).is_some() {
        is_new("plugin-ssh".to_owned(), "ssh");
    }
    if plan.plugins.mpi().is_some() && is_new("plugin-mpi".to_owned(), "mpi") && shared {
        create(Dependent::ConfigMap(Box::new(Mpi::script(plan))));
    }
    for claim in pods::claims(plan) {
        let name = claim.metadata.name.clone().unwrap_or_default();
        if is_new(format!("volume-pvc-{name}"), &name) {
            create(Dependent::Claim(Box::new(claim)));
        }
    }
    let prepares = made.len() > before;
    if prepares {
        outcome.status.controlled_resources = Some(made);
    }
    prepares
}
