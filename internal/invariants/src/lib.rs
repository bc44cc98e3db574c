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
mod gpu_request;
mod gpus;
mod node_facts;
mod predicates;
mod products;
mod violation;

#[cfg(test)]
mod tests;

pub use cluster::ClusterAccount;
pub use predicates::check;
pub use violation::{Invariant, PodId, ProposedBind, Violation};
