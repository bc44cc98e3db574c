//! RayService of `ray.io/v1` for the runner.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::Client;
use resources::kinds::{RayService, RayServiceStatus};
use resources::names;
use serde_json::Value;
use workloads::ReconcileOutcome;
use workloads::rayservice::{ObservedRayService, reconcile};

use super::ObjectKey;
use super::batch;
use super::caches::Watched;
use super::runner::{CachedJob, Workload};
use super::serve_monitor::ServeMonitor;

/// The RayService controller.
pub(crate) struct RayServiceController {
    monitor: ServeMonitor,
}

impl RayServiceController {
    /// The client reaches the pods, too.
    pub(crate) fn new(client: Client) -> RayServiceController {
        RayServiceController {
            monitor: ServeMonitor::new(client),
        }
    }
}

impl Workload for RayServiceController {
    type Kind = RayService;
    type Status = RayServiceStatus;

    const COMPONENT: &'static str = "rayservice-controller";
    const WATCHED: &'static [Watched] = &[
        Watched::PodsFor(names::RAY_ORIGIN_NAME),
        Watched::Gang,
        Watched::RayClusters,
    ];

    fn noticed(&mut self, _: &ObjectKey, _: Option<&RayService>) {}

    fn decide(
        &mut self,
        key: &ObjectKey,
        cached: &CachedJob<'_, RayService>,
        now: Timestamp,
    ) -> ReconcileOutcome<RayServiceStatus> {
        let clusters = cached.ray_clusters.in_namespace(&key.0);
        let clusters: Vec<_> = clusters.map(|(_, cluster)| cluster.as_ref()).collect();
        let status = cached.job.status.as_ref();
        let named = status.into_iter().flat_map(|status| {
            [
                &status.active_service_status,
                &status.pending_service_status,
            ]
        });
        let named = named
            .flatten()
            .filter_map(|one| one.ray_cluster_name.clone());
        let answers = named.filter_map(|name| {
            let answer = self.monitor.last(&(key.0.clone(), name.clone()))?;
            Some((name, answer))
        });
        let serve: BTreeMap<_, _> = answers.collect();
        let observed = ObservedRayService {
            service: cached.job,
            clusters: &clusters,
            pods: &cached.labelled_pods,
            services: &cached.services,
            serve: &serve,
        };
        let decision = reconcile(&observed, now);
        for request in decision.requests {
            self.monitor.ask(&key.0, request);
        }
        decision.outcome
    }

    fn status_of(service: &RayService) -> Value {
        serde_json::to_value(&service.status).unwrap_or_default()
    }

    fn pod_event(created: bool) -> &'static str {
        batch::pod_event(created)
    }
}
