//! Devices that count as several: which, how often, and under which name (as NVIDIA's device plugin has
//! it), and how their processes share them. Pure. What keeps to shares by MPS is `mps`'.

use std::collections::BTreeMap;

use resources::devices::NodeInventory;

use super::offer::{Offers, Unit};

/// What comes after the name of a resource whose devices are shared.
const SHARED: &str = ".shared";

/// How the processes on a device share it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// In turns, by the GPU's own scheduler: neither memory nor faults are kept apart.
    #[default]
    TimeSlicing,
    /// At once, through NVIDIA's Multi-Process Service, which holds each to its memory and its
    /// multiprocessors. Faults are not kept apart.
    Mps,
}

impl Strategy {
    /// In the words of GPU Feature Discovery's labels.
    pub fn label(self) -> &'static str {
        match self {
            Strategy::TimeSlicing => "time-slicing",
            Strategy::Mps => "mps",
        }
    }
}

/// Which resources' devices are given to several containers at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sharing {
    /// How.
    pub strategy: Strategy,
    /// Shared devices are the resource `NAME.shared` unless they have a name of their own.
    pub rename_by_default: bool,
    /// A container that asks for several shared devices is refused: it would get no more of a GPU.
    pub one_at_most: bool,
    /// The resources; each once.
    pub resources: Vec<Replicated>,
}

/// A resource whose devices are shared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replicated {
    /// The resource, `nvidia.com/gpu`.
    pub name: String,
    /// The name under which its shared devices are offered.
    pub rename: Option<String>,
    /// How many containers may have one of them at once.
    pub replicas: usize,
    /// Which of its devices.
    pub devices: Selection,
}

/// Some of a resource's devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Selection {
    /// All.
    #[default]
    All,
    /// So many, in the machine's order.
    First(usize),
    /// Those of these UUIDs or indices: `0`, or `0:1` for the second slice of the first GPU.
    These(Vec<String>),
}

impl Selection {
    /// Whether the device of this UUID and index, at this place among the resource's, is one of them.
    fn has(&self, place: usize, id: &str, index: Option<&String>) -> bool {
        match self {
            Selection::All => true,
            Selection::First(count) => place < *count,
            Selection::These(these) => these.iter().any(|one| one == id || Some(one) == index),
        }
    }
}

impl Sharing {
    /// The offers with what is shared. Devices that aren't selected stay what they were.
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

    /// Those of a resource's devices that are shared, with how often each counts.
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

    /// Devices that are named and that the machine doesn't have.
    pub fn missing(&self, inventory: &NodeInventory) -> Vec<String> {
        let indices = indices(inventory);
        let known = |name: &String| {
            indices.contains_key(name) || indices.values().any(|index| index == name)
        };
        let named = self.resources.iter().map(|shared| &shared.devices);
        let these = named.filter_map(|devices| match devices {
            Selection::These(these) => Some(these),
            Selection::All | Selection::First(_) => None,
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

/// What each GPU and slice is called by number.
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

    use super::super::offer::offers;
    use super::*;

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

    fn these(names: &[&str]) -> Selection {
        Selection::These(names.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn those_selected_count_as_several_and_the_rest_as_before() {
        let (shared, small) = ("nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb");
        let all = "GPU-0::0 GPU-0::1 GPU-1::0 GPU-1::1";
        let one = "GPU-1::0 GPU-1::1";
        // The resource; is it renamed; which; what there is then.
        type Case<'a> = (&'a str, bool, Selection, &'a [(&'a str, &'a str)]);
        let cases: [Case<'_>; 7] = [
            (
                NVIDIA_GPU,
                false,
                Selection::All,
                &[(NVIDIA_GPU, all), (small, "MIG-a MIG-b")],
            ),
            (
                NVIDIA_GPU,
                true,
                Selection::All,
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
                Selection::First(1),
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
                Selection::All,
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
            let told: Vec<(String, String)> = (offers.into_iter())
                .map(|(name, units)| {
                    let ids: Vec<String> = units.into_iter().map(|unit| unit.id).collect();
                    (name, ids.join(" "))
                })
                .collect();
            let wanted: Vec<(String, String)> = (wanted.iter())
                .map(|(name, ids)| (name.to_string(), ids.to_string()))
                .collect();
            assert_eq!(told, wanted, "{sharing:?}");
        }
    }

    #[test]
    fn devices_that_are_named_and_not_there_are_told() {
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
    fn a_name_of_its_own_goes_before_the_default_one() {
        let sharing = Sharing {
            rename_by_default: true,
            resources: vec![Replicated {
                name: NVIDIA_GPU.into(),
                rename: Some("nvidia.com/part".into()),
                replicas: 3,
                devices: Selection::All,
            }],
            ..Sharing::default()
        };
        let offers = offers(&machine(), &sharing);
        assert_eq!(offers["nvidia.com/part"].len(), 6);
        assert!(offers["nvidia.com/part"].iter().all(|unit| unit.shared));
        assert!(!offers.contains_key(NVIDIA_GPU));
    }
}
