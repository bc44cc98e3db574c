//! Maps devices to the containers that hold them, and processes to containers. Pure; other modules
//! read the kubelet's list and the agent's own pods.

use std::collections::BTreeMap;

use crate::dra;

/// A container that holds devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceHolder {
    /// Its pod's namespace.
    pub namespace: String,
    /// Its pod.
    pub pod: String,
    /// Its name.
    pub container: String,
}

/// The holders of this node's devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceHolders {
    devices: BTreeMap<String, Vec<DeviceHolder>>,
    processes: BTreeMap<u32, DeviceHolder>,
}

impl DeviceHolders {
    /// Records that a container holds a device. The kubelet's ids of shared devices have a suffix,
    /// `UUID::N`, that is not part of the device's id.
    pub fn note(&mut self, device: &str, holder: &DeviceHolder) {
        let id = device.split_once("::").map_or(device, |(id, _)| id);
        let held = self.devices.entry(id.to_owned()).or_default();
        if !held.contains(holder) {
            held.push(holder.clone());
        }
    }

    /// Records the holders of a device under another name as well, for instance its name in claims.
    pub fn has_too(&mut self, device: &str, other: &str) {
        for holder in self.devices.get(device).cloned().unwrap_or_default() {
            self.note(other, &holder);
        }
    }

    /// Records that a process belongs to a container.
    pub fn note_process(&mut self, pid: u32, holder: DeviceHolder) {
        self.processes.insert(pid, holder);
    }

    /// The containers that hold a GPU or slice. For a device held by a claim, the kubelet knows
    /// only its name in claims.
    pub fn of(&self, device: &str) -> &[DeviceHolder] {
        let by_name = || self.devices.get(&dra::name_of(device));
        let held = self.devices.get(device).or_else(by_name);
        held.map_or(&[], Vec::as_slice)
    }

    /// The container of a process, if known.
    pub fn of_process(&self, pid: u32) -> Option<&DeviceHolder> {
        self.processes.get(&pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(pod: &str) -> DeviceHolder {
        DeviceHolder {
            namespace: "n".into(),
            pod: pod.into(),
            container: "c".into(),
        }
    }

    #[test]
    fn replicas_count_as_their_device_and_a_holder_of_two_counts_once() {
        let mut holders = DeviceHolders::default();
        holders.note("GPU-1::0", &holder("a"));
        holders.note("GPU-1::1", &holder("a"));
        holders.note("GPU-1::2", &holder("b"));
        holders.note("MIG-7", &holder("c"));
        assert_eq!(holders.of("GPU-1"), [holder("a"), holder("b")]);
        assert_eq!(holders.of("MIG-7"), [holder("c")]);
        holders.note("gpu-3f", &holder("d"));
        assert_eq!(holders.of("GPU-3F"), [holder("d")]);
        assert!(holders.of("GPU-2").is_empty());
        holders.note("gpu-4-1g-10gb-6", &holder("e"));
        holders.has_too("gpu-4-1g-10gb-6", "MIG-8");
        holders.has_too("gpu-4-1g-10gb-5", "MIG-9");
        assert_eq!(holders.of("MIG-8"), [holder("e")]);
        assert!(holders.of("MIG-9").is_empty());
    }
}
