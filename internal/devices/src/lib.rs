//! A node's devices: what the agent offers of them, and what a container gets with them. The crate
//! reads the machine and writes files for container runtimes; it knows neither the server nor the
//! kubelet nor the agent's pods. The agent passes in what it knows of these.
//!
//! No module imports one that imports it back (`e2e/tests/module_cycles.rs`).

pub mod allocation;
pub mod cdi;
pub mod config_values;
pub mod delivery;
pub mod device_groups;
pub mod dra;
pub mod exclusive;
pub mod fabric;
pub mod gpu_defects;
pub mod holders;
pub mod inventory;
pub mod labels;
pub mod mig;
pub mod mig_executor;
pub mod mps;
pub mod nccl;
pub mod offer;
pub mod over_share;
pub mod preference;
pub mod processes;
pub mod rdma;
pub mod replicas;
pub mod settings;
pub mod share;
pub mod sharing;
pub mod unit;
pub mod vendors;
pub mod xids;
