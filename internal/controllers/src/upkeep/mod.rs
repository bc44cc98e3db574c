//! Owns the loops that keep the cluster tidy: garbage collection, namespaces, endpoints,
//! claims, silent nodes, leftover pods and disruption budgets. What they decide is in small pure functions;
//! the loops watch, ask those, and write. They start no work and place none.

mod access;
mod awake;
mod budgets;
mod claims;
mod endpoints;
mod garbage;
mod graph;
mod lost;
mod mirror;
mod namespaces;
mod nodes;
mod podgc;
mod silence;
mod subsets;
mod work;

use std::future::Future;
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::Context;

/// How long a loop that panicked is left alone before it is started again.
const RESTART_AFTER: Duration = Duration::from_secs(1);

/// Starts the upkeep loops; each ends when the context says stop. Must be called within
/// a tokio runtime.
pub fn spawn(ctx: &Context) -> Vec<JoinHandle<()>> {
    vec![
        kept_running(ctx, "garbage", garbage::run),
        kept_running(ctx, "namespaces", namespaces::run),
        kept_running(ctx, "endpoints", endpoints::run),
        kept_running(ctx, "claims", claims::run),
        kept_running(ctx, "nodes", nodes::run),
        kept_running(ctx, "podgc", podgc::run),
        kept_running(ctx, "budgets", budgets::run),
    ]
}

/// Runs a loop until the context says stop, again after a panic: it starts from what the
/// API says, so nothing is lost with it.
fn kept_running<F, R>(ctx: &Context, name: &'static str, run: F) -> JoinHandle<()>
where
    F: Fn(Context) -> R + Send + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let mut ctx = ctx.clone();
    tokio::spawn(async move {
        loop {
            let ended = crate::again::apart(run(ctx.clone())).await;
            let Err(error) = ended else { return };
            tracing::error!(name, %error, "an upkeep loop ended unexpectedly and is started again");
            tokio::select! {
                () = stopped(&mut ctx.stop) => return,
                () = tokio::time::sleep(RESTART_AFTER) => {}
            }
        }
    })
}

/// Resolves once the server is stopping.
async fn stopped(stop: &mut tokio::sync::watch::Receiver<bool>) {
    // An error means that whoever could say stop is gone: as good as a stop.
    let _ = stop.wait_for(|stop| *stop).await;
}
