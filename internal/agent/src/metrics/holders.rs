//! Who has which device, and which pod a process is of. Pure; the kubelet's list and the agent's
//! own pods are read elsewhere.

use std::collections::BTreeMap;

use crate::dra;

/// A container that has devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// Its pod's namespace.
    pub namespace: String,
    /// Its pod.
    pub pod: String,
    /// Its name.
    pub container: String,
}

/// Who has what on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    devices: BTreeMap<String, Vec<Holder>>,
    processes: BTreeMap<u32, Holder>,
}

impl Holders {
    /// Notes that a container has a device. The kubelet's ids of shared devices have a number
    /// behind them, `UUID::N`, that is no part of the device's.
    pub fn note(&mut self, device: &str, holder: &Holder) {
        let id = device.split_once("::").map_or(device, |(id, _)| id);
        let held = self.devices.entry(id.to_owned()).or_default();
        if !held.contains(holder) {
            held.push(holder.clone());
        }
    }

    /// Notes that who has a device by one name, as a claim's, has it by another as well.
    pub fn has_too(&mut self, device: &str, other: &str) {
        for holder in self.devices.get(device).cloned().unwrap_or_default() {
            self.note(other, &holder);
        }
    }

    /// Notes that a process is of a container.
    pub fn note_process(&mut self, pid: u32, holder: Holder) {
        self.processes.insert(pid, holder);
    }

    /// The containers that have a GPU or slice. What one has by a claim the kubelet knows by its name
    /// as a claim's device.
    pub fn of(&self, device: &str) -> &[Holder] {
        let by_name = || self.devices.get(&dra::name_of(device));
        let held = self.devices.get(device).or_else(by_name);
        held.map_or(&[], Vec::as_slice)
    }

    /// The container that a process is of, where that is known.
    pub fn of_process(&self, pid: u32) -> Option<&Holder> {
        self.processes.get(&pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(pod: &str) -> Holder {
        Holder {
            namespace: "n".into(),
            pod: pod.into(),
            container: "c".into(),
        }
    }

    #[test]
    fn replicas_of_a_device_are_the_device_and_a_holder_of_two_is_one() {
        let mut holders = Holders::default();
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
