//! `batch/v1` Job for the runner.

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use resources::names;
use serde_json::Value;
use workloads::ReconcileOutcome;
use workloads::job::{ObservedJob, reconcile};

use super::ObjectKey;
use super::caches::Watched;
use super::rooms::PodRooms;
use super::runner::{CachedJob, Workload};

/// The Job controller.
pub(crate) struct JobController {
    pub(crate) rooms: PodRooms,
}

impl Workload for JobController {
    type Kind = Job;
    type Status = JobStatus;

    const COMPONENT: &'static str = "job-controller";
    const WATCHED: &'static [Watched] = &[Watched::Pods(names::BATCH_JOB_NAME)];

    fn noticed(&mut self, _: &ObjectKey, _: Option<&Job>) {}

    fn decide(
        &mut self,
        key: &ObjectKey,
        cached: &CachedJob<'_, Job>,
        now: Timestamp,
    ) -> ReconcileOutcome<JobStatus> {
        reconcile(
            &ObservedJob {
                job: cached.job,
                pods: &cached.pods,
                room: self.rooms.of(&key.0),
            },
            now,
        )
    }

    fn status_of(job: &Job) -> Value {
        serde_json::to_value(&job.status).unwrap_or_default()
    }

    fn pod_event(created: bool) -> &'static str {
        pod_event(created)
    }
}

/// The event reasons of Kubernetes' own controllers.
pub(crate) fn pod_event(created: bool) -> &'static str {
    if created {
        "SuccessfulCreate"
    } else {
        "SuccessfulDelete"
    }
}
