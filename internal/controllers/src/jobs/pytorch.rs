//! PyTorchJob for the runner.

use jiff::Timestamp;
use resources::kinds::{PyTorchJob, PyTorchJobStatus};
use resources::names;
use serde_json::Value;
use workloads::ReconcileOutcome;
use workloads::pytorch::{Network, ObservedPyTorchJob, annotated_port, is_finished, reconcile};

use super::ObjectKey;
use super::caches::Watched;
use super::ports::PortAllocations;
use super::rooms::PodRooms;
use super::runner::{CachedJob, Workload};

/// The PyTorchJob controller.
pub(crate) struct PyTorch {
    ports: PortAllocations,
    network: Network,
    scheduler_name: String,
    rooms: PodRooms,
}

impl PyTorch {
    pub(crate) fn new(
        ports: PortAllocations,
        scheduler_name: Option<String>,
        rooms: PodRooms,
    ) -> PyTorch {
        let network = if ports.range.is_empty() {
            Network::PerPod
        } else {
            Network::HostShared {
                ports: ports.range.clone(),
            }
        };
        PyTorch {
            ports,
            network,
            scheduler_name: scheduler_name.unwrap_or_else(|| names::SCHEDULER.to_owned()),
            rooms,
        }
    }
}

impl Workload for PyTorch {
    type Kind = PyTorchJob;
    type Status = PyTorchJobStatus;

    const COMPONENT: &'static str = "pytorchjob-controller";
    const WATCHED: &'static [Watched] = &[Watched::Pods(names::JOB_NAME), Watched::Gang];

    fn noticed(&mut self, key: &ObjectKey, job: Option<&PyTorchJob>) {
        match job.filter(|job| !is_finished(job)) {
            None => self.ports.release(key),
            Some(job) => {
                if let Some(port) = annotated_port(job.metadata.annotations.as_ref()) {
                    self.ports.seen(key, port);
                }
            }
        }
    }

    fn decide(
        &mut self,
        key: &ObjectKey,
        seen: &CachedJob<'_, PyTorchJob>,
        now: Timestamp,
    ) -> ReconcileOutcome<PyTorchJobStatus> {
        let room = self.rooms.of(&key.0);
        let (network, scheduler_name) = (&self.network, self.scheduler_name.as_str());
        let outcome = self.ports.with_others(key, |taken_ports| {
            let observed = ObservedPyTorchJob {
                job: seen.job,
                pods: &seen.pods,
                pod_group: seen.pod_group,
                services: &seen.services,
                taken_ports,
                network,
                scheduler_name,
                room,
            };
            reconcile(&observed, now)
        });
        let written = outcome
            .annotations
            .get(names::RENDEZVOUS_PORT)
            .and_then(Option::as_ref);
        if let Some(port) = written.and_then(|port| port.parse().ok()) {
            self.ports.hold(key, port);
        }
        outcome
    }

    fn status_of(job: &PyTorchJob) -> Value {
        serde_json::to_value(&job.status).unwrap_or_default()
    }

    fn pod_event(created: bool) -> &'static str {
        if created {
            "SuccessfulCreatePod"
        } else {
            "SuccessfulDeletePod"
        }
    }
}
