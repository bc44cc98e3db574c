//! Devices with replicas: which devices, how many replicas, and under which resource name (as in
//! NVIDIA's device plugin), and how their processes share them. Pure. `mps` enforces the shares by
//! MPS.

use std::collections::BTreeMap;

use resources::devices::NodeInventory;

use crate::unit::{Offers, Unit};

/// The suffix of a resource whose devices are shared.
const SHARED: &str = ".shared";

/// How the processes on a device share it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SharingStrategy {
    /// In turns, by the GPU's own scheduler, without isolation of memory or faults.
    #[default]
    TimeSlicing,
    /// At once, through NVIDIA's Multi-Process Service, which limits each to its memory and its
    /// multiprocessors, without isolation of faults.
    Mps,
}

impl SharingStrategy {
    /// The value in GPU Feature Discovery's labels.
    pub fn label(self) -> &'static str {
        match self {
            SharingStrategy::TimeSlicing => "time-slicing",
            SharingStrategy::Mps => "mps",
        }
    }
}

/// The resources whose devices several containers share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sharing {
    /// How they are shared.
    pub strategy: SharingStrategy,
    /// Whether shared devices without a configured name become the resource `NAME.shared`.
    pub rename_by_default: bool,
    /// Whether a request for several shared devices is refused: it would get no more of a GPU.
    pub one_at_most: bool,
    /// The resources, each once.
    pub resources: Vec<Replicated>,
}

/// A resource whose devices are shared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replicated {
    /// The resource, `nvidia.com/gpu`.
    pub name: String,
    /// The name under which its shared devices are offered.
    pub rename: Option<String>,
    /// How many containers may use one of its devices at once.
    pub replicas: usize,
    /// Which of its devices are shared.
    pub devices: DeviceSelection,
}

/// Some of a resource's devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DeviceSelection {
    /// All devices.
    #[default]
    All,
    /// The first so many, in the machine's order.
    First(usize),
    /// The devices with these UUIDs or indices: `0`, or `0:1` for the second slice of the first
    /// GPU.
    These(Vec<String>),
}

impl DeviceSelection {
    /// Whether the selection contains the device of this UUID and index, at this place of the
    /// resource.
    fn has(&self, place: usize, id: &str, index: Option<&String>) -> bool {
        match self {
            DeviceSelection::All => true,
            DeviceSelection::First(count) => place < *count,
            DeviceSelection::These(these) => {
                these.iter().any(|one| one == id || Some(one) == index)
            }
        }
    }
}

impl Sharing {
    /// The offers with sharing applied. Devices that aren't selected stay unchanged.
    pub fn apply(&self, mut offers: Offers, inventory: &NodeInventory) -> Offers {
        let indices = indices(inventory);
        for shared in &self.resources {
            let Some(units) = offers.remove(&shared.name) else {
                continue;
            };
            let name = match &shared.rename {
                Some(name) => name.clone(),
                None if self.rename_by_default => format!("{}{SHARED}", shared.name),
                None => shared.name.clone(),
            };
            let (mut taken, mut left) = (Vec::new(), Vec::new());
            for (place, unit) in units.into_iter().enumerate() {
                let index = indices.get(&unit.device);
                match shared.devices.has(place, &unit.device, index) {
                    true if shared.replicas == 1 => taken.push(unit),
                    true => taken.extend((0..shared.replicas).map(|n| replica(&unit, n))),
                    false => left.push(unit),
                }
            }
            if !left.is_empty() {
                offers.entry(shared.name.clone()).or_default().extend(left);
            }
            offers.entry(name).or_default().extend(taken);
        }
        offers
    }

    /// The shared devices of a resource, with the number of replicas.
    pub fn selected<'a>(
        &self,
        resource: &str,
        inventory: &NodeInventory,
        devices: impl Iterator<Item = &'a str>,
    ) -> BTreeMap<String, usize> {
        let Some(shared) = self.resources.iter().find(|one| one.name == resource) else {
            return BTreeMap::new();
        };
        let indices = indices(inventory);
        let here = |(place, id): &(usize, &str)| shared.devices.has(*place, id, indices.get(*id));
        (devices.enumerate().filter(here))
            .map(|(_, id)| (id.to_owned(), shared.replicas))
            .collect()
    }

    /// Selected devices that the machine doesn't have.
    pub fn missing(&self, inventory: &NodeInventory) -> Vec<String> {
        let indices = indices(inventory);
        let known = |name: &String| {
            indices.contains_key(name) || indices.values().any(|index| index == name)
        };
        let named = self.resources.iter().map(|shared| &shared.devices);
        let these = named.filter_map(|devices| match devices {
            DeviceSelection::These(these) => Some(these),
            DeviceSelection::All | DeviceSelection::First(_) => None,
        });
        (these.flatten().filter(|name| !known(name)).cloned()).collect()
    }
}

fn replica(unit: &Unit, number: usize) -> Unit {
    Unit {
        id: format!("{}::{number}", unit.device),
        shared: true,
        ..unit.clone()
    }
}

