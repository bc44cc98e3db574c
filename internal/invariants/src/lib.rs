//! What must hold of a cluster whatever the scheduler decides, as numbered predicates. Shares no
//! code with the scheduler: it keeps its own account of the same objects, and every plan is held
//! against it before anything is written. Pure. It repairs nothing: it says what is wrong and
//! with which binds.
//!
//! | number | what must hold |
//! |---|---|
//! | I1 | no node gives more than it has, of any resource |
//! | I2 | no device is given beyond what it has (twice, or in parts), unknown, or unhealthy; a pod gets as many as it asks for |
//! | I3 | no gang holds room with less than its minimum, in all and by task |
//! | I4 | no queue holds more than its capability |
//! | I5 | a pod is bound once, and is the one that was meant |
//! | I6 | a pod goes where its selector, affinity and tolerations let it, to a node that takes pods |
//! | I7 | no container gets several devices where it can have one by itself only |

mod alone;
mod cluster;
mod constraints;
mod gpus;
mod predicates;
mod products;

#[cfg(test)]
mod tests;

pub use cluster::{Cluster, PodId};
pub use predicates::check;

use std::fmt;

use resources::devices::ChosenDevices;

/// A pod that a plan wants bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The pod.
    pub pod: PodId,
    /// Which one of that name.
    pub uid: String,
    /// The node's name.
    pub node: String,
    /// The devices chosen.
    pub devices: ChosenDevices,
}

/// Which predicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// No node over its allocatable.
    NodeCapacity = 1,
    /// Devices given once, known, healthy, and as many as asked for.
    Devices = 2,
    /// No half gang.
    WholeGangs = 3,
    /// No queue over its capability.
    QueueCapability = 4,
    /// A pod is bound once.
    BoundOnce = 5,
    /// Constraints of pod and node.
    Constraints = 6,
    /// Devices that a container has by themselves.
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
    /// Which.
    pub invariant: Invariant,
    /// What is wrong, naming the objects and the numbers.
    pub what: String,
    /// The pods whose binds have a part in it: leave those out, with their gangs.
    pub pods: Vec<PodId>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.what)
    }
}
