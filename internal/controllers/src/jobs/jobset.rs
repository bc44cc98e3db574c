//! JobSet of `jobset.x-k8s.io/v1alpha2` for the runner.

use jiff::Timestamp;
use resources::jobset::NAME;
use resources::kinds::{JobSet, JobSetStatus};
use serde_json::Value;
use workloads::ReconcileOutcome;
use workloads::jobset::{ObservedJobSet, reconcile};

use super::ObjectKey;
use super::batch;
use super::caches::Watched;
use super::rooms::PodRooms;
use super::runner::{CachedJob, Workload};

/// The JobSet controller.
pub(crate) struct JobSetController {
    pub(crate) rooms: PodRooms,
}

impl Workload for JobSetController {
    type Kind = JobSet;
    type Status = JobSetStatus;

    const COMPONENT: &'static str = "jobset-controller";
    const WATCHED: &'static [Watched] = &[Watched::Jobs, Watched::PodsFor(NAME), Watched::Gang];

    fn noticed(&mut self, _: &ObjectKey, _: Option<&JobSet>) {}

    fn decide(
        &mut self,
        key: &ObjectKey,
        cached: &CachedJob<'_, JobSet>,
        now: Timestamp,
    ) -> ReconcileOutcome<JobSetStatus> {
        let observed = ObservedJobSet {
            job_set: cached.job,
            jobs: &cached.jobs,
            pods: &cached.labelled_pods,
            pod_group: cached.pod_group,
            services: &cached.services,
            room: self.rooms.of(&key.0),
        };
        reconcile(&observed, now)
    }

    fn status_of(job_set: &JobSet) -> Value {
        serde_json::to_value(&job_set.status).unwrap_or_default()
    }

    fn pod_event(created: bool) -> &'static str {
        batch::pod_event(created)
    }

    fn note_failure(status: &mut JobSetStatus, message: &str, _: Timestamp) {
        status.message = Some(message.to_owned());
    }
}
