//! Services of the embedded engine: which addresses and ports they get ([`addresses`]), and what nodes need to know of
//! them ([`ClusterService`]). Pure.

pub mod addresses;
mod cluster_service;

pub use cluster_service::{
    ClusterService, Endpoint, EndpointGroup, EndpointPort, Protocol, ServicePort,
};

/// The domain of the cluster's names.
pub const CLUSTER_DOMAIN: &str = "cluster.local";
/// The most Services that the server sends to nodes. Those beyond it, in the order of namespace and name, have neither rules
/// nor names on the nodes.
pub const SERVICES_MAX: usize = 8192;
/// The most endpoints of one Service that the server sends to nodes; those beyond it get no connections.
pub const ENDPOINTS_MAX: usize = 1000;
