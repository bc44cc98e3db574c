//! RayCluster of `ray.io/v1` for the runner.

use std::ops::RangeInclusive;

use jiff::Timestamp;
use resources::kinds::{RayCluster, RayClusterStatus};
use resources::names;
use serde_json::Value;
use workloads::ReconcileOutcome;
use workloads::ray::{ObservedRayCluster, note_failure, ports_of, reconcile};
use workloads::training::{Network, annotated_port};

use super::ObjectKey;
use super::batch;
use super::caches::Watched;
use super::ports::PortAllocations;
use super::rooms::PodRooms;
use super::runner::{CachedJob, Workload};

/// The RayCluster controller.
pub(crate) struct RayClusterController {
    ports: PortAllocations,
    network: Network,
    scheduler_name: String,
    rooms: PodRooms,
}

impl RayClusterController {
    /// `rendezvous_ports` are those of PyTorchJobs; if they are empty, every pod has its own address.
    pub(crate) fn new(
        rendezvous_ports: &RangeInclusive<u16>,
        scheduler_name: Option<String>,
        rooms: PodRooms,
    ) -> RayClusterController {
        let network = if rendezvous_ports.is_empty() {
            Network::PerPod
        } else {
            Network::HostShared {
                ports: names::RAY_PORTS,
            }
        };
        RayClusterController {
            ports: PortAllocations::default(),
            network,
            scheduler_name: scheduler_name.unwrap_or_else(|| names::SCHEDULER.to_owned()),
            rooms,
        }
    }
}

impl Workload for RayClusterController {
    type Kind = RayCluster;
    type Status = RayClusterStatus;

    const COMPONENT: &'static str = "raycluster-controller";
    const WATCHED: &'static [Watched] = &[Watched::Pods(names::RAY_CLUSTER), Watched::Gang];

    fn noticed(&mut self, key: &ObjectKey, cluster: Option<&RayCluster>) {
        match cluster {
            None => self.ports.release(key),
            Some(cluster) => {
                if let Some(first) = annotated_port(cluster.metadata.annotations.as_ref()) {
                    self.ports.seen(key, first, ports_of(cluster));
                }
            }
        }
    }

    fn decide(
        &mut self,
        key: &ObjectKey,
        cached: &CachedJob<'_, RayCluster>,
        now: Timestamp,
    ) -> ReconcileOutcome<RayClusterStatus> {
        let room = self.rooms.of(&key.0);
        let (network, scheduler_name) = (&self.network, self.scheduler_name.as_str());
        let outcome = self.ports.with_others(key, |taken_ports| {
            let observed = ObservedRayCluster {
                cluster: cached.job,
                pods: &cached.pods,
                pod_group: cached.pod_group,
                services: &cached.services,
                taken_ports,
                network,
                scheduler_name,
                room,
            };
            reconcile(&observed, now)
        });
        self.ports
            .hold_written(key, &outcome.annotations, ports_of(cached.job));
        outcome
    }

    fn status_of(cluster: &RayCluster) -> Value {
        serde_json::to_value(&cluster.status).unwrap_or_default()
    }

    fn pod_event(created: bool) -> &'static str {
        batch::pod_event(created)
    }

    fn note_failure(status: &mut RayClusterStatus, message: &str, now: Timestamp) {
        note_failure(status, message, now);
    }
}
