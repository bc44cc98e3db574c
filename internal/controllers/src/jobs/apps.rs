//! The kinds of `apps/v1` for the runner.

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{
    Deployment, DeploymentStatus, ReplicaSet, ReplicaSetCondition, ReplicaSetStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use resources::times::whole;
use serde_json::Value;
use workloads::ReconcileOutcome;
use workloads::apps::{deployment, replicaset};

use super::ObjectKey;
use super::batch::pod_event;
use super::caches::{SelectorOf, Watched};
use super::rooms::PodRooms;
use super::runner::{CachedJob, Workload};

/// The Deployment controller.
pub(crate) struct DeploymentController;

impl Workload for DeploymentController {
    type Kind = Deployment;
    type Status = DeploymentStatus;

    const COMPONENT: &'static str = "deployment-controller";
    const WATCHED: &'static [Watched] = &[Watched::ReplicaSets];
    const SELECTOR: Option<SelectorOf<Deployment>> = Some(of_deployment);

    fn noticed(&mut self, _: &ObjectKey, _: Option<&Deployment>) {}

    fn decide(
        &mut self,
        _: &ObjectKey,
        cached: &CachedJob<'_, Deployment>,
        now: Timestamp,
    ) -> ReconcileOutcome<DeploymentStatus> {
        let observed = deployment::ObservedDeployment {
            deployment: cached.job,
            sets: &cached.replica_sets,
        };
        deployment::reconcile(&observed, now)
    }

    fn status_of(deployment: &Deployment) -> Value {
        serde_json::to_value(&deployment.status).unwrap_or_default()
    }

    fn pod_event(created: bool) -> &'static str {
        pod_event(created)
    }
}

fn of_deployment(deployment: &Deployment) -> Option<&LabelSelector> {
    deployment.spec.as_ref().map(|spec| &spec.selector)
}

/// The ReplicaSet controller.
pub(crate) struct ReplicaSetController {
    pub(crate) rooms: PodRooms,
}

impl Workload for ReplicaSetController {
    type Kind = ReplicaSet;
    type Status = ReplicaSetStatus;

    const COMPONENT: &'static str = "replicaset-controller";
    // No label is common to the pods of all ReplicaSets.
    const WATCHED: &'static [Watched] = &[Watched::Pods("")];
    const SELECTOR: Option<SelectorOf<ReplicaSet>> = Some(of_replica_set);

    fn noticed(&mut self, _: &ObjectKey, _: Option<&ReplicaSet>) {}

    fn decide(
        &mut self,
        key: &ObjectKey,
        cached: &CachedJob<'_, ReplicaSet>,
        now: Timestamp,
    ) -> ReconcileOutcome<ReplicaSetStatus> {
        let observed = replicaset::ObservedReplicaSet {
            set: cached.job,
            pods: &cached.pods,
            room: self.rooms.of(&key.0),
        };
        replicaset::reconcile(&observed, now)
    }

    fn status_of(set: &ReplicaSet) -> Value {
        serde_json::to_value(&set.status).unwrap_or_default()
    }

    fn pod_event(created: bool) -> &'static str {
        pod_event(created)
    }

    fn note_failure(status: &mut ReplicaSetStatus, message: &str, now: Timestamp) {
        let conditions = status.conditions.get_or_insert_default();
        let is_failure = |known: &ReplicaSetCondition| known.type_ == replicaset::REPLICA_FAILURE;
        if conditions
            .iter()
            .any(|known| is_failure(known) && known.message.as_deref() == Some(message))
        {
            return;
        }
        conditions.retain(|known| !is_failure(known));
        conditions.push(ReplicaSetCondition {
            type_: replicaset::REPLICA_FAILURE.to_owned(),
            status: "True".to_owned(),
            reason: Some("FailedCreate".to_owned()),
            message: Some(message.to_owned()),
            last_transition_time: Some(Time(whole(now))),
        });
    }
}

fn of_replica_set(set: &ReplicaSet) -> Option<&LabelSelector> {
    set.spec.as_ref().map(|spec| &spec.selector)
}
