//! RayJob of `ray.io/v1` for the runner.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::Client;
use resources::kinds::{RayJob, RayJobStatus};
use resources::names;
use serde_json::Value;
use workloads::ReconcileOutcome;
use workloads::rayjob::{ObservedRayJob, ProgramRequest, cluster_of, reconcile};

use super::ObjectKey;
use super::batch;
use super::caches::Watched;
use super::program_monitor::ProgramMonitor;
use super::runner::{CachedJob, Workload};

/// The RayJob controller.
pub(crate) struct RayJobController {
    monitor: ProgramMonitor,
    /// The last request of each job whose program would outlive it.
    outlive: BTreeMap<ObjectKey, ProgramRequest>,
}

impl RayJobController {
    /// The client reaches the pods, too.
    pub(crate) fn new(client: Client) -> RayJobController {
        RayJobController {
            monitor: ProgramMonitor::new(client),
            outlive: BTreeMap::new(),
        }
    }
}

impl Workload for RayJobController {
    type Kind = RayJob;
    type Status = RayJobStatus;

    const COMPONENT: &'static str = "rayjob-controller";
    const WATCHED: &'static [Watched] = &[
        Watched::Jobs,
        Watched::RayClusters,
        Watched::PodsFor(names::RAY_ORIGIN_NAME),
    ];

    fn noticed(&mut self, key: &ObjectKey, job: Option<&RayJob>) {
        if job.is_none()
            && let Some(request) = self.outlive.remove(key)
        {
            self.monitor.stop(&key.0, request);
        }
    }

    fn decide(
        &mut self,
        key: &ObjectKey,
        cached: &CachedJob<'_, RayJob>,
        now: Timestamp,
    ) -> ReconcileOutcome<RayJobStatus> {
        let cluster = cluster_of(cached.job).map(|name| (key.0.clone(), name.to_owned()));
        let cluster = cluster.and_then(|key| cached.ray_clusters.get(&key));
        let program = self.monitor.last(key);
        let observed = ObservedRayJob {
            job: cached.job,
            cluster: cluster.map(AsRef::as_ref),
            jobs: &cached.jobs,
            pods: &cached.labelled_pods,
            program: program.as_ref(),
        };
        let decision = reconcile(&observed, now);
        match decision.request {
            Some(request) => {
                if request.outlives {
                    self.outlive.insert(key.clone(), request.clone());
                }
                self.monitor.ask(key, request);
            }
            // A job that has ended leaves nothing behind.
            None if decision.outcome.status.end_time.is_some() => {
                self.outlive.remove(key);
            }
            None => {}
        }
        decision.outcome
    }

    fn status_of(job: &RayJob) -> Value {
        serde_json::to_value(&job.status).unwrap_or_default()
    }

    fn pod_event(created: bool) -> &'static str {
        batch::pod_event(created)
    }
}
