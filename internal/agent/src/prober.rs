//! One probe of one run of a container, for the duration of the run. `probes` counts its results,
//! and the pod's state machine decides on them.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Container;
use runtime::ContainerId;
use tokio::sync::{mpsc, watch};

use crate::checks::CheckedContainer;
use crate::engine::ContainerEngine;
use crate::lifecycle::ProbeVerdict;
use crate::probes::{ConsecutiveResults, ProbeKind, Schedule};
use crate::worker_message::WorkerMessage;

/// One probe of one run.
pub struct Prober {
    /// The runtime that runs the container.
    pub engine: Arc<dyn ContainerEngine>,
    /// The run.
    pub id: ContainerId,
    /// The container's spec.
    pub container: Container,
    /// The pod's address.
    pub ip: String,
    /// The kind of probe.
    pub kind: ProbeKind,
    /// The container's name.
    pub name: String,
    /// The run's number.
    pub attempt: u32,
    /// The receiver of results.
    pub to_worker: mpsc::Sender<WorkerMessage>,
    /// Set by the startup probe.
    pub has_started: Arc<watch::Sender<bool>>,
    /// The startup that the other probes wait for.
    pub wait_started: watch::Receiver<bool>,
}

impl Prober {
    /// Probes until the result is final or the worker is gone.
    pub async fn run(mut self, probe: k8s_openapi::api::core::v1::Probe) {
        let schedule = Schedule::of(&probe);
        let mut counter = ConsecutiveResults::default();
        let startup = self.container.startup_probe.is_some();
        if self.kind != ProbeKind::Startup
            && startup
            && self
                .wait_started
                .wait_for(|started| *started)
                .await
                .is_err()
        {
            return;
        }
        tokio::time::sleep(schedule.initial_delay).await;
        let mut tick = tokio::time::interval(schedule.period);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let target = CheckedContainer {
                engine: self.engine.as_ref(),
                id: &self.id,
                container: &self.container,
                ip: &self.ip,
            };
            let result = target.probe(&probe, schedule.timeout).await;
            let Some(counted) = counter.add(result.is_ok(), &schedule) else {
                continue;
            };
            let why = result
                .err()
                .map(|error| error.to_string())
                .unwrap_or_default();
            let verdict = match (self.kind, counted) {
                (ProbeKind::Startup, true) => ProbeVerdict::Started,
                (ProbeKind::Readiness, ready) => ProbeVerdict::Ready(ready),
                (ProbeKind::Liveness, true) => continue,
                (kind, false) => {
                    ProbeVerdict::Condemned(format!("{} probe failed: {why}", kind.title()))
                }
            };
            let last = matches!(verdict, ProbeVerdict::Started | ProbeVerdict::Condemned(_));
            let message = WorkerMessage::Probed(self.name.clone(), self.attempt, verdict);
            if self.to_worker.send(message).await.is_err() {
                return;
            }
            if self.kind == ProbeKind::Startup && counted {
                self.has_started.send_replace(true);
            }
            if last {
                return;
            }
        }
    }
}
