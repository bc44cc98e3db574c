//! NetworkPolicies on the embedded engine: which traffic reaches a pod with an address of its own, and which traffic it
//! may send. Pure; `fleet` feeds it and sends nodes what follows, `network` programs it.
//!
//! The problem: a policy chooses pods by labels and names its peers by labels of pods and namespaces; a kernel judges
//! packets by addresses. The method: [`Policy`] reads a NetworkPolicy once. [`PolicyState`] takes in policies,
//! namespaces and pods one change at a time and keeps three things: for each selector of peers a *group* of addresses,
//! for each policy and direction a *list* of rules that refer to groups, and for each pod the lists that count for it
//! ([`PodRules`]). A node gets the pods that are bound to it, with their lists and groups ([`NodeView`]).
//!
//! The rules are Kubernetes': a pod that no policy of a direction selects is open in that direction; one that some
//! select may do what the union of their rules allows. Pods of the node's network (`hostNetwork`) are neither selected
//! nor peers. The cluster's DNS server counts as a pod of the namespace `kube-system` with the label
//! `k8s-app=kube-dns`, as manifests expect it.
//!
//! Costs: a change of a pod costs one match for each group of the cluster and for each policy of its namespace; a change
//! of a policy one match for each pod of its namespace, and for a new group one for each pod that its namespaces have.
//! Example: `from: [{podSelector: {role: web}}]`, `ports: [80]` becomes a group of the addresses of `role=web`, and a
//! list with the one rule "from the group, TCP 80"; each pod that the policy selects has this list.
//!
//! What exceeds a bound is not allowed rather than not restricted: a policy that is not read to its end still isolates.
//! Sources: the API documentation of NetworkPolicy v1, and the conformance cases of sig-network
//! (`test/e2e/network/netpol`); `conformance_tests.rs` has these cases, `state_tests.rs` compares any sequence of
//! changes with a direct evaluation.

mod cidr;
mod groups;
mod lists;
mod node_view;
mod policy;
mod policy_pod;
mod state;

pub use cidr::Cidr;
pub use node_view::{
    Element, GroupChange, IpBlock, NodeView, Peers, PodRules, PortRange, RuleList, TrafficRule,
};
pub use policy::Policy;
pub use policy_pod::PolicyPod;
pub use state::{PolicyState, Shortfall};

/// The most policies of a namespace whose rules count, in the order of their names; one beyond them isolates the pods
/// that it selects and allows nothing.
pub const POLICIES_MAX: usize = 128;
/// The most peers, ports and exceptions of one policy in one direction, counted as the kernel gets them: the ports of a
/// rule once for each of its peers. What is beyond them is not allowed.
pub const RULE_ITEMS_MAX: usize = 1024;
/// The most different selectors of peers of one policy in one direction; peers beyond them are not allowed.
pub const SELECTORS_MAX: usize = 64;
/// The most addresses that one selector of peers stands for on a node; pods beyond them, by address, are not allowed.
pub const ELEMENTS_MAX: usize = 16_384;
/// The most named ports of a pod that policies can name.
pub const NAMED_PORTS_MAX: usize = 64;
