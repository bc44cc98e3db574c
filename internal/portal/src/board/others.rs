//! Other vendors' devices as a node's page shows them.

use std::collections::BTreeMap;

use resources::devices::NodeInventory;
use serde::Serialize;

/// One of a node's devices of another vendor than NVIDIA.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OtherDevice {
    /// The resource that it is given out as.
    pub resource: String,
    /// What it is known by: its file.
    pub id: String,
    /// Why it is given to nobody; empty where it may be given out.
    pub unhealthy: String,
    /// The pod that has it, as namespace/name.
    pub holder: String,
}

impl OtherDevice {
    /// Those of a node, with who has which by its id.
    pub fn of(inventory: &NodeInventory, holders: &BTreeMap<String, String>) -> Vec<OtherDevice> {
        let all = inventory.described.iter();
        let all = all.flat_map(|(resource, list)| list.iter().map(move |one| (resource, one)));
        all.map(|(resource, device)| OtherDevice {
            resource: resource.clone(),
            id: device.id.clone(),
            unhealthy: device.why.clone(),
            holder: holders.get(&device.id).cloned().unwrap_or_default(),
        })
        .collect()
    }

    /// Who has it, and whether it is well, in words.
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
    fn a_device_says_who_has_it_and_why_it_is_not_well() {
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
        let devices = OtherDevice::of(&inventory, &holders);
        assert!(devices.iter().all(|device| device.resource == "x.com/y"));
        let states: Vec<String> = devices.iter().map(OtherDevice::state).collect();
        let wanted = ["free", "ns/pod", "unhealthy: hot", "ns/pod; unhealthy: hot"];
        assert_eq!(states, wanted);
    }
}
