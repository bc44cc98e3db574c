//! Which GPUs and slices a container has by themselves, and of which resources it gets one at most, as the
//! inventory says it: for whoever places containers. Pure.

use std::collections::BTreeSet;

use resources::devices::NodeInventory;
use resources::names::NVIDIA_GPU;

use super::offer;
use super::sharing::Sharing;
use crate::mps;

/// Marks those of a machine's devices with which a container is refused that gets several: what is shared by MPS, and
/// by who doesn't give several.
pub fn mark(inventory: &mut NodeInventory, sharing: &Sharing) {
    let by_mps = mps::wanted(inventory, sharing);
    let (mut alone, mut one_at_most) = (BTreeSet::new(), BTreeSet::new());
    for (resource, units) in offer::offers(inventory, sharing) {
        for unit in units {
            if sharing.one_at_most && unit.shared || by_mps.contains_key(&unit.device) {
                alone.insert(unit.device);
                // Which GPUs are chosen is known one by one.
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

    use super::super::sharing::{Replicated, Selection, Strategy};
    use super::*;

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

    fn shared(strategy: Strategy, one_at_most: bool, name: &str, replicas: usize) -> Sharing {
        Sharing {
            strategy,
            one_at_most,
            rename_by_default: false,
            resources: vec![Replicated {
                name: name.into(),
                rename: None,
                replicas,
                devices: Selection::All,
            }],
        }
    }

    /// What is marked of a machine, and the resources.
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
    fn what_a_container_cannot_have_several_of_is_marked() {
        use Strategy::{Mps, TimeSlicing};
        let renamed = |mut sharing: Sharing| {
            sharing.rename_by_default = true;
            sharing
        };
        let only = |mut sharing: Sharing, devices| {
            sharing.resources[0].devices = devices;
            sharing
        };
        let both = "GPU-0 GPU-1";
        let first = Selection::These(vec!["0".into()]);
        let cases = [
            (Sharing::default(), "", ""),
            // The embedded engine's, whose parts are the pods' to say.
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
            // One that counts once is given as it is.
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
    fn slices_that_are_given_as_gpus_are_marked_as_these_and_what_was_marked_before_is_not() {
        let mut machine = machine();
        machine.mig_strategy = MIG_SINGLE.into();
        let sharing = shared(Strategy::TimeSlicing, true, NVIDIA_GPU, 2);
        let all = "GPU-0 GPU-1 MIG-a MIG-b";
        assert_eq!(marked(machine.clone(), &sharing), (all.into(), "".into()));
        mark(&mut machine, &sharing);
        assert!(machine.offered().gpus.iter().all(|gpu| gpu.alone));
        let none = (String::new(), String::new());
        assert_eq!(marked(machine, &Sharing::default()), none);
    }
}
