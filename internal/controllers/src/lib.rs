//! The controllers' shell. Watches update the pure reconcilers and the scheduler; the loops write
//! back their decisions. The decisions themselves are made in `scheduler` and `workloads`.

pub mod cluster;
mod context;
pub mod core_controllers;
pub mod event_recorder;
mod inert_kinds;
pub mod jobs;
mod key;
pub mod lead;
pub mod preview;
mod retry;
pub mod scheduling;
#[cfg(test)]
mod test_log;

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

pub use context::{Config, Context};
pub use scheduler::Config as SchedulerConfig;
pub use scheduler::settings as scheduler_settings;

/// The running control loops.
pub struct Handle {
    /// Why each pending gang waits, and answers to what-if questions.
    pub board: Arc<scheduling::ReportBoard>,
    stop: tokio::sync::watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
}

/// Starts every control loop against this API. Must be called within a tokio runtime.
#[must_use]
pub fn start(client: kube::Client, config: Config) -> Handle {
    let (stop, stopping) = tokio::sync::watch::channel(false);
    let ctx = Context {
        client,
        config: Arc::new(config),
        stop: stopping,
    };
    let (board, mut tasks) = scheduling::spawn(&ctx);
    if ctx.config.core_controllers {
        tasks.extend(core_controllers::spawn(&ctx));
    }
    tasks.extend(jobs::spawn(&ctx));
    tasks.extend(inert_kinds::spawn(&ctx));
    Handle { board, stop, tasks }
}

impl Handle {
    /// Aborts the loops at once, as a crash would.
    pub fn cut_off(self) {
        let _ = self.stop.send(true);
        for task in self.tasks {
            task.abort();
        }
    }

    /// Waits until one of the loops has ended. A loop runs until it is asked to stop and is started again after a panic,
    /// so an end before that is a fault.
    pub async fn ended(&mut self) {
        let (_, at, _) = futures::future::select_all(&mut self.tasks).await;
        // A task that has ended must not be awaited again.
        drop(self.tasks.remove(at));
    }

    /// Asks the loops to stop and waits for them. Loops that run on after `patience` are aborted,
    /// which loses nothing that was acknowledged.
    pub async fn shutdown(self, patience: Duration) {
        // The send fails only if no loop is left to stop.
        let _ = self.stop.send(true);
        let deadline = tokio::time::Instant::now() + patience;
        for mut task in self.tasks {
            if tokio::time::timeout_at(deadline, &mut task).await.is_err() {
                task.abort();
            }
        }
    }
}
