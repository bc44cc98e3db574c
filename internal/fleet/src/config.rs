//! The parameters of the fleet, and their defaults.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use resources::pod_ranges::{DEFAULT_CLUSTER_RANGE, Ipv4Range};
use resources::release::Release;
use resources::services::addresses::ServiceRange;

use crate::ca::CertificateAuthority;
use crate::measurements::MeasurementSink;

/// The node grace unless the server is configured otherwise.
const NODE_GRACE: Duration = Duration::from_secs(40);

/// The parameters of the fleet.
#[derive(Clone)]
pub struct FleetConfig {
    /// Signs the nodes' certificates.
    pub ca: Arc<CertificateAuthority>,
    /// The namespace of join tokens and of the nodes' admissions.
    pub namespace: String,
    /// The server's version, which decides which agents it accepts.
    pub version: Release,
    /// The file with the progress of an upgrade of the agents; none: a restart of the server forgets
    /// it.
    pub rollout_file: Option<PathBuf>,
    /// How long a node may be silent before its pods are lost. An agent that tries another binary goes
    /// back within half of it.
    pub node_grace: Duration,
    /// The range of all pods with addresses of their own; each node gets a part of it.
    pub pod_range: Ipv4Range,
    /// Receives what the agents measure; none: it is dropped.
    pub measurements: Option<MeasurementSink>,
    /// The range of Services' addresses; none if Services have none.
    pub service_range: Option<ServiceRange>,
}

impl FleetConfig {
    /// The defaults: tokens in the system namespace.
    pub fn new(ca: Arc<CertificateAuthority>) -> Self {
        FleetConfig {
            ca,
            namespace: resources::names::SYSTEM_NAMESPACE.to_owned(),
            version: env!("CARGO_PKG_VERSION")
                .parse()
                .expect("the workspace's version is MAJOR.MINOR.PATCH"),
            rollout_file: None,
            node_grace: NODE_GRACE,
            pod_range: DEFAULT_CLUSTER_RANGE,
            measurements: None,
            service_range: None,
        }
    }
}
