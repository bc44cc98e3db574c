//! Maps the machine's devices to the kubelet's resources. Pure. The resources are those of
//! [`NodeInventory::offered`], which schedulers use, so that the scheduler and the kubelet agree.

use std::collections::BTreeMap;

use resources::devices::NodeInventory;
use resources::names::{
    ALIYUN_GPU_CORE, ALIYUN_GPU_CORE_PERCENTAGE, ALIYUN_GPU_MEMORY, NVIDIA_GPU,
};

use crate::mps::MpsDaemonStates;
use crate::sharing::Sharing;
use crate::unit::{Offers, Unit};

/// The unit of [`ALIYUN_GPU_MEMORY`], in MiB.
const MEMORY_UNIT: u64 = 1024;
/// Units of a GPU's time.
const PERCENT: u64 = 100;

/// Whether each unit of a resource is a part of a GPU.
pub fn is_part(resource: &str) -> bool {
    [
        ALIYUN_GPU_MEMORY,
        ALIYUN_GPU_CORE,
        ALIYUN_GPU_CORE_PERCENTAGE,
    ]
    .contains(&resource)
}

/// The resource under which a scheduler writes its chosen devices.
pub fn chosen_as(resource: &str) -> &str {
    if is_part(resource) {
        NVIDIA_GPU
    } else {
        resource
    }
}

/// All offers of a machine with this sharing, also its GPUs in parts if `in_parts`. A GPU that is
/// shared by MPS is unhealthy while its daemon doesn't run.
pub fn all(
    inventory: &NodeInventory,
    stands: &MpsDaemonStates,
    sharing: &Sharing,
    in_parts: bool,
) -> Offers {
    let mut offers = offers(inventory, sharing);
    if in_parts {
        offers.extend(parts(inventory));
    }
    for unit in offers.values_mut().flatten() {
        let stand = stands.get(&unit.device);
        unit.healthy &= stand.is_none_or(|stand| stand.problem.is_none());
    }
    offers
}

/// GPUs in parts: one unit for each unit of memory and of time.
fn parts(inventory: &NodeInventory) -> Offers {
    let gpus = inventory.offered().gpus;
    let of = |count: &dyn Fn(u64) -> u64| {
        let units = gpus.iter().flat_map(|gpu| {
            (0..count(gpu.memory_mib)).map(|n| Unit {
                id: format!("{}::{n}", gpu.id),
                device: gpu.id.clone(),
                shared: true,
                healthy: gpu.healthy,
                numa: gpu.numa,
            })
        });
        units.collect::<Vec<Unit>>()
    };
    let time = of(&|_| PERCENT);
    Offers::from([
        (ALIYUN_GPU_MEMORY.to_owned(), of(&|mib| mib / MEMORY_UNIT)),
        (ALIYUN_GPU_CORE.to_owned(), time.clone()),
        (ALIYUN_GPU_CORE_PERCENTAGE.to_owned(), time),
    ])
}

/// The devices that a machine offers. GPUs are always a resource, even without any: a kubelet that
/// had some must learn that they are gone.
pub fn offers(inventory: &NodeInventory, sharing: &Sharing) -> Offers {
    let offered = inventory.offered();
    let numa: BTreeMap<u32, Option<u32>> = (inventory.gpus.iter())
        .map(|gpu| (gpu.index, gpu.numa))
        .collect();
    let unit = |id: String, healthy, numa| Unit {
        device: id.clone(),
        id,
        shared: false,
        healthy,
        numa,
    };
    let gpus = (offered.gpus.into_iter()).map(|gpu| unit(gpu.id, gpu.healthy, gpu.numa));
    let mut all = Offers::from([(NVIDIA_GPU.to_owned(), gpus.collect())]);
    for (resource, slices) in offered.slices {
        let units = slices.into_iter().map(|(gpu, slice)| {
            let numa = numa.get(&gpu).copied().flatten();
            unit(slice.id, slice.healthy, numa)
        });
        all.insert(resource, units.collect());
    }
    sharing.apply(all, inventory)
}

/// The name of a resource's socket, in the kubelet's directory of plugins.
pub fn socket_name(resource: &str) -> String {
    let plain = resource.replace("nvidia.com/", "nvidia-").replace('/', "-");
    format!("muster-{plain}.sock")
}

#[cfg(test)]
mod tests {
    use hardware::Inventory;
    use hardware::description::MachineDescription;

    use super::*;
    use crate::inventory::NodeHardware;
    use crate::mps::MpsDaemonState;

