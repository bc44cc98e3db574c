//! When a job has succeeded, and when it runs.

use resources::training::ReplicaType;

use super::plan::{ParsedTrainingJob, Replicas};
use super::roster::{ReplicaState, Roster};
use super::view::Details;

/// The chief's or the master's success is the job's. Without one, the workers decide: any of them if a PyTorchJob is
/// elastic, worker 0 of a TFJob that does not ask for all, and all of them otherwise.
pub(crate) fn has_succeeded(plan: &ParsedTrainingJob<'_>, roster: &Roster<'_>) -> bool {
    let Some(leading) = leading(plan) else {
        return false;
    };
    let mut done = roster
        .of_role(leading.role)
        .map(|slot| slot.state(leading) == ReplicaState::Succeeded);
    if leading.role.is_single() {
        return leading.count > 0 && done.all(|done| done);
    }
    match plan.job.details {
        Details::Torch { .. } if plan.elastic.is_some() => done.any(|done| done),
        Details::TensorFlow {
            all_workers: false, ..
        } => done.next() == Some(true),
        _ => leading.count > 0 && done.all(|done| done),
    }
}

/// The chief or the master runs, or without one any worker. Of an MPIJob the launcher and all workers run.
pub(crate) fn is_running(plan: &ParsedTrainingJob<'_>, roster: &Roster<'_>) -> bool {
    if matches!(plan.job.details, Details::Mpi(_)) {
        return plan.replicas.iter().all(|replicas| {
            roster
                .of_role(replicas.role)
                .all(|slot| slot.state(replicas) == ReplicaState::Running)
        });
    }
    leading(plan).is_some_and(|replicas| {
        roster
            .of_role(replicas.role)
            .any(|slot| slot.state(replicas) == ReplicaState::Running)
    })
}

/// The replicas that decide on the job.
fn leading<'p, 'a>(plan: &'p ParsedTrainingJob<'a>) -> Option<&'p Replicas<'a>> {
    let single = plan
        .replicas
        .iter()
        .find(|replicas| replicas.role.is_single());
    single.or_else(|| plan.replicas_of(ReplicaType::Worker))
}
