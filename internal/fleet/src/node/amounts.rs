//! What a node offers: its capacity, the part that pods may use, and what it no longer offers.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use resources::devices::{NodeInventory, inventory};
use resources::names::{EPHEMERAL_STORAGE, NVIDIA_GPU};
use serde_json::{Value, json};

/// The node's capacity and its allocatable part.
pub(super) fn capacity(inventory: &NodeInventory, max_pods: u32) -> (Value, Value) {
    let offered = inventory.offered();
    let amounts = |healthy: bool| {
        let counts = |fit: bool| fit || !healthy;
        // First, so that no other resource overwrites the following ones.
        let mut all = json!({});
        for (resource, shares) in &inventory.shared {
            let count = if counts(shares.healthy) {
                shares.count
            } else {
                0
            };
            all[resource] = json!(count.to_string());
        }
        for (resource, devices) in &inventory.described {
            let devices = devices.iter().filter(|device| counts(device.healthy));
            all[resource] = json!(devices.count().to_string());
        }
        all["cpu"] = json!(inventory.cpus.to_string());
        all["memory"] = json!(inventory.memory_bytes.to_string());
        all["pods"] = json!(max_pods.to_string());
        if let Some(bytes) = inventory.disk_bytes {
            all[EPHEMERAL_STORAGE] = json!(bytes.to_string());
        }
        if !inventory.gpus.is_empty() {
            let gpus = offered.gpus.iter().filter(|gpu| counts(gpu.healthy));
            all[NVIDIA_GPU] = json!(gpus.count().to_string());
        }
        for (resource, slices) in &offered.slices {
            let slices = slices.iter().filter(|(_, slice)| counts(slice.healthy));
            all[resource] = json!(slices.count().to_string());
        }
        all
    };
    (amounts(false), amounts(true))
}

/// Takes what pods may not use off the node's allocatable part.
pub(super) fn reserve(allocatable: &mut Value, inventory: &NodeInventory, reserved: (u64, u64)) {
    let (millicpus, memory_bytes) = reserved;
    if millicpus > 0 {
        let cpus = u64::from(inventory.cpus).saturating_mul(1000);
        allocatable["cpu"] = json!(format!("{}m", cpus.saturating_sub(millicpus)));
    }
    if memory_bytes > 0 {
        let memory = inventory.memory_bytes.saturating_sub(memory_bytes);
        allocatable["memory"] = json!(memory.to_string());
    }
}

/// The patch that removes resources from a node's status that it no longer offers; nothing if there
/// are none.
pub(super) fn withdrawn(before: Option<&Node>, now: &NodeInventory) -> Option<Value> {
    let before = inventory(before?.metadata.annotations.as_ref())?;
    let gone: BTreeMap<String, Value> = (before.resources().into_iter())
        .filter(|resource| !now.resources().contains(resource))
        .map(|resource| (resource, Value::Null))
        .collect();
    (!gone.is_empty()).then(|| json!({"status": {"capacity": gone, "allocatable": gone}}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::description::inventory_json;
    use crate::node::testing::inventory;
    use resources::names::INVENTORY;

    #[test]
    fn an_unhealthy_gpu_is_had_but_not_given_out() {
        let (has, gives) = capacity(&inventory(), 100);
        assert_eq!(has[NVIDIA_GPU], "2");
        assert_eq!(gives[NVIDIA_GPU], "1");
        assert_eq!(gives["cpu"], "8");
        let mut cut = inventory();
        let slice = |healthy| resources::devices::MigSlice {
            profile: "1g.10gb".into(),
            healthy,
            ..resources::devices::MigSlice::default()
        };
        cut.gpus[0].slices = Some(vec![slice(true), slice(false)]);
        let (has, gives) = capacity(&cut, 100);
        assert_eq!([&has[NVIDIA_GPU], &gives[NVIDIA_GPU]], ["1", "0"]);
        let small = "nvidia.com/mig-1g.10gb";
        assert_eq!([&has[small], &gives[small]], ["2", "1"]);
        let (none, _) = capacity(&NodeInventory::default(), 100);
        assert!(none.get(NVIDIA_GPU).is_none() && none.get(EPHEMERAL_STORAGE).is_none());
        cut.disk_bytes = Some(7);
        assert_eq!(capacity(&cut, 100).1[EPHEMERAL_STORAGE], "7");
    }

    #[test]
    fn what_is_reserved_is_not_given_out() {
        let node = NodeInventory {
            cpus: 8,
            memory_bytes: 1 << 30,
            ..NodeInventory::default()
        };
        let given = |reserved| {
            let (has, mut gives) = capacity(&node, 100);
            reserve(&mut gives, &node, reserved);
            assert_eq!(has["cpu"], "8");
            [gives["cpu"].clone(), gives["memory"].clone()]
        };
        assert_eq!(given((0, 0)), ["8", "1073741824"]);
        assert_eq!(given((1500, 1 << 29)), ["6500m", "536870912"]);
        assert_eq!(given((u64::MAX, u64::MAX)), ["0m", "0"]);
    }

    #[test]
    fn shares_are_counted_while_their_devices_are_well_and_take_no_other_resources_place() {
        let shares = |count, healthy| resources::devices::Shares { count, healthy };
        let mut node = inventory();
        let named = |name: &str, shares| (name.to_owned(), shares);
        node.shared = [
            named("rdma/a", shares(20, true)),
            named("rdma/b", shares(10, false)),
            named("cpu", shares(1000, true)),
        ]
        .into();
        let described = |healthy| resources::devices::DescribedDevice {
            healthy,
            ..Default::default()
        };
        let three = [false, true, true].map(described).to_vec();
        node.described = [("a.com/x".to_owned(), three)].into();
        let (has, gives) = capacity(&node, 100);
        let seen =
            |all: &Value| ["rdma/a", "rdma/b", "a.com/x", "cpu"].map(|name| all[name].clone());
        assert_eq!(seen(&has), ["20", "10", "3", "8"]);
        assert_eq!(seen(&gives), ["20", "0", "2", "8"]);
    }

    #[test]
    fn a_resource_that_is_offered_no_more_leaves_the_status_and_no_other_does() {
        let small = |profile: &str| resources::devices::MigSlice {
            profile: profile.into(),
            ..resources::devices::MigSlice::default()
        };
        let mut before = inventory();
        before.gpus[0].slices = Some(vec![small("1g.10gb"), small("3g.40gb")]);
        before.shared = [("rdma/a".to_owned(), resources::devices::Shares::default())].into();
        before.described = [("a.com/x".to_owned(), Vec::new())].into();
        let node: Node = serde_json::from_value(json!({"metadata": {"name": "n",
            "annotations": {INVENTORY: inventory_json(&before)}}}))
        .unwrap();
        let mut now = before.clone();
        assert_eq!(withdrawn(Some(&node), &now), None);
        assert_eq!(withdrawn(None, &now), None);
        now.gpus[0].slices = Some(vec![small("3g.40gb")]);
        now.shared.clear();
        now.described.clear();
        let gone = json!({"rdma/a": null, "a.com/x": null, "nvidia.com/mig-1g.10gb": null});
        let patch = json!({"status": {"capacity": gone, "allocatable": gone}});
        assert_eq!(withdrawn(Some(&node), &now), Some(patch));
    }
}
