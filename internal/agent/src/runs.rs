//! The start and the end of one run of a container, each in a separate task so that a pod's worker
//! never waits: a start may take minutes (images), a stop as long as its grace period. The result
//! goes back to the worker as a message.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, LifecycleHandler};
use runtime::spec::PullPolicy;
use runtime::{ContainerId, ContainerSpec, ContainerStatus};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::checks::{CheckError, CheckedContainer};
use crate::container::ContainerError;
use crate::engine::{ContainerEngine, NotStarted};
use crate::lifecycle::ProbeVerdict;
use crate::logs::LogStore;
use crate::worker_message::WorkerMessage;

/// The grace period of a container whose preStop hook used up the pod's.
const LEAST_GRACE: Duration = Duration::from_secs(2);

/// Time limit of a postStart hook.
const POST_START: Duration = Duration::from_secs(120);

/// Pause between two tries of a stop that failed.
const STOP_AGAIN: Duration = Duration::from_millis(500);

/// Maximum number of tries of a stop; together longer than a start may take.
const STOP_TRIES: usize = 7200;

/// A starting run; it can be cancelled until the runtime has it.
pub struct Beginning {
    /// The run's number.
    pub attempt: u32,
    called_off: watch::Sender<bool>,
    done: watch::Receiver<bool>,
}

/// A run that may exist.
pub struct RunningContainer {
    /// The runtime that runs it.
    pub engine: Arc<dyn ContainerEngine>,
    /// The run.
    pub id: ContainerId,
    /// The container's spec.
    pub container: Container,
    /// The run's number.
    pub attempt: u32,
    /// The pod's address.
    pub ip: String,
    /// The receiver of messages.
    pub to_worker: mpsc::Sender<WorkerMessage>,
}

impl RunningContainer {
    async fn hook(&self, hook: &LifecycleHandler, limit: Duration) -> Result<(), CheckError> {
        let target = CheckedContainer {
            engine: self.engine.as_ref(),
            id: &self.id,
            container: &self.container,
            ip: &self.ip,
        };
        target.hook(hook, limit).await
    }

    async fn not_running(&self, why: String) {
        let why = NotStarted::Failed(why);
        let message = WorkerMessage::NotStarted(self.container.name.clone(), self.attempt, why);
        let _ = self.to_worker.send(message).await;
    }
}

/// Starts a run. The runtime forgets the run before; its log stays, and those of earlier runs are
/// removed.
pub fn begin(
    engine: Arc<dyn ContainerEngine>,
    spec: Result<ContainerSpec, ContainerError>,
    container: &str,
    attempt: u32,
    to_worker: mpsc::Sender<WorkerMessage>,
) -> Beginning {
    let (done, is_done) = watch::channel(false);
    let (call_off, called_off) = watch::channel(false);
    let beginning = Beginning {
        attempt,
        called_off: call_off,
        done: is_done,
    };
    let container = container.to_owned();
    tokio::spawn(async move {
        let begun = match spec {
            Err(why) => Err(NotStarted::Failed(why.to_string())),
            Ok(spec) => {
                forget_the_one_before(engine.as_ref(), &spec).await;
                drop_earlier_logs(&spec).await;
                start(engine.as_ref(), spec, called_off).await
            }
        };
        let message = match begun {
            Ok(status) => WorkerMessage::Seen(Box::new(status)),
            Err(why) => WorkerMessage::NotStarted(container, attempt, why),
        };
        let _ = to_worker.send(message).await;
        done.send_replace(true);
    });
    beginning
}

/// Fetching ends when the run is cancelled; starting is short and is awaited, so that the result is
/// known.
async fn start(
    engine: &dyn ContainerEngine,
    mut spec: ContainerSpec,
    mut called_off: watch::Receiver<bool>,
) -> Result<ContainerStatus, NotStarted> {
    tokio::select! {
        biased;
        Ok(_) = called_off.wait_for(|called_off| *called_off) => {
            return Err(NotStarted::Failed("it was stopped before it began".to_owned()));
        }
        fetched = engine.fetch(&spec) => fetched?,
    }
    // Just fetched: the newest image is here, and need not be fetched again.
    if spec.pull == PullPolicy::Always {
        spec.pull = PullPolicy::IfNotPresent;
    }
    engine.start(spec).await
}

async fn forget_the_one_before(engine: &dyn ContainerEngine, spec: &ContainerSpec) {
    let Some(before) = spec.attempt.checked_sub(1) else {
        return;
    };
    if let Ok(id) = ContainerId::of(&spec.pod.uid, &spec.name, before)
        && let Err(error) = engine.remove(&id).await
    {
        tracing::debug!(%id, %error, "an earlier run was not removed");
    }
}

async fn drop_earlier_logs(spec: &ContainerSpec) {
    let Some(dir) = spec.log.path.parent().map(Path::to_owned) else {
        return;
    };
    let attempt = spec.attempt;
    // Each removal reports its own failure; only a shutdown of the agent ends this one early.
    let _ = tokio::task::spawn_blocking(move || LogStore::drop_earlier_runs(&dir, attempt)).await;
}

/// Ends a run: its preStop hook, then the signal, all within the grace period.
pub fn end(run: RunningContainer, running: bool, grace: u32, beginning: Option<&Beginning>) {
    if let Some(beginning) = beginning {
        beginning.called_off.send_replace(true);
    }
    let done = beginning.map(|beginning| beginning.done.clone());
    let grace = Duration::from_secs(u64::from(grace));
    tokio::spawn(async move {
        let began = Instant::now();
        let lifecycle = run.container.lifecycle.as_ref();
        let hook = lifecycle.and_then(|lifecycle| lifecycle.pre_stop.as_ref());
        if let (Some(hook), true) = (hook, running && !grace.is_zero())
            && let Err(error) = run.hook(hook, grace).await
        {
            tracing::info!(id = %run.id, %error, "a preStop hook failed");
        }
        let left = grace
            .saturating_sub(began.elapsed())
            .max(LEAST_GRACE.min(grace));
        stop(&run, left, done).await;
    });
}

/// Requests the end until the request is accepted, or there is no run to end.
async fn stop(run: &RunningContainer, grace: Duration, done: Option<watch::Receiver<bool>>) {
    for _ in 0..STOP_TRIES {
        // Read before the stop is tried: a later start is known to the runtime afterwards.
        let begun = done.as_ref().is_none_or(|done| *done.borrow());
        let Err(why) = run.engine.stop(&run.id, grace).await else {
            return;
        };
        let known = run.engine.list().iter().any(|status| status.id == run.id);
        if !known && begun {
            run.not_running(why.to_string()).await;
            return;
        }
        if known {
            tracing::warn!(id = %run.id, %why, "a container could not be stopped; trying again");
        }
        tokio::time::sleep(STOP_AGAIN).await;
    }
    tracing::error!(id = %run.id, "a container could not be stopped");
}

/// Runs the postStart hook; a failure ends the container.
pub fn post_start(run: RunningContainer) {
    let lifecycle = run.container.lifecycle.as_ref();
    let Some(hook) = lifecycle.and_then(|lifecycle| lifecycle.post_start.clone()) else {
        return;
    };
    tokio::spawn(async move {
        if let Err(why) = run.hook(&hook, POST_START).await {
            let verdict = ProbeVerdict::Condemned(format!("FailedPostStartHook: {why}"));
            let message = WorkerMessage::Probed(run.container.name.clone(), run.attempt, verdict);
            let _ = run.to_worker.send(message).await;
        }
    });
}
