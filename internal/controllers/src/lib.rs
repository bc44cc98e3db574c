//! The controllers' shell. Watches update the pure reconcilers and the scheduler; the loops write
//! back their decisions. The decisions themselves are made in `scheduler` and `workloads`.

pub mod cluster;
mod context;
mod control_loop;
pub mod core_controllers;
pub mod event_recorder;
mod inert_kinds;
mod job_kind;
pub mod jobs;
mod key;
pub mod lead;
mod part;
pub mod preview;
mod retry;
pub mod scheduling;
#[cfg(test)]
mod test_log;

use std::sync::Arc;
use std::time::Duration;

pub use context::{Config, Context};
pub use control_loop::ControlLoop;
pub use scheduler::Config as SchedulerConfig;
pub use scheduler::settings as scheduler_settings;

/// The running control loops.
pub struct Handle {
    /// Why each pending gang waits, and answers to what-if questions.
    pub board: Arc<scheduling::ReportBoard>,
    stop: tokio::sync::watch::Sender<bool>,
    loops: Vec<ControlLoop>,
}

/// A control loop that ended although it was not asked to stop.
#[derive(Debug, thiserror::Error)]
#[error("control loop {name:?} {how}; this is a bug, please report it with the log")]
pub struct LoopEnded {
    /// The loop's name.
    pub name: &'static str,
    how: String,
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
    let (board, mut loops) = scheduling::spawn(&ctx);
    if ctx.config.core_controllers {
        loops.extend(core_controllers::spawn(&ctx));
    }
    loops.extend(jobs::spawn(&ctx));
    loops.extend(inert_kinds::spawn(&ctx));
    Handle { board, stop, loops }
}

impl Handle {
    /// Aborts the loops at once, as a crash would.
    pub fn cut_off(self) {
        let _ = self.stop.send(true);
        for control_loop in self.loops {
            control_loop.task.abort();
        }
    }

    /// Waits until one of the loops has ended, and names it. A loop runs until it is asked to stop and is started again
    /// after a panic, so an end before that is a fault.
    pub async fn ended(&mut self) -> LoopEnded {
        let tasks = self.loops.iter_mut().map(|running| &mut running.task);
        let (ended, at, _) = futures::future::select_all(tasks).await;
        // A task that has ended must not be awaited again.
        let name = self.loops.remove(at).name;
        let how = match ended {
            Ok(()) => "ended before a stop was requested".to_owned(),
            Err(error) => format!("failed: {error}"),
        };
        LoopEnded { name, how }
    }

    /// Asks the loops to stop and waits for them. Loops that run on after `patience` are aborted,
    /// which loses nothing that was acknowledged.
    pub async fn shutdown(self, patience: Duration) {
        // The send fails only if no loop is left to stop.
        let _ = self.stop.send(true);
        let deadline = tokio::time::Instant::now() + patience;
        for ControlLoop { mut task, .. } in self.loops {
            if tokio::time::timeout_at(deadline, &mut task).await.is_err() {
                task.abort();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(loops: Vec<ControlLoop>) -> Handle {
        let (stop, _) = tokio::sync::watch::channel(false);
        let board = Arc::new(scheduling::ReportBoard::new(&SchedulerConfig::default()));
        Handle { board, stop, loops }
    }

    #[tokio::test]
    async fn the_loop_that_ends_is_named_and_the_others_can_still_be_stopped() {
        let runs = |name| ControlLoop::new(name, tokio::spawn(std::future::pending()));
        let returned = ControlLoop::new("claims", tokio::spawn(async {}));
        let panicked = ControlLoop::new("nodes", tokio::spawn(async { panic!("a bug") }));
        let mut running = handle(vec![runs("garbage"), returned, runs("budgets"), panicked]);
        let mut ends = [running.ended().await, running.ended().await];
        ends.sort_by_key(|ended| ended.name);
        assert_eq!(
            ends[0].to_string(),
            "control loop \"claims\" ended before a stop was requested; this is a bug, please report it with the log"
        );
        let text = ends[1].to_string();
        assert!(
            text.starts_with("control loop \"nodes\" failed: "),
            "{text}"
        );
        assert!(text.contains("a bug"), "{text}");
        running.shutdown(Duration::ZERO).await;
    }
}
