//! Services' addresses on a node, by nftables as kube-proxy's nftables mode has them: verdict maps lead from an address
//! or a node port to the Service's chain, which picks an endpoint at random or by the client's session, and the
//! endpoint's chain rewrites the destination. Connections to a Service without endpoints are refused.
//!
//! [`rules`] says which chains, sets and elements a Service needs; [`change`] turns the difference between two states
//! into one transaction of `nft`, so a change costs what changed and keeps the sessions of everything else.
//! [`NodeServices`] remembers what is programmed. Source: KEP-3866.

mod change;
mod node;
mod rules;

pub use node::NodeServices;
pub(crate) use node::clear;

/// The nftables table of Services' rules.
pub(crate) const TABLE: &str = "muster_services";
