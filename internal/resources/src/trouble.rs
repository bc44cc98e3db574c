//! The conditions of nodes that are true where there is trouble, in the words in which the agent beside a
//! kubelet and the embedded engine's server write them. Pure.

use crate::names::{
    DEVICES_UNHEALTHY, DISK_PRESSURE, FABRIC_FAILED, MIG_FAILED, MIG_NOT_UNIFORM, SUSPECT,
};

/// A condition, with its reason where there is trouble, and its reason and words where there is none.
#[derive(Debug)]
pub struct Trouble {
    /// The condition's type.
    pub condition: &'static str,
    /// Why it is true.
    pub reason: &'static str,
    /// Why it is false.
    pub well: &'static str,
    /// What is said where it is false.
    pub words: &'static str,
}

/// Something is wrong that does not stop the node yet.
pub static SUSPICION: Trouble = Trouble {
    condition: SUSPECT,
    reason: "AgentSuspects",
    well: "NothingFound",
    words: "nothing is wrong that is known of",
};

/// The node's RDMA fails.
pub static FABRIC: Trouble = Trouble {
    condition: FABRIC_FAILED,
    reason: "RdmaFails",
    well: "RdmaWorks",
    words: "nothing is known against its RDMA any more",
};

/// The file system of the agent's data has too little left.
pub static DISK: Trouble = Trouble {
    condition: DISK_PRESSURE,
    reason: "AgentHasDiskPressure",
    well: "AgentHasNoDiskPressure",
    words: "the file system of the agent's data has enough left",
};

/// Slices are of several profiles where the strategy wants one.
pub static STRATEGY: Trouble = Trouble {
    condition: MIG_NOT_UNIFORM,
    reason: "SeveralProfiles",
    well: "Kept",
    words: "slices are given out as the strategy says",
};

/// Described devices are not well.
pub static DEVICES: Trouble = Trouble {
    condition: DEVICES_UNHEALTHY,
    reason: "DevicesUnhealthy",
    well: "DevicesHealthy",
    words: "all devices of which it has descriptions are given out",
};

/// The GPUs are not cut as the node's label says.
pub static MIG_CONFIG_FAILED: Trouble = Trouble {
    condition: MIG_FAILED,
    reason: "MigConfigFailed",
    well: "MigConfigNotFailed",
    words: "nothing is wrong with how the GPUs are to be cut",
};

impl Trouble {
    /// Status, reason and words where this is wrong; where it is empty, nothing is.
    #[must_use]
    pub fn says<'a>(&self, wrong: &'a str) -> (&'static str, &'static str, &'a str) {
        match wrong {
            "" => ("False", self.well, self.words),
            wrong => ("True", self.reason, wrong),
        }
    }
}
