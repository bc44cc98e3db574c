//! The cluster's DNS server on a node: names of Services and pods from what the server sends ([`Zone`], pure), all
//! other names from the host's own resolvers. Follows Kubernetes' DNS specification 1.1.0 for the names; knows neither
//! the server nor pods.
//!
//! A name below `cluster.local` never leaves the node. Before the first [`Zone`] such names get SERVFAIL, which makes
//! resolvers ask again, instead of an answer that they would believe.

mod in_flight;
mod message;
pub mod resolv_conf;
mod server;
mod upstream;
mod zone;

pub use server::{DnsError, DnsServer, Names};
pub use zone::Zone;
