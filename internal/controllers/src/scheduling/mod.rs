//! The scheduler's loop. Watches update the pure scheduler, the invariants check its plans, and the
//! loop writes them: evictions, volume claims, bindings, statuses, conditions, events. This module
//! owns the writes and their order; `scheduler` decides on placement.

mod api_retry;
mod backoff;
mod binder;
mod checked_planner;
mod claims;
mod counters;
mod event_handlers;
mod evictor;
mod extender;
mod history;
mod mig_repartitioner;
mod queries;
mod queue_status;
mod queues;
mod run;
mod set_aside;
mod statuses;
mod volume_binder;
mod write_queue;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use self::set_aside::SetAside;
use crate::context::Context;
use crate::control_loop::ControlLoop;
use crate::retry;

pub use counters::{CounterSnapshot, SchedulingCounters};
pub use extender::{BindError, NoBind, NodeVictims};
pub use queries::ReportBoard;
pub use scheduler::{Infeasible, PodRef};

/// The wait before a loop that panicked is started again; it doubles while the loop panics
/// repeatedly and the cause is not found.
const RESTART_FIRST: Duration = Duration::from_secs(1);
/// The longest wait before a restart. A loop that ran for longer starts with the shortest wait
/// again.
const RESTART_LONGEST: Duration = Duration::from_secs(30);

/// Starts the scheduler; it stops when `ctx.stop` turns true. The [`ReportBoard`] holds its latest
/// reports and answers what-if questions. Must be called within a tokio runtime.
#[must_use]
pub fn spawn(ctx: &Context) -> (Arc<ReportBoard>, Vec<ControlLoop>) {
    let board = Arc::new(ReportBoard::new(&ctx.config.scheduler));
    let task = tokio::spawn(kept_running(ctx.clone(), board.clone()));
    (board, vec![ControlLoop::new("scheduler", task)])
}

/// Runs the loop until `ctx.stop` turns true, and restarts it after a panic. A restart loses
/// nothing: the loop rebuilds its state from the API.
async fn kept_running(mut ctx: Context, board: Arc<ReportBoard>) {
    let aside = Arc::new(Mutex::new(SetAside::default()));
    let mut wait = RESTART_FIRST;
    loop {
        let begun = Instant::now();
        let ended = retry::apart(run::run(ctx.clone(), board.clone(), aside.clone())).await;
        let Err(error) = ended else { return };
        tracing::error!(%error, "the scheduler ended unexpectedly; the server starts it again");
        let found = aside.lock().next_due().is_some();
        if found || begun.elapsed() > RESTART_LONGEST {
            wait = RESTART_FIRST;
        }
        tokio::select! {
            () = stopped(&mut ctx.stop) => return,
            () = tokio::time::sleep(wait) => {}
        }
        wait = (wait * 2).min(RESTART_LONGEST);
    }
}

/// Resolves when the server is stopping, or when the sender of that signal is gone.
async fn stopped(stop: &mut tokio::sync::watch::Receiver<bool>) {
    while !*stop.borrow_and_update() {
        if stop.changed().await.is_err() {
            return;
        }
    }
}