/// The index of each GPU and slice.
fn indices(inventory: &NodeInventory) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for gpu in &inventory.gpus {
        all.insert(gpu.id.clone(), gpu.index.to_string());
        for (place, slice) in gpu.slices.iter().flatten().enumerate() {
            all.insert(slice.id.clone(), format!("{}:{place}", gpu.index));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use resources::devices::{GpuDevice, MigSlice};
    use resources::names::NVIDIA_GPU;

    use super::*;
    use crate::offer::offers;

    /// Two GPUs, and one with two slices.
    fn machine() -> NodeInventory {
        let gpu = |index: u32, slices| GpuDevice {
            id: format!("GPU-{index}"),
            index,
            healthy: true,
            slices,
            ..GpuDevice::default()
        };
        let slice = |id: &str| MigSlice {
            id: id.into(),
            profile: "1g.10gb".into(),
            healthy: true,
            ..MigSlice::default()
        };
        NodeInventory {
            gpus: vec![
                gpu(0, None),
                gpu(1, None),
                gpu(2, Some(vec![slice("MIG-a"), slice("MIG-b")])),
            ],
            ..NodeInventory::default()
        }
    }

    fn these(names: &[&str]) -> DeviceSelection {
        DeviceSelection::These(names.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn those_selected_count_as_several_and_the_rest_as_before() {
        let (shared, small) = ("nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb");
        let all = "GPU-0::0 GPU-0::1 GPU-1::0 GPU-1::1";
        let one = "GPU-1::0 GPU-1::1";
        // The resource; whether it is renamed; the selection; the offers.
        type Case<'a> = (&'a str, bool, DeviceSelection, &'a [(&'a str, &'a str)]);
        let cases: [Case<'_>; 7] = [
            (
                NVIDIA_GPU,
                false,
                DeviceSelection::All,
                &[(NVIDIA_GPU, all), (small, "MIG-a MIG-b")],
            ),
            (
                NVIDIA_GPU,
                true,
                DeviceSelection::All,
                &[(shared, all), (small, "MIG-a MIG-b")],
            ),
            (
                NVIDIA_GPU,
                true,
                these(&["1"]),
                &[(NVIDIA_GPU, "GPU-0"), (shared, one), (small, "MIG-a MIG-b")],
            ),
            (
                NVIDIA_GPU,
                false,
                these(&["GPU-1"]),
                &[
                    (NVIDIA_GPU, "GPU-0 GPU-1::0 GPU-1::1"),
                    (small, "MIG-a MIG-b"),
                ],
            ),
            (
                NVIDIA_GPU,
                true,
                DeviceSelection::First(1),
                &[
                    (NVIDIA_GPU, "GPU-1"),
                    (shared, "GPU-0::0 GPU-0::1"),
                    (small, "MIG-a MIG-b"),
                ],
            ),
            (
                small,
                true,
                these(&["2:1"]),
                &[
                    (NVIDIA_GPU, "GPU-0 GPU-1"),
                    (small, "MIG-a"),
                    ("nvidia.com/mig-1g.10gb.shared", "MIG-b::0 MIG-b::1"),
                ],
            ),
            (
                "nvidia.com/mig-2g.20gb",
                true,
                DeviceSelection::All,
                &[(NVIDIA_GPU, "GPU-0 GPU-1"), (small, "MIG-a MIG-b")],
            ),
        ];
        for (name, rename_by_default, devices, wanted) in cases {
            let sharing = Sharing {
                rename_by_default,
                resources: vec![Replicated {
                    name: name.into(),
                    rename: None,
                    replicas: 2,
                    devices,
                }],
                ..Sharing::default()
            };
            let offers = offers(&machine(), &sharing);
            let shown: Vec<(String, String)> = (offers.into_iter())
                .map(|(name, units)| {
                    let ids: Vec<String> = units.into_iter().map(|unit| unit.id).collect();
                    (name, ids.join(" "))
                })
                .collect();
            let wanted: Vec<(String, String)> = (wanted.iter())
                .map(|(name, ids)| (name.to_string(), ids.to_string()))
                .collect();
            assert_eq!(shown, wanted, "{sharing:?}");
        }
    }

    #[test]
    fn selected_devices_that_do_not_exist_are_reported() {
        let sharing = Sharing {
            resources: vec![Replicated {
                devices: these(&["1", "2:1", "MIG-a", "GPU-0", "3", "2:2", "GPU-9"]),
                ..Replicated::default()
            }],
            ..Sharing::default()
        };
        assert_eq!(sharing.missing(&machine()), ["3", "2:2", "GPU-9"]);
    }

    #[test]
    fn a_configured_name_takes_precedence_over_the_default() {
        let sharing = Sharing {
            rename_by_default: true,
            resources: vec![Replicated {
                name: NVIDIA_GPU.into(),
                rename: Some("nvidia.com/part".into()),
                replicas: 3,
                devices: DeviceSelection::All,
            }],
            ..Sharing::default()
        };
        let offers = offers(&machine(), &sharing);
        assert_eq!(offers["nvidia.com/part"].len(), 6);
        assert!(offers["nvidia.com/part"].iter().all(|unit| unit.shared));
        assert!(!offers.contains_key(NVIDIA_GPU));
    }
}
