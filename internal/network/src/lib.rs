//! A node's pods with addresses of their own: a network namespace for each pod, joined to the node by a veth pair, and
//! the node's routes and rules for them. Knows neither the server nor what runs in a pod.
//!
//! Each pod's address is routed by the node to the pod's own veth device; there is no bridge. So the kernel itself
//! drops packets with another source address than the pod's (strict reverse path filter), and whatever passes between
//! two pods of a node passes the node's own rules. Traffic that leaves the pods' range has the node's address
//! (masquerade). Other nodes' pods are reached by routes through these nodes' addresses, which works where the nodes
//! share a network segment.
//!
//! What the agent makes can be told from everything else on the machine: devices named `mp` and eight hexadecimal
//! digits with an alias `muster:UID`, routes of protocol [`commands::ROUTE_PROTOCOL`], and the nftables tables
//! [`commands::TABLE`], [`services::TABLE`] (Services' addresses) and [`policies::TABLE`] (NetworkPolicies).

mod address_book;
mod commands;
mod error;
mod listing;
mod namespace;
mod pod_networks;
mod policies;
mod services;
mod tools;

pub use address_book::{AddressBook, AddressesExhausted};
pub use error::NetworkError;
pub use pod_networks::{PodNetwork, PodNetworks};
pub use policies::NodePolicies;
pub use services::NodeServices;
