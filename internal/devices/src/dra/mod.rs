//! Devices for claims (dynamic resource allocation, `resource.k8s.io/v1`): what the machine offers
//! to claims, which devices a claim has, and the specs of prepared claims on disk. If configured,
//! GPUs are offered in every slice into which they can be partitioned, and partitioned for the
//! claims that get one. The agent's driver answers the kubelet with it.

pub mod attributes;
pub mod claimable;
pub mod counters;
pub mod grant;
pub mod partitioning;
pub mod partitions;
pub mod prepared;
pub mod rdma_files;
pub mod slices;

pub use claimable::{Claimable, all as claimables, gpus, name_of};
pub use partitions::DiscoveredDevices;
pub use prepared::{CreatedPartition, Prepared, PreparedDevice, Specs};

/// The driver's name, by which classes and claims select it.
pub const DRIVER: &str = "gpu.muster.io";
