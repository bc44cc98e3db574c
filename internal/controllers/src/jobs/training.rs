//! The training kinds for the runner.

use std::marker::PhantomData;
use std::ops::RangeInclusive;

use jiff::Timestamp;
use resources::kinds::{
    JAXJob, MPIJob, PaddleJob, PyTorchJob, TFJob, TrainingJobStatus, XGBoostJob,
};
use resources::names;
use resources::training::{
    JAX_JOB, MPI_JOB, PADDLE_JOB, PYTORCH_JOB, TF_JOB, TrainingKind, XGBOOST_JOB,
};
use serde_json::Value;
use workloads::ReconcileOutcome;
use workloads::training::{
    Network, ObservedTrainingJob, TrainingJob, annotated_port, is_finished, ports_needed, reconcile,
};

use super::caches::Watched;
use super::ports::PortAllocations;
use super::rooms::PodRooms;
use super::runner::{CachedJob, Workload};
use super::{ObjectKey, RunnerObject};

/// A typed training kind that a controller runs.
pub(crate) trait ControlledTraining: RunnerObject + TrainingJob {
    /// The description of the kind.
    const DESCRIPTION: &'static TrainingKind;
    /// The component that the controller's events name.
    const COMPONENT: &'static str;
    /// What the controller watches besides the kind.
    const WATCHED: &'static [Watched] = &[Watched::Pods(names::JOB_NAME), Watched::Gang];
}

impl ControlledTraining for PyTorchJob {
    const DESCRIPTION: &'static TrainingKind = &PYTORCH_JOB;
    const COMPONENT: &'static str = "pytorchjob-controller";
}
impl ControlledTraining for TFJob {
    const DESCRIPTION: &'static TrainingKind = &TF_JOB;
    const COMPONENT: &'static str = "tfjob-controller";
}
impl ControlledTraining for XGBoostJob {
    const DESCRIPTION: &'static TrainingKind = &XGBOOST_JOB;
    const COMPONENT: &'static str = "xgboostjob-controller";
}
impl ControlledTraining for PaddleJob {
    const DESCRIPTION: &'static TrainingKind = &PADDLE_JOB;
    const COMPONENT: &'static str = "paddlejob-controller";
}
impl ControlledTraining for JAXJob {
    const DESCRIPTION: &'static TrainingKind = &JAX_JOB;
    const COMPONENT: &'static str = "jaxjob-controller";
}
impl ControlledTraining for MPIJob {
    const DESCRIPTION: &'static TrainingKind = &MPI_JOB;
    const COMPONENT: &'static str = "mpijob-controller";
    const WATCHED: &'static [Watched] = &[
        Watched::Pods(names::JOB_NAME),
        Watched::Gang,
        Watched::ConfigMaps(names::JOB_NAME),
    ];
}

/// The controller of one training kind.
pub(crate) struct TrainingController<K> {
    ports: PortAllocations,
    network: Network,
    scheduler_name: String,
    rooms: PodRooms,
    kind: PhantomData<fn() -> K>,
}

impl<K: ControlledTraining> TrainingController<K> {
    /// `rendezvous_ports` are those of PyTorchJobs; if they are empty, every pod has its own address. The other kinds have
    /// ranges of their own.
    pub(crate) fn new(
        rendezvous_ports: &RangeInclusive<u16>,
        scheduler_name: Option<String>,
        rooms: PodRooms,
    ) -> TrainingController<K> {
        let ports = if K::DESCRIPTION.kind == PYTORCH_JOB.kind {
            rendezvous_ports.clone()
        } else {
            K::DESCRIPTION.shared_ports.clone()
        };
        let network = if rendezvous_ports.is_empty() {
            Network::PerPod
        } else {
            Network::HostShared { ports }
        };
        TrainingController {
            ports: PortAllocations::default(),
            network,
            scheduler_name: scheduler_name.unwrap_or_else(|| names::SCHEDULER.to_owned()),
            rooms,
            kind: PhantomData,
        }
    }
}

impl<K: ControlledTraining> Workload for TrainingController<K> {
    type Kind = K;
    type Status = TrainingJobStatus;

    const COMPONENT: &'static str = K::COMPONENT;
    const WATCHED: &'static [Watched] = K::WATCHED;

    fn noticed(&mut self, key: &ObjectKey, job: Option<&K>) {
        match job.filter(|job| !is_finished(*job)) {
            None => self.ports.release(key),
            Some(job) => {
                if let Some(port) = annotated_port(job.meta().annotations.as_ref()) {
                    self.ports.seen(key, port, ports_needed(job));
                }
            }
        }
    }

    fn decide(
        &mut self,
        key: &ObjectKey,
        cached: &CachedJob<'_, K>,
        now: Timestamp,
    ) -> ReconcileOutcome<TrainingJobStatus> {
        let room = self.rooms.of(&key.0);
        let (network, scheduler_name) = (&self.network, self.scheduler_name.as_str());
        let outcome = self.ports.with_others(key, |taken_ports| {
            let observed = ObservedTrainingJob {
                job: cached.job.view(),
                pods: &cached.pods,
                pod_group: cached.pod_group,
                services: &cached.services,
                config_maps: &cached.config_maps,
                taken_ports,
                network,
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

    fn status_of(job: &K) -> Value {
        serde_json::to_value(job.view().status).unwrap_or_default()
    }

    fn pod_event(created: bool) -> &'static str {
        if created {
            "SuccessfulCreatePod"
        } else {
            "SuccessfulDeletePod"
        }
    }
}
