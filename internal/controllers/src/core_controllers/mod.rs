//! The core controllers: garbage collection, namespaces, endpoints, claims, silent nodes, leftover
//! pods, disruption budgets, autoscalers and pods on tainted nodes. Small pure functions decide; the loops watch, ask those, and write.
//! They create no workloads and place none.

mod access;
mod autoscalers;
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

use crate::context::Context;
use crate::control_loop::{ControlLoop, stopped};

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
        kept_running(ctx, "autoscalers", autoscalers::run),
        kept_running(ctx, "taint evictions", taint_evictions::run),
    ]
}

fn kept_running<F, R>(ctx: &Context, name: &'static str, run: F) -> ControlLoop
where
    F: Fn(Context) -> R + Send + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let of = ctx.clone();
    ControlLoop::kept_running(&ctx.stop, name, move || run(of.clone()))
}
