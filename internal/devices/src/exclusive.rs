//! Marks in the inventory which GPUs and slices a container has exclusively, and which resources
//! give a container at most one device, so that schedulers can take both into account. Pure.

use std::collections::BTreeSet;

use resources::devices::NodeInventory;
use resources::names::NVIDIA_GPU;

use crate::sharing::Sharing;
use crate::{mps, offer};

/// Marks the devices of a machine for which a request for several is refused: those shared by MPS,
/// and those of resources that give a container only one shared device.
pub fn mark(inventory: &mut NodeInventory, sharing: &Sharing) {
    let by_mps = mps::wanted(inventory, sharing);
    let (mut alone, mut one_at_most) = (BTreeSet::new(), BTreeSet::new());
    for (resource, units) in offer::offers(inventory, sharing) {
        for unit in units {
            if sharing.one_at_most && unit.shared || by_mps.contains_key(&unit.device) {
                alone.insert(unit.device);
                // GPUs are chosen individually and therefore marked individually.
                if resource != NVIDIA_GPU {
                    one_at_most.insert(resource.clone());
                }
            }
        }
    }
    for gpu in &mut inventory.gpus {
        gpu.alone = alone.contains(&gpu.id);
        for slice in gpu.slices.iter_mut().flatten() {
            slice.alone = alone.contains(&slice.id);
        }
    }
    inventory.one_at_most = one_at_most;
}

#[cfg(test)]
mod tests {
    use resources::devices::{GpuDevice, MIG_SINGLE, MigSlice};

    use super::*;
    use crate::sharing::{DeviceSelection, Replicated, SharingStrategy};

    const SMALL: &str = "nvidia.com/mig-1g.10gb";

    /// Two GPUs, and one with two slices.
    fn machine() -> NodeInventory {
        let gpu = |index: u32, slices| GpuDevice {
            id: format!("GPU-{index}"),
            index,
            slices,
            ..GpuDevice::default()
        };
        let slice = |id: &str| MigSlice {
            id: id.into(),
            profile: "1g.10gb".into(),
            ..MigSlice::default()
        };
        let slices = Some(vec![slice("MIG-a"), slice("MIG-b")]);
        NodeInventory {
            gpus: vec![gpu(0, None), gpu(1, None), gpu(2, slices)],
            ..NodeInventory::default()
        }
    }

    fn shared(
        strategy: SharingStrategy,
        one_at_most: bool,
        name: &str,
        replicas: usize,
    ) -> Sharing {
        Sharing {
            strategy,
            one_at_most,
            rename_by_default: false,
            resources: vec![Replicated {
                name: name.into(),
                rename: None,
                replicas,
                devices: DeviceSelection::All,
            }],
        }
    }

    /// The marked devices of a machine, and the marked resources.
    fn marked(mut machine: NodeInventory, sharing: &Sharing) -> (String, String) {
        mark(&mut machine, sharing);
        let mut ids = Vec::new();
        for gpu in &machine.gpus {
            let slices = gpu.slices.iter().flatten().filter(|slice| slice.alone);
            ids.extend(gpu.alone.then_some(&*gpu.id));
            ids.extend(slices.map(|slice| &*slice.id));
        }
        let resources = Vec::from_iter(machine.one_at_most);
        (ids.join(" "), resources.join(" "))
    }

    #[test]
    fn resources_that_give_a_container_one_device_are_marked() {
        use SharingStrategy::{Mps, TimeSlicing};
        let renamed = |mut sharing: Sharing| {
            sharing.rename_by_default = true;
            sharing
        };
        let only = |mut sharing: Sharing, devices| {
            sharing.resources[0].devices = devices;
            sharing
        };
        let both = "GPU-0 GPU-1";
        let first = DeviceSelection::These(vec!["0".into()]);
        let cases = [
            (Sharing::default(), "", ""),
            // On the embedded engine the pods request parts.
            (shared(Mps, false, NVIDIA_GPU, 1), both, ""),
            (
                only(shared(Mps, false, NVIDIA_GPU, 1), first.clone()),
                "GPU-0",
                "",
            ),
            (shared(Mps, true, NVIDIA_GPU, 4), both, ""),
            (
                renamed(shared(Mps, true, NVIDIA_GPU, 4)),
                both,
                "nvidia.com/gpu.shared",
            ),
            (
                renamed(shared(Mps, true, NVIDIA_GPU, 1)),
                both,
                "nvidia.com/gpu.shared",
            ),
            (shared(TimeSlicing, false, NVIDIA_GPU, 4), "", ""),
            (shared(TimeSlicing, true, NVIDIA_GPU, 4), both, ""),
            // A device with one replica is offered unchanged.
            (shared(TimeSlicing, true, NVIDIA_GPU, 1), "", ""),
            (
                renamed(only(shared(TimeSlicing, true, NVIDIA_GPU, 4), first)),
                "GPU-0",
                "nvidia.com/gpu.shared",
            ),
            (shared(TimeSlicing, true, SMALL, 2), "MIG-a MIG-b", SMALL),
        ];
        for (sharing, ids, resources) in cases {
            let found = marked(machine(), &sharing);
            assert_eq!(found, (ids.into(), resources.into()), "{sharing:?}");
        }
    }

    #[test]
    fn slices_offered_as_gpus_are_marked_as_gpus_and_earlier_marks_are_removed() {
        let mut machine = machine();
        machine.mig_strategy = MIG_SINGLE.into();
        let sharing = shared(SharingStrategy::TimeSlicing, true, NVIDIA_GPU, 2);
        let all = "GPU-0 GPU-1 MIG-a MIG-b";
        assert_eq!(marked(machine.clone(), &sharing), (all.into(), "".into()));
        mark(&mut machine, &sharing);
        assert!(machine.offered().gpus.iter().all(|gpu| gpu.alone));
        let none = (String::new(), String::new());
        assert_eq!(marked(machine, &Sharing::default()), none);
    }
}
