//! The agent beside a kubelet: offers the node's GPUs through a device plugin, or through claims
//! (`dra`), gives each container the devices that the scheduler chose for its pod, and publishes
//! the machine's inventory to the cluster. The kubelet keeps which pod holds which device, and a
//! file keeps which GPUs are withheld (`devices::xids`), so an agent that crashes and restarts changes
//! nothing.

mod admission;
mod cluster;
mod config;
mod described;
mod dra;
mod error;
mod evictions;
mod inventory_loop;
mod mig;
mod pairing;
mod plain;
mod plugin;
mod pod_source;
mod run;
mod shared;
mod socket;
mod stranded;
mod vitals;

use std::time::Duration;

pub use config::{GivenBy, KubeletConfig};
pub use error::KubeletError;
pub use run::run_beside_kubelet;
pub use socket::{claims, held, listen};

/// The kubelet's directory of sockets.
pub const KUBELET_DIR: &str = "/var/lib/kubelet";

/// Interval at which the machine and the kubelet's socket are checked.
pub const LOOK_EVERY: Duration = Duration::from_secs(2);

/// How long to wait after a failure before the next try.
const TRY_EVERY: Duration = Duration::from_secs(1);
