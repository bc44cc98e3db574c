//! The core controllers: garbage collection, namespaces, endpoints, claims, silent nodes, leftover
//! pods, disruption budgets and pods on tainted nodes. Small pure functions decide; the loops watch, ask those, and write.
//! They create no workloads and place none.

mod access;
mod budgets;
mod claims;
mod endpoints;
mod garbage;
mod graph;
mod lost_pods;
mod mirror;
mod namespaces;
mod node_liveness;
mod nodes;
mod podgc;
mod pressure;
mod server_clock;
mod subsets;
mod taint_evictions;
mod tolerance;
mod work_queue;

use std::future::Future;
use std::time::Duration;

use crate::context::Context;
use crate::control_loop::ControlLoop;

/// The wait before a loop that panicked is started again.
const RESTART_AFTER: Duration = Duration::from_secs(1);

/// Starts the core controllers; each stops when `ctx.stop` turns true. Must be called within a
/// tokio runtime.
pub fn spawn(ctx: &Context) -> Vec<ControlLoop> {
    vec![
        kept_running(ctx, "garbage", garbage::run),
        kept_running(ctx, "namespaces", namespaces::run),
        kept_running(ctx, "endpoints", endpoints::run),
        kept_running(ctx, "claims", claims::run),
        kept_running(ctx, "nodes", nodes::run),
        kept_running(ctx, "podgc", podgc::run),
        kept_running(ctx, "budgets", budgets::run),
        kept_running(ctx, "taint evictions", taint_evictions::run),
    ]
}

/// Runs a loop until `ctx.stop` turns true, and restarts it after a panic. A restart loses nothing:
/// the loop rebuilds its state from the API.
fn kept_running<F, R>(ctx: &Context, name: &'static str, run: F) -> ControlLoop
where
    F: Fn(Context) -> R + Send + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let mut ctx = ctx.clone();
    let task = tokio::spawn(async move {
        loop {
            let ended = crate::retry::apart(run(ctx.clone())).await;
            let Err(error) = ended else { return };
            tracing::error!(name, %error, "a core controller ended unexpectedly; the server starts it again");
            tokio::select! {
                () = stopped(&mut ctx.stop) => return,
                () = tokio::time::sleep(RESTART_AFTER) => {}
            }
        }
    });
    ControlLoop::new(name, task)
}

/// Resolves once the server is stopping.
async fn stopped(stop: &mut tokio::sync::watch::Receiver<bool>) {
    // An error means that the sender of the signal is gone, which counts as a stop.
    let _ = stop.wait_for(|stop| *stop).await;
}
