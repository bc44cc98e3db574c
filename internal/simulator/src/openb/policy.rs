//! The interface of a policy in the benchmark, and the list of policies.

use std::fmt;

use scheduler::fragment::{NodeRoom, PodDemand};

use super::baseline::{BestFit, Fgd};
use super::data::{OpenbCluster, OpenbPod, typical};
use super::production::Production;

/// The placement of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenbPlacement {
    /// Index of the node.
    pub node: usize,
    /// Bit i: GPU i.
    pub mask: u16,
}

/// A placement policy.
pub trait PlacementPolicy {
    /// Picks a node among those where the pod fits; none only if there is none.
    fn choose(
        &mut self,
        nodes: &[NodeRoom],
        rank: &[u32],
        demand: &PodDemand,
    ) -> Option<OpenbPlacement>;
    /// Receives the node's free resources after each placement.
    fn placed(&mut self, _node: usize, _room: &NodeRoom) {}
}

/// The policies that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Which {
    /// The paper's fragmentation gradient descent.
    Fgd,
    /// The paper's best fit.
    BestFit,
    /// The scheduler as it ships; it learns the expected pods from those that arrived.
    Muster,
    /// The same with FGD's knowledge of the expected pods: `Config::expected` is the variant's
    /// list.
    MusterTold,
}

impl Which {
    /// All, in the order of the tables.
    pub const ALL: [Which; 4] = [Which::Fgd, Which::BestFit, Which::Muster, Which::MusterTold];

    /// The policy at the start of a run.
    #[must_use]
    pub fn make(
        self,
        cluster: &OpenbCluster,
        pods: &[OpenbPod],
        rank: &[u32],
    ) -> Box<dyn PlacementPolicy> {
        match self {
            Which::Fgd => Box::new(Fgd::new(typical(pods), &cluster.shapes)),
            Which::BestFit => Box::new(BestFit),
            Which::Muster => Box::new(Production::new(cluster, rank, &[])),
            Which::MusterTold => Box::new(Production::new(cluster, rank, pods)),
        }
    }
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Which::Fgd => "FGD",
            Which::BestFit => "BestFit",
            Which::Muster => "Muster",
            Which::MusterTold => "Muster-told",
        })
    }
}
