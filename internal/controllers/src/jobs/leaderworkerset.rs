//! LeaderWorkerSet of `leaderworkerset.x-k8s.io/v1` for the runner.

use std::sync::Arc;

use jiff::Timestamp;
use resources::kinds::{LeaderWorkerSet, LeaderWorkerSetStatus};
use resources::leader_worker_set::NAME;
use serde_json::Value;
use workloads::ReconcileOutcome;
use workloads::leaderworkerset::{ObservedLeaderWorkerSet, reconcile};

use super::ObjectKey;
use super::batch;
use super::caches::Watched;
use super::rooms::PodRooms;
use super::runner::{CachedJob, Workload};

/// The LeaderWorkerSet controller.
pub(crate) struct LeaderWorkerSetController {
    pub(crate) rooms: PodRooms,
}

impl Workload for LeaderWorkerSetController {
    type Kind = LeaderWorkerSet;
    type Status = LeaderWorkerSetStatus;

    const COMPONENT: &'static str = "leaderworkerset-controller";
    const WATCHED: &'static [Watched] = &[
        Watched::Pods(NAME),
        Watched::OwnedGangs,
        Watched::Revisions,
        Watched::Claims,
    ];

    fn noticed(&mut self, _: &ObjectKey, _: Option<&LeaderWorkerSet>) {}

    fn decide(
        &mut self,
        key: &ObjectKey,
        seen: &CachedJob<'_, LeaderWorkerSet>,
        now: Timestamp,
    ) -> ReconcileOutcome<LeaderWorkerSetStatus> {
        let claim = |name: &str| {
            let key = (key.0.clone(), name.to_owned());
            seen.claims.get(&key).map(Arc::as_ref)
        };
        let observed = ObservedLeaderWorkerSet {
            set: seen.job,
            pods: &seen.pods,
            revisions: &seen.revisions,
            services: &seen.services,
            pod_groups: &seen.owned_pod_groups,
            claim: &claim,
            room: self.rooms.of(&key.0),
        };
        reconcile(&observed, now)
    }

    fn status_of(set: &LeaderWorkerSet) -> Value {
        serde_json::to_value(&set.status).unwrap_or_default()
    }

    fn pod_event(created: bool) -> &'static str {
        batch::pod_event(created)
    }

    fn note_failure(status: &mut LeaderWorkerSetStatus, message: &str, _: Timestamp) {
        status.message = Some(message.to_owned());
    }
}
