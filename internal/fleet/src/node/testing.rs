//! Inventories for tests.

use resources::devices::{GpuDevice, NodeInventory};
use serde_json::Value;

/// Two GPUs, of which one is unhealthy.
pub(super) fn inventory() -> NodeInventory {
    let gpu = |healthy| GpuDevice {
        id: "GPU-1".to_owned(),
        model: "NVIDIA A100-SXM4-80GB".to_owned(),
        healthy,
        ..GpuDevice::default()
    };
    NodeInventory {
        gpus: vec![gpu(true), gpu(false)],
        cpus: 8,
        memory_bytes: 1024,
        ..NodeInventory::default()
    }
}

/// Inventories as documents: one whose GPUs are whole, one with a slice.
pub(super) fn inventories() -> Vec<Value> {
    let mut cut = inventory();
    cut.gpus[0].slices = Some(vec![resources::devices::MigSlice::default()]);
    let all = [inventory(), cut].map(|one| serde_json::to_value(one).unwrap());
    all.to_vec()
}