    /// Two H100, the second with these slices.
    fn machine(strategy: &str, slices: &str) -> NodeInventory {
        let text = format!(
            "[machine]\nmig_strategy = \"{strategy}\"\n\
             [[gpu]]\nmodel = \"NVIDIA H100 80GB HBM3\"\nmemory_mib = 81559\nid = [\"GPU-0\"]\nnuma = 0\n\
             [[gpu]]\nmodel = \"NVIDIA H100 80GB HBM3\"\nmemory_mib = 81559\nid = [\"GPU-1\"]\nnuma = 1\nmig = {slices}\n"
        );
        let mut inventory = Inventory::default();
        let description = MachineDescription::parse(&text, std::path::Path::new("m.toml"));
        description.expect("a machine").apply(&mut inventory);
        NodeHardware::of(&inventory).inventory
    }

    #[test]
    fn each_strategy_offers_its_resources() {
        let same = r#"["1g.10gb", "1g.10gb"]"#;
        let several = r#"["1g.10gb", "1g.10gb+me", "3g.40gb"]"#;
        let (gpu, small) = ("nvidia.com/gpu", "nvidia.com/mig-1g.10gb");
        let (media, large) = ("nvidia.com/mig-1g.10gb.me", "nvidia.com/mig-3g.40gb");
        // The strategy; the slices; each resource with its number of devices.
        type Case<'a> = (&'a str, &'a str, &'a [(&'a str, usize)]);
        let cases: [Case<'_>; 6] = [
            ("none", same, &[(gpu, 2)]),
            ("single", same, &[(gpu, 3)]),
            ("mixed", same, &[(gpu, 1), (small, 2)]),
            ("none", several, &[(gpu, 2)]),
            (
                "single",
                several,
                &[(gpu, 1), (small, 1), (media, 1), (large, 1)],
            ),
            (
                "mixed",
                several,
                &[(gpu, 1), (small, 1), (media, 1), (large, 1)],
            ),
        ];
        for (strategy, slices, wanted) in cases {
            let offers = offers(&machine(strategy, slices), &Sharing::default());
            let counted: Vec<(&str, usize)> = (offers.iter())
                .map(|(resource, units)| (resource.as_str(), units.len()))
                .collect();
            assert_eq!(counted, wanted, "{strategy} with {slices}");
        }
    }

    #[test]
    fn a_slice_is_known_by_its_uuid_and_is_where_its_gpu_is() {
        let offers = offers(&machine("mixed", r#"["1g.10gb"]"#), &Sharing::default());
        let slice = &offers["nvidia.com/mig-1g.10gb"][0];
        assert!(slice.id.starts_with("MIG-"), "{}", slice.id);
        assert_eq!((slice.healthy, slice.numa), (true, Some(1)));
        assert_eq!(offers["nvidia.com/gpu"][0].numa, Some(0));
    }

    #[test]
    fn a_machine_without_gpus_offers_none() {
        let offers = offers(&NodeInventory::default(), &Sharing::default());
        assert_eq!(offers, Offers::from([(NVIDIA_GPU.to_owned(), Vec::new())]));
    }

    #[test]
    fn gpus_are_offered_in_parts_where_that_is_asked_for_and_not_while_mps_is_down() {
        let inventory = machine("none", "[]");
        let all = |stands: &MpsDaemonStates, in_parts| {
            all(&inventory, stands, &Sharing::default(), in_parts)
        };
        assert_eq!(all(&MpsDaemonStates::new(), false).len(), 1);
        let stand = MpsDaemonState {
            problem: Some("its daemon died".into()),
            ..MpsDaemonState::default()
        };
        let offers = all(&MpsDaemonStates::from([("GPU-1".to_owned(), stand)]), true);
        let well = |resource: &str| offers[resource].iter().filter(|it| it.healthy).count();
        assert_eq!(offers[ALIYUN_GPU_MEMORY].len(), 2 * 79);
        for (resource, count) in [
            (ALIYUN_GPU_MEMORY, 79),
            (ALIYUN_GPU_CORE, 100),
            (ALIYUN_GPU_CORE_PERCENTAGE, 100),
            (NVIDIA_GPU, 1),
        ] {
            assert_eq!(well(resource), count, "{resource}");
            assert_eq!(chosen_as(resource), NVIDIA_GPU);
        }
        assert_eq!(
            chosen_as("nvidia.com/mig-1g.10gb"),
            "nvidia.com/mig-1g.10gb"
        );
    }

    #[test]
    fn each_resource_has_a_socket_of_its_own() {
        assert_eq!(socket_name(NVIDIA_GPU), "muster-nvidia-gpu.sock");
        assert_eq!(
            socket_name("nvidia.com/mig-1g.10gb.me"),
            "muster-nvidia-mig-1g.10gb.me.sock"
        );
        assert_eq!(
            socket_name("example.com/gpu"),
            "muster-example.com-gpu.sock"
        );
    }
}
