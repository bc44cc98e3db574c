//! `batch/v1` CronJob for the runner.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use k8s_openapi::api::batch::v1::{CronJob, CronJobStatus};
use serde_json::Value;
use workloads::ReconcileOutcome;
use workloads::cronjob::{ObservedCronJob, reconcile};

use super::ObjectKey;
use super::caches::Watched;
use super::runner::{CachedJob, Workload};

/// The CronJob controller.
pub(crate) struct CronJobController;

impl Workload for CronJobController {
    type Kind = CronJob;
    type Status = CronJobStatus;

    const COMPONENT: &'static str = "cronjob-controller";
    const WATCHED: &'static [Watched] = &[Watched::Jobs];
    // The status says which time has had its Job.
    const STATUS_NEEDS_ACTIONS: bool = true;

    fn noticed(&mut self, _: &ObjectKey, _: Option<&CronJob>) {}

    fn decide(
        &mut self,
        _: &ObjectKey,
        cached: &CachedJob<'_, CronJob>,
        now: Timestamp,
    ) -> ReconcileOutcome<CronJobStatus> {
        let spec = cached.job.spec.as_ref();
        let named = spec.and_then(|spec| spec.time_zone.as_deref());
        // The zones are those of the machine's tzdata.
        let zone = named.map_or(Some(TimeZone::UTC), |name| TimeZone::get(name).ok());
        let observed = ObservedCronJob {
            cron: cached.job,
            jobs: &cached.jobs,
            zone: zone.as_ref(),
        };
        reconcile(&observed, now)
    }

    fn status_of(cron: &CronJob) -> Value {
        serde_json::to_value(&cron.status).unwrap_or_default()
    }

    fn pod_event(created: bool) -> &'static str {
        super::batch::pod_event(created)
    }
}
