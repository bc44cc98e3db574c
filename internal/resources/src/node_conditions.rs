//! Node conditions that are true while there is a fault, as the agent beside a kubelet and the embedded engine's server
//! write them. Pure.

use crate::names::{
    DEVICES_UNHEALTHY, DISK_PRESSURE, FABRIC_FAILED, MIG_FAILED, MIG_NOT_UNIFORM, SUSPECT,
    VERSION_REFUSED,
};

/// A condition, with its reason for `True`, and its reason and message for `False`.
#[derive(Debug)]
pub struct NodeCondition {
    /// The condition's type.
    pub condition: &'static str,
    /// Why it is true.
    pub reason: &'static str,
    /// Why it is false.
    pub well: &'static str,
    /// The message for `False`.
    pub words: &'static str,
}

/// A fault that does not stop the node yet.
pub static SUSPICION: NodeCondition = NodeCondition {
    condition: SUSPECT,
    reason: "AgentSuspects",
    well: "NothingFound",
    words: "no fault of the node is known",
};

/// The node's RDMA fails.
pub static FABRIC: NodeCondition = NodeCondition {
    condition: FABRIC_FAILED,
    reason: "RdmaFails",
    well: "RdmaWorks",
    words: "no fault of the node's RDMA is known any more",
};

/// The file system of the agent's data has too little free space.
pub static DISK: NodeCondition = NodeCondition {
    condition: DISK_PRESSURE,
    reason: "AgentHasDiskPressure",
    well: "AgentHasNoDiskPressure",
    words: "the file system of the agent's data has enough free space",
};

/// The slices have several profiles although the strategy requires one.
pub static STRATEGY: NodeCondition = NodeCondition {
    condition: MIG_NOT_UNIFORM,
    reason: "SeveralProfiles",
    well: "Kept",
    words: "the node offers its slices as the MIG strategy says",
};

/// Described devices are unhealthy.
pub static DEVICES: NodeCondition = NodeCondition {
    condition: DEVICES_UNHEALTHY,
    reason: "DevicesUnhealthy",
    well: "DevicesHealthy",
    words: "all described devices of the node are allocatable",
};

/// The GPUs are not partitioned as the node's label requests.
pub static MIG_CONFIG_FAILED: NodeCondition = NodeCondition {
    condition: MIG_FAILED,
    reason: "MigConfigFailed",
    well: "MigConfigNotFailed",
    words: "no fault of the GPUs' MIG configuration is known",
};

/// The server refuses the version of the node's agent.
pub static VERSION: NodeCondition = NodeCondition {
    condition: VERSION_REFUSED,
    reason: "AgentVersionRefused",
    well: "AgentVersionAccepted",
    words: "the server accepts the version of the node's agent",
};

impl NodeCondition {
    /// Status, reason and message for this fault; an empty text means that there is none.
    #[must_use]
    pub fn says<'a>(&self, wrong: &'a str) -> (&'static str, &'static str, &'a str) {
        match wrong {
            "" => ("False", self.well, self.words),
            wrong => ("True", self.reason, wrong),
        }
    }
}
