//! What the server itself measures: GPUs in use, and jobs that wait and run.

use futures::FutureExt;

use super::{Board, JobEntry, Tone};

/// The GPUs of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeGpus {
    /// The node.
    pub name: String,
    /// Healthy GPUs that pods hold.
    pub in_use: usize,
    /// Healthy GPUs; none while the node is away.
    pub gpus: usize,
}

/// Counts of the whole cluster at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterCounts {
    /// The GPUs by node.
    pub nodes: Vec<NodeGpus>,
    /// Jobs and pods without a job that wait for room.
    pub jobs_waiting: usize,
    /// Jobs and pods without a job that run.
    pub jobs_running: usize,
}

impl ClusterCounts {
    /// The GPUs that pods hold.
    pub fn gpus_allocated(&self) -> usize {
        self.nodes.iter().map(|node| node.in_use).sum()
    }

    /// The GPUs that are there.
    pub fn gpus(&self) -> usize {
        self.nodes.iter().map(|node| node.gpus).sum()
    }
}

/// True for an entry that waits for room.
pub fn waits(entry: &JobEntry) -> bool {
    matches!(entry.base().label(), "Waiting")
}

/// True for an entry with running pods.
pub fn runs(entry: &JobEntry) -> bool {
    entry.base().tone == Tone::Busy
}

impl Board {
    /// The counts now; none before the board has read the nodes and the pods once.
    pub fn counts(&self) -> Option<ClusterCounts> {
        self.nodes.wait_until_ready().now_or_never()?.ok()?;
        self.pods.wait_until_ready().now_or_never()?.ok()?;
        let cards = self.nodes(|_| true);
        let nodes = cards.iter().map(|card| {
            let there = card.gpus.iter().filter(|gpu| gpu.healthy && !gpu.away);
            NodeGpus {
                name: card.name.clone(),
                in_use: there.clone().filter(|gpu| !gpu.holder.is_empty()).count(),
                gpus: there.count(),
            }
        });
        let entries = self.entries(|_, _, _| true);
        Some(ClusterCounts {
            nodes: nodes.collect(),
            jobs_waiting: entries.iter().filter(|entry| waits(entry)).count(),
            jobs_running: entries.iter().filter(|entry| runs(entry)).count(),
        })
    }
}
