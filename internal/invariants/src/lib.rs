//! Invariants of a cluster, independent of the scheduler's decisions, as numbered predicates. The
//! crate shares no code with the scheduler: it keeps its own account of the same objects, and every
//! plan is checked against it before anything is written. Pure. It repairs nothing: it reports each
//! violation with the binds that cause it.
//!
//! | number | invariant |
//! |---|---|
//! | I1 | no node allocates more than its allocatable, of any resource |
//! | I2 | no device is overcommitted (twice, or in fractions), unknown, or unhealthy; a pod gets as
//! many as it requests |
//! | I3 | no gang holds resources with less than its minimum, in total and by task |
//! | I4 | no queue holds more than its capability |
//! | I5 | a pod is bound once, and is the pod that was planned |
//! | I6 | a pod's selector, affinity and tolerations allow its node, and the node accepts pods |
//! | I7 | no container gets another device beside an exclusive one |

mod alone;
mod cluster;
mod constraints;
mod gpus;
mod predicates;
mod products;

#[cfg(test)]
mod tests;

pub use cluster::{ClusterAccount, PodId};
pub use predicates::check;

use std::fmt;

use resources::devices::ChosenDevices;

/// A bind that a plan proposes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProposedBind {
    /// The pod.
    pub pod: PodId,
    /// Its uid.
    pub uid: String,
    /// The node's name.
    pub node: String,
    /// The chosen devices.
    pub devices: ChosenDevices,
}

/// The predicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// No node over its allocatable.
    NodeCapacity = 1,
    /// Devices allocated once, known, healthy, and as many as requested.
    Devices = 2,
    /// No incomplete gang.
    WholeGangs = 3,
    /// No queue over its capability.
    QueueCapability = 4,
    /// A pod is bound once.
    BoundOnce = 5,
    /// Constraints of pod and node.
    Constraints = 6,
    /// Exclusive devices.
    ByItself = 7,
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "I{}", *self as u8)
    }
}

/// A predicate that a plan would break.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The predicate.
    pub invariant: Invariant,
    /// The violation, with the objects and the numbers.
    pub what: String,
    /// The pods whose binds contribute to it: drop those, with their gangs.
    pub pods: Vec<PodId>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.what)
    }
}
