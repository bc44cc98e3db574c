//! TrainJob of `trainer.kubeflow.org/v1alpha1` for the runner.

use std::ops::RangeInclusive;

use jiff::Timestamp;
use resources::kinds::{TrainJob, TrainJobStatus};
use resources::names;
use resources::trainer::RUNTIME;
use serde_json::Value;
use workloads::ReconcileOutcome;
use workloads::training::{Network, annotated_port};
use workloads::trainjob::{ObservedTrainJob, is_finished, reconcile};

use super::ObjectKey;
use super::batch;
use super::caches::Watched;
use super::ports::PortAllocations;
use super::runner::{CachedJob, Workload};

/// The TrainJob controller.
pub(crate) struct TrainJobController {
    ports: PortAllocations,
    network: Network,
}

impl TrainJobController {
    /// Without `rendezvous_ports` every pod has its own address.
    pub(crate) fn new(rendezvous_ports: &RangeInclusive<u16>) -> TrainJobController {
        let network = if rendezvous_ports.is_empty() {
            Network::PerPod
        } else {
            Network::HostShared {
                ports: names::TRAINER_PORTS,
            }
        };
        TrainJobController {
            ports: PortAllocations::default(),
            network,
        }
    }
}

impl Workload for TrainJobController {
    type Kind = TrainJob;
    type Status = TrainJobStatus;

    const COMPONENT: &'static str = "trainjob-controller";
    const WATCHED: &'static [Watched] = &[Watched::JobSets, Watched::Runtimes, Watched::Revisions];

    fn noticed(&mut self, key: &ObjectKey, job: Option<&TrainJob>) {
        match job.filter(|job| !is_finished(job)) {
            None => self.ports.release(key),
            Some(job) => {
                if let Some(port) = annotated_port(job.metadata.annotations.as_ref()) {
                    self.ports.seen(key, port, 1);
                }
            }
        }
    }

    fn decide(
        &mut self,
        key: &ObjectKey,
        cached: &CachedJob<'_, TrainJob>,
        now: Timestamp,
    ) -> ReconcileOutcome<TrainJobStatus> {
        let reference = &cached.job.spec.runtime_ref;
        let runtime = match reference.kind.as_deref() {
            Some(RUNTIME) => cached.runtimes.of_namespace(&key.0, &reference.name),
            _ => cached.runtimes.of_cluster(&reference.name),
        };
        let network = &self.network;
        let outcome = self.ports.with_others(key, |taken_ports| {
            let observed = ObservedTrainJob {
                job: cached.job,
                runtime,
                revisions: &cached.revisions,
                job_set: cached.job_set,
                network,
                taken_ports,
            };
            reconcile(&observed, now)
        });
        let annotations = &outcome.annotations;
        self.ports.hold_written(key, annotations, 1);
        outcome
    }

    fn status_of(job: &TrainJob) -> Value {
        serde_json::to_value(&job.status).unwrap_or_default()
    }

    fn pod_event(created: bool) -> &'static str {
        batch::pod_event(created)
    }

    fn note_failure(status: &mut TrainJobStatus, message: &str, _: Timestamp) {
        status.message = Some(message.to_owned());
    }
}
