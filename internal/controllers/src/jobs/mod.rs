//! The job controllers. Watches of jobs and of their dependents update the pure reconcilers of
//! `workloads`; the runner carries out the reconcilers' decisions. This module wires them together
//! and decides nothing about jobs.

mod apply;
mod apps;
mod background_questions;
mod batch;
mod caches;
mod cronjob;
mod dependents;
mod difference;
mod jobset;
mod leaderworkerset;
mod mirror;
mod nodes;
mod pod_call;
mod ports;
mod program_monitor;
mod queue;
mod ray;
mod rayjob;
mod rayservice;
mod rooms;
mod runner;
mod runtimes;
mod serve_monitor;
mod sets;
mod ssh_keys;
mod training;
mod trainjob;
mod volcano;

use std::time::Duration;

use kube::{Client, Resource, core::NamespaceResourceScope};
use resources::kinds::{JAXJob, MPIJob, PaddleJob, PyTorchJob, TFJob, XGBoostJob};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;

use crate::context::Context;
use crate::control_loop::{ControlLoop, stopped};
pub use crate::job_kind::JobKind;
pub(crate) use crate::key::{ObjectKey, key_of};

/// The wait before a controller that panicked is started again.
const RESTART_AFTER: Duration = Duration::from_secs(1);

/// Starts the controllers of the configured kinds; they stop when `ctx.stop` turns true. Must be
/// called within a tokio runtime.
#[must_use]
pub fn spawn(ctx: &Context) -> Vec<ControlLoop> {
    let rooms = rooms::PodRooms::default();
    let start = |kind: &JobKind| match kind {
        JobKind::Deployment => {
            tokio::spawn(kept_running(ctx.clone(), || apps::DeploymentController))
        }
        JobKind::ReplicaSet => {
            let rooms = rooms.clone();
            let make = move || apps::ReplicaSetController {
                rooms: rooms.clone(),
            };
            tokio::spawn(kept_running(ctx.clone(), make))
        }
        JobKind::StatefulSet => {
            let rooms = rooms.clone();
            let make = move || sets::StatefulSetController {
                rooms: rooms.clone(),
            };
            tokio::spawn(kept_running(ctx.clone(), make))
        }
        JobKind::DaemonSet => tokio::spawn(kept_running(ctx.clone(), || sets::DaemonSetController)),
        JobKind::CronJob => tokio::spawn(kept_running(ctx.clone(), || cronjob::CronJobController)),
        JobKind::Job => {
            let rooms = rooms.clone();
            let make = move || batch::JobController {
                rooms: rooms.clone(),
            };
            tokio::spawn(kept_running(ctx.clone(), make))
        }
        JobKind::PyTorchJob => training::<PyTorchJob>(ctx, &rooms),
        JobKind::TFJob => training::<TFJob>(ctx, &rooms),
        JobKind::XGBoostJob => training::<XGBoostJob>(ctx, &rooms),
        JobKind::PaddleJob => training::<PaddleJob>(ctx, &rooms),
        JobKind::JAXJob => training::<JAXJob>(ctx, &rooms),
        JobKind::VolcanoJob => {
            let (config, rooms) = (ctx.config.clone(), rooms.clone());
            let make = move || {
                let scheduler = config.scheduler.scheduler_names.first().cloned();
                let ports = &config.rendezvous_ports;
                volcano::VolcanoController::new(ports, scheduler, rooms.clone())
            };
            tokio::spawn(kept_running(ctx.clone(), make))
        }
        JobKind::RayCluster => {
            let (config, rooms) = (ctx.config.clone(), rooms.clone());
            let make = move || {
                let scheduler = config.scheduler.scheduler_names.first().cloned();
                ray::RayClusterController::new(&config.rendezvous_ports, scheduler, rooms.clone())
            };
            tokio::spawn(kept_running(ctx.clone(), make))
        }
        JobKind::RayJob => {
            let client = ctx.client.clone();
            let make = move || rayjob::RayJobController::new(client.clone());
            tokio::spawn(kept_running(ctx.clone(), make))
        }
        JobKind::RayService => {
            let client = ctx.client.clone();
            let make = move || rayservice::RayServiceController::new(client.clone());
            tokio::spawn(kept_running(ctx.clone(), make))
        }
        JobKind::MPIJob => training::<MPIJob>(ctx, &rooms),
        JobKind::JobSet => {
            let rooms = rooms.clone();
            let make = move || jobset::JobSetController {
                rooms: rooms.clone(),
            };
            tokio::spawn(kept_running(ctx.clone(), make))
        }
        JobKind::LeaderWorkerSet => {
            let rooms = rooms.clone();
            let make = move || leaderworkerset::LeaderWorkerSetController {
                rooms: rooms.clone(),
            };
            tokio::spawn(kept_running(ctx.clone(), make))
        }
        JobKind::TrainJob => {
            let config = ctx.config.clone();
            let make = move || trainjob::TrainJobController::new(&config.rendezvous_ports);
            tokio::spawn(kept_running(ctx.clone(), make))
        }
    };
    let jobs = ctx.config.jobs.iter();
    let mut loops: Vec<ControlLoop> = jobs
        .map(|kind| ControlLoop::new(kind.as_str(), start(kind)))
        .collect();
    if !loops.is_empty() {
        loops.push(follow_rooms(ctx, rooms));
    }
    loops
}

