//! Removes the logs of deleted pods periodically, as far as their limits require.

use std::sync::Arc;
use std::time::SystemTime;

use crate::logs::SWEEP;
use crate::node::AgentNode;
use crate::pods::Pods;

/// Runs without end.
pub async fn run(node: Arc<AgentNode>, pods: Arc<Pods>) {
    let mut tick = tokio::time::interval(SWEEP);
    loop {
        tick.tick().await;
        let (store, live) = (node.logs.clone(), pods.uids());
        let swept =
            tokio::task::spawn_blocking(move || store.sweep(&live, SystemTime::now())).await;
        if let Ok(count) = swept
            && count > 0
        {
            tracing::info!(pods = count, "old logs were removed");
        }
    }
}
