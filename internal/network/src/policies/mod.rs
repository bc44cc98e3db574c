//! NetworkPolicies on a node, by nftables: which traffic reaches the node's pods, and which traffic they may send.
//!
//! Two verdict maps lead from a pod's device to the pod's chain, one for each direction; a device without an element is
//! open. A pod's chain jumps to the chains of the lists of rules that it has, and refuses what none of them accepts.
//! Lists name sets of addresses. So an address that comes or goes is one element, whatever the number of pods.
//!
//! What is judged: packets that the node forwards, with the addresses that Services' rules have put in
//! (`muster_services` rewrites them before), and packets of pods to the node itself. Each packet of the direction in
//! which a connection was opened is judged, so that a policy also ends open connections; answers always pass. Packets
//! that the node sends itself are not judged: its agent reaches its pods. A pod that reaches itself through a Service
//! passes. IPv6, of which pods have link-local addresses only, is judged like IPv4: no rule with addresses matches it.
//!
//! [`rules`] says which chains, sets and elements pods need; [`change`] turns the difference between two states into one
//! transaction of `nft`. [`NodePolicies`] remembers what is programmed.

mod change;
mod node;
mod rules;

pub use node::NodePolicies;
pub(crate) use node::clear;

/// The nftables table of NetworkPolicies' rules.
pub(crate) const TABLE: &str = "muster_policies";