/// Follows what bounds jobs' pods. Quotas only on the embedded engine: in a Kubernetes cluster
/// Muster has no right to read them, and kube-apiserver refuses the pods.
fn follow_rooms(ctx: &Context, rooms: rooms::PodRooms) -> ControlLoop {
    let (client, stop) = (ctx.client.clone(), ctx.stop.clone());
    let quotas = ctx.config.core_controllers;
    ControlLoop::kept_running(&ctx.stop, "room for pods", move || {
        let (following, mut stop) = (
            rooms::run(client.clone(), rooms.clone(), quotas),
            stop.clone(),
        );
        async move {
            tokio::select! {
                () = stopped(&mut stop) => {}
                () = following => {}
            }
        }
    })
}

fn training<K: training::ControlledTraining>(
    ctx: &Context,
    rooms: &rooms::PodRooms,
) -> JoinHandle<()> {
    let (config, rooms) = (ctx.config.clone(), rooms.clone());
    let make = move || {
        let scheduler = config.scheduler.scheduler_names.first().cloned();
        training::TrainingController::<K>::new(&config.rendezvous_ports, scheduler, rooms.clone())
    };
    tokio::spawn(kept_running(ctx.clone(), make))
}

/// Runs a controller until `ctx.stop` turns true, and restarts it after a panic. A restart loses
/// nothing: the controller rebuilds its state from the API.
async fn kept_running<W: runner::Workload>(mut ctx: Context, make: impl Fn() -> W) {
    loop {
        let ended = crate::retry::apart(runner::run(ctx.clone(), make())).await;
        let Err(error) = ended else { return };
        tracing::error!(
            controller = W::COMPONENT, %error,
            "a job controller ended unexpectedly; the server starts it again"
        );
        tokio::select! {
            // Stop was requested, or its sender is gone: both end the controller.
            _ = ctx.stop.wait_for(|stop| *stop) => return,
            () = tokio::time::sleep(RESTART_AFTER) => {}
        }
    }
}

/// The bounds that the runner needs on an object's type.
pub(crate) trait RunnerObject:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + std::fmt::Debug
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
}

impl<K> RunnerObject for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + Serialize
        + DeserializeOwned
        + Send
        + Sync
        + 'static
{
}

/// The objects of one kind in one namespace.
pub(crate) fn api<K: RunnerObject>(client: &Client, namespace: &str) -> kube::Api<K> {
    kube::Api::namespaced(client.clone(), namespace)
}
