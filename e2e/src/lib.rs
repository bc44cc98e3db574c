//! The harness of the end-to-end tests: real servers and agents of the `muster` binary, each with
//! its own data directory and port, and real clients.
//!
//! It starts, stops and waits; the tests hold the expectations.

mod cluster;
mod containerd;
mod files;
mod history;
mod mounts;
mod network;
mod pages;
mod parts;
mod plain;
mod platform;
mod pod_nodes;
mod ports;
mod prometheus;
mod rdma;
pub mod rush;
mod terminal;
mod waiting;

pub use cluster::{Cluster, Cost, Kubelet, Setup};
pub use containerd::{Containerd, IMAGE};
pub use files::{free_kib, make_device, nvml_standin};
pub use history::{Change, History};
pub use mounts::{Mounts, device_files};
pub use network::{Network, NodeNamespace};
pub use pages::{Reply, send};
pub use parts::{kubectl, muster, part, python, repository, require_root};
pub use plain::{Answer, Target, Write};
pub use platform::{Agent, Platform, Ran, cpu_seconds, peak_resident_mib, resident_mib, run};
pub use pod_nodes::two_nodes;
pub use ports::free_address;
pub use prometheus::{Prometheus, get};
pub use rdma::{make_rdma, rdma_device_files};
pub use waiting::{eventually, eventually_async, eventually_ok};
