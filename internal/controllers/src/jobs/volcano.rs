//! Volcano's Job for the runner.

use std::ops::RangeInclusive;

use jiff::Timestamp;
use resources::kinds::{VolcanoJob, VolcanoJobStatus};
use resources::names;
use serde_json::Value;
use workloads::ReconcileOutcome;
use workloads::training::{Network, annotated_port};
use workloads::volcano::{JOB_NAME, ObservedVolcanoJob, is_finished, ports_needed, reconcile};

use super::ObjectKey;
use super::caches::Watched;
use super::ports::PortAllocations;
use super::rooms::PodRooms;
use super::runner::{CachedJob, Workload};

/// The controller of Volcano Jobs.
pub(crate) struct VolcanoController {
    ports: PortAllocations,
    network: Network,
    scheduler_name: String,
    rooms: PodRooms,
}

impl VolcanoController {
    /// Without `rendezvous_ports` every pod has its own address.
    pub(crate) fn new(
        rendezvous_ports: &RangeInclusive<u16>,
        scheduler_name: Option<String>,
        rooms: PodRooms,
    ) -> VolcanoController {
        let network = if rendezvous_ports.is_empty() {
            Network::PerPod
        } else {
            Network::HostShared {
                ports: names::VOLCANO_PORTS,
            }
        };
        VolcanoController {
            ports: PortAllocations::default(),
            network,
            scheduler_name: scheduler_name.unwrap_or_else(|| names::SCHEDULER.to_owned()),
            rooms,
        }
    }
}

impl Workload for VolcanoController {
    type Kind = VolcanoJob;
    type Status = VolcanoJobStatus;

    const COMPONENT: &'static str = "vcjob-controller";
    const WATCHED: &'static [Watched] =
        &[Watched::Pods(JOB_NAME), Watched::Gang, Watched::Commands];

    fn noticed(&mut self, key: &ObjectKey, job: Option<&VolcanoJob>) {
        match job.filter(|job| !is_finished(job)) {
            None => self.ports.release(key),
            Some(job) => {
                if let Some(port) = annotated_port(job.metadata.annotations.as_ref()) {
                    self.ports.seen(key, port, ports_needed(job));
                }
            }
        }
    }

    fn decide(
        &mut self,
        key: &ObjectKey,
        cached: &CachedJob<'_, VolcanoJob>,
        now: Timestamp,
    ) -> ReconcileOutcome<VolcanoJobStatus> {
        let room = self.rooms.of(&key.0);
        let (network, scheduler_name) = (&self.network, self.scheduler_name.as_str());
        let outcome = self.ports.with_others(key, |taken_ports| {
            let observed = ObservedVolcanoJob {
                job: cached.job,
                pods: &cached.pods,
                pod_group: cached.pod_group,
                services: &cached.services,
                commands: &cached.commands,
                network,
                taken_ports,
                scheduler_name,
                room,
            };
            reconcile(&observed, now)
        });
        let annotations = &outcome.annotations;
        self.ports
            .hold_written(key, annotations, ports_needed(cached.job));
        outcome
    }

    fn status_of(job: &VolcanoJob) -> Value {
        serde_json::to_value(&job.status).unwrap_or_default()
    }

    fn pod_event(created: bool) -> &'static str {
        super::batch::pod_event(created)
    }
}
