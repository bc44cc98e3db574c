//! The terms of the predicates: binds that a plan proposes, the numbered invariants, and their violations.

use std::fmt;

use resources::devices::ChosenDevices;

/// A pod's namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodId {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for PodId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

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
