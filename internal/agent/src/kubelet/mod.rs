//! The agent beside a kubelet: offers the node's GPUs through a device plugin, or through claims
//! (`dra`), gives each container the devices that the scheduler chose for its pod, and publishes
//! the machine's inventory to the cluster. The kubelet keeps which pod holds which device, and a
//! file keeps which GPUs are withheld (`devices::xids`), so an agent that crashes and restarts changes
//! nothing.

mod admission;
mod cluster;
mod config;
mod counted_plugin;
mod dra;
mod error;
mod evictions;
mod failed_devices;
mod gpu_report;
mod inventory_loop;
mod mig;
mod pairing;
mod plugin;
mod pod_source;
mod run;
mod shared;
mod socket;
mod vendor_plugin;

use std::time::Duration;

pub use config::{DeviceDelivery, KubeletConfig};
pub use error::KubeletError;
pub use run::run_with_kubelet;
pub use socket::{claims, held, listen};

/// The kubelet's directory of sockets.
pub const KUBELET_DIR: &str = "/var/lib/kubelet";

/// Interval at which the machine and the kubelet's socket are checked.
pub const LOOK_EVERY: Duration = Duration::from_secs(2);

/// How long to wait after a failure before the next try.
const TRY_EVERY: Duration = Duration::from_secs(1);
