//! Other vendors' devices as a node's page shows them.

use std::collections::BTreeMap;

use resources::devices::NodeInventory;
use serde::Serialize;

/// A node's device from a vendor other than NVIDIA.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VendorDeviceRow {
    /// The resource name under which it is allocated.
    pub resource: String,
    /// Its identifier: the device file.
    pub id: String,
    /// Why it is not allocatable; empty if it is.
    pub unhealthy: String,
    /// The pod that has it, as namespace/name.
    pub holder: String,
}

impl VendorDeviceRow {
    /// The devices of a node, with the pod of each by its id.
    pub fn of(
        inventory: &NodeInventory,
        holders: &BTreeMap<String, String>,
    ) -> Vec<VendorDeviceRow> {
        let all = inventory.described.iter();
        let all = all.flat_map(|(resource, list)| list.iter().map(move |one| (resource, one)));
        all.map(|(resource, device)| VendorDeviceRow {
            resource: resource.clone(),
            id: device.id.clone(),
            unhealthy: device.why.clone(),
            holder: holders.get(&device.id).cloned().unwrap_or_default(),
        })
        .collect()
    }

    /// The device's pod and its health, as text.
    pub fn state(&self) -> String {
        match (self.unhealthy.as_str(), self.holder.as_str()) {
            ("", "") => "free".to_owned(),
            ("", holder) => holder.to_owned(),
            (why, "") => format!("unhealthy: {why}"),
            (why, holder) => format!("{holder}; unhealthy: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use resources::devices::DescribedDevice;

    use super::*;

    #[test]
    fn a_device_shows_its_pod_and_its_fault() {
        let device = |id: &str, why: &str| DescribedDevice {
            id: id.to_owned(),
            healthy: why.is_empty(),
            why: why.to_owned(),
            ..DescribedDevice::default()
        };
        let all = [("/a", ""), ("/b", ""), ("/c", "hot"), ("/d", "hot")];
        let inventory = NodeInventory {
            described: [(
                "x.com/y".to_owned(),
                all.map(|(id, why)| device(id, why)).to_vec(),
            )]
            .into(),
            ..NodeInventory::default()
        };
        let holders = ["/b", "/d"]
            .map(|id| (id.to_owned(), "ns/pod".to_owned()))
            .into();
        let devices = VendorDeviceRow::of(&inventory, &holders);
        assert!(devices.iter().all(|device| device.resource == "x.com/y"));
        let states: Vec<String> = devices.iter().map(VendorDeviceRow::state).collect();
        let wanted = ["free", "ns/pod", "unhealthy: hot", "ns/pod; unhealthy: hot"];
        assert_eq!(states, wanted);
    }
}
