//! The messages to a pod's worker: from the server, the runtime, the node's watches, and the tasks that the worker
//! itself started.

use rpc::agent::v1::{Assign, HostsEntry};
use runtime::ContainerStatus;

use crate::engine::NotStarted;
use crate::eviction::PressureReason;
use crate::lifecycle::ProbeVerdict;

/// Capacity of the message channel to one pod's worker.
pub const MAX_WORDS: usize = 256;

/// A message to a worker.
#[derive(Debug)]
pub enum WorkerMessage {
    /// The pod again, with data that was missing.
    Assigned(Box<Assign>),
    /// New names for the hosts file.
    Hosts(Vec<HostsEntry>),
    /// The pod must end.
    Stop {
        /// The grace period in seconds.
        grace: u32,
        /// The reason.
        reason: String,
    },
    /// A change of a container's state.
    Seen(Box<ContainerStatus>),
    /// A run could not be started.
    NotStarted(String, u32, NotStarted),
    /// A container uses more of a GPU's memory than its share.
    OverShare {
        /// The container.
        container: String,
        /// The reason, in a sentence.
        why: String,
        /// Whether to report it.
        report: bool,
        /// Whether to end the container.
        end: bool,
    },
    /// The pod is evicted.
    Evict(PressureReason),
    /// The result of a probe or hook.
    Probed(String, u32, ProbeVerdict),
}
