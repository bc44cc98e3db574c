//! `batch/v1` Job for the runner.

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use resources::names;
use serde_json::Value;
use workloads::Outcome;
use workloads::job::{Observed, reconcile};

use super::Key;
use super::runner::{Seen, Workload};

/// The Job controller.
pub(crate) struct Batch;

impl Workload for Batch {
    type Kind = Job;
    type Status = JobStatus;

    const COMPONENT: &'static str = "job-controller";
    const HAS_GANG: bool = false;
    const POD_LABEL: &'static str = names::BATCH_JOB_NAME;

    fn noticed(&mut self, _: &Key, _: Option<&Job>) {}

    fn decide(&mut self, _: &Key, seen: &Seen<'_, Job>, now: Timestamp) -> Outcome<JobStatus> {
        reconcile(
            &Observed {
                job: seen.job,
                pods: &seen.pods,
            },
            now,
        )
    }

    fn status_of(job: &Job) -> Value {
        serde_json::to_value(&job.status).unwrap_or_default()
    }

    fn pod_event(created: bool) -> &'static str {
        if created {
            "SuccessfulCreate"
        } else {
            "SuccessfulDelete"
        }
    }
}
