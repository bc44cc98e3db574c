//! RayJob of `ray.io/v1` for the runner.

use jiff::Timestamp;
use resources::kinds::{RayJob, RayJobStatus};
use serde_json::Value;
use workloads::ReconcileOutcome;
use workloads::rayjob::{ObservedRayJob, cluster_of, reconcile};

use super::ObjectKey;
use super::batch;
use super::caches::Watched;
use super::runner::{CachedJob, Workload};

/// The RayJob controller.
pub(crate) struct RayJobController;

impl Workload for RayJobController {
    type Kind = RayJob;
    type Status = RayJobStatus;

    const COMPONENT: &'static str = "rayjob-controller";
    const WATCHED: &'static [Watched] = &[Watched::Jobs, Watched::RayClusters];

    fn noticed(&mut self, _: &ObjectKey, _: Option<&RayJob>) {}

    fn decide(
        &mut self,
        key: &ObjectKey,
        cached: &CachedJob<'_, RayJob>,
        now: Timestamp,
    ) -> ReconcileOutcome<RayJobStatus> {
        let cluster = cluster_of(cached.job).map(|name| (key.0.clone(), name.to_owned()));
        let cluster = cluster.and_then(|key| cached.ray_clusters.get(&key));
        let observed = ObservedRayJob {
            job: cached.job,
            cluster: cluster.map(AsRef::as_ref),
            jobs: &cached.jobs,
        };
        reconcile(&observed, now)
    }

    fn status_of(job: &RayJob) -> Value {
        serde_json::to_value(&job.status).unwrap_or_default()
    }

    fn pod_event(created: bool) -> &'static str {
        batch::pod_event(created)
    }
}
