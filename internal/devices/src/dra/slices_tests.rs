//! Pools as an API stores them and a scheduler reads them, by table and by property.

use std::collections::BTreeMap;

use hardware::mig;
use hardware::partition::{InstanceProfile, place};
use proptest::prelude::*;

use super::super::counters;
use super::*;

/// The maximum number of counters of a slice's sets together.
const COUNTERS_MAX: usize = 32;
/// The maximum number of counter consumptions of a slice's devices together.
const CONSUMED_MAX: usize = 1024;

fn owner() -> SliceOwner {
    let mut node = Node::default();
    node.metadata.name = Some("box".into());
    node.metadata.uid = Some("1234".into());
    SliceOwner::of(&node)
}

fn devices(count: usize) -> Vec<Device> {
    let one = |at| Device {
        name: format!("gpu-{at}"),
        ..Device::default()
    };
    (0..count).map(one).collect()
}

/// A node's offer: so many plain devices, and these GPUs in partitions.
#[derive(Clone, Debug, Default, PartialEq)]
struct Offered {
    devices: Vec<Device>,
    shared: Vec<CounterSet>,
}

/// A H100 in all its partitions.
fn partitioned(gpu: usize) -> (CounterSet, Vec<Device>) {
    let known = mig::profiles("NVIDIA H100 80GB HBM3").iter();
    let profiles: Vec<InstanceProfile> = known.map(InstanceProfile::from).collect();
    let set = counters::set(&format!("whole-{gpu}"), &profiles);
    let part = |(profile, start): (&InstanceProfile, u32)| Device {
        name: format!("whole-{gpu}-{}-{start}", profile.name),
        consumes_counters: Some(counters::part(&set, profile, start)),
        ..Device::default()
    };
    let mut devices: Vec<Device> = place::all(&profiles).map(part).collect();
    devices.push(Device {
        name: format!("whole-{gpu}"),
        consumes_counters: Some(counters::whole(&set)),
        ..Device::default()
    });
    (set, devices)
}

fn offered(plain: usize, parted: usize) -> Offered {
    let mut all = Offered {
        devices: devices(plain),
        shared: Vec::new(),
    };
    for gpu in 0..parted {
        let (set, devices) = partitioned(gpu);
        all.shared.push(set);
        all.devices.extend(devices);
    }
    all
}

/// An API that stores slices.
#[derive(Default)]
struct Kept {
    slices: BTreeMap<String, ResourceSlice>,
    made: usize,
    /// Whether it drops counters from slices that have none.
    drops: bool,
}

impl Kept {
    /// Does a write; whether all was kept.
    fn write(&mut self, write: SliceWrite) -> bool {
        match write {
            SliceWrite::Create(mut slice) => {
                self.made += 1;
                let name = format!("box-{}", self.made);
                slice.metadata.name = Some(name.clone());
                self.put(name, *slice, false)
            }
            SliceWrite::Replace(slice) => {
                let name = slice.metadata.name.clone().expect("a name");
                let before = self.slices.get(&name).expect("it was there");
                let counts = before.spec.shared_counters.is_some();
                self.put(name, *slice, counts)
            }
            SliceWrite::Delete(name) => {
                assert!(self.slices.remove(&name).is_some(), "it was there");
                true
            }
        }
    }

    fn put(&mut self, name: String, mut slice: ResourceSlice, counts: bool) -> bool {
        let asked = slice.clone();
        if self.drops && !counts {
            slice.spec.shared_counters = None;
            let devices = slice.spec.devices.iter_mut().flatten();
            devices.for_each(|device| device.consumes_counters = None);
        }
        let kept = slice == asked;
        self.slices.insert(name, slice);
        kept
    }

    fn writes(&self, offered: &Offered) -> Vec<SliceWrite> {
        let there: Vec<_> = self.slices.values().collect();
        owner().writes(&there, &offered.devices, &offered.shared)
    }

    /// Does all writes until there are none, or until counters were dropped; whether they were
    /// kept.
    fn write_all(&mut self, offered: &Offered, mut seen: impl FnMut(&Kept)) -> bool {
        loop {
            let writes = self.writes(offered);
            if writes.is_empty() {
                return true;
            }
            for write in writes {
                let kept = self.write(write);
                seen(self);
                if !kept {
                    return false;
                }
            }
        }
    }

    /// The devices of the pool as a scheduler reads it; `None` while it is incomplete.
    fn pool(&self) -> Option<Vec<String>> {
        let all = self.slices.values();
        let newest = all.clone().map(|it| it.spec.pool.generation).max()?;
        let all: Vec<_> = all.filter(|it| it.spec.pool.generation == newest).collect();
        let whole = (all.iter())
            .all(|it| it.spec.pool.resource_slice_count == i64::try_from(all.len()).unwrap_or(0));
        let mut names: Vec<String> = (all.iter())
            .flat_map(|it| it.spec.devices.iter().flatten())
            .map(|device| device.name.clone())
            .collect();
        names.sort();
        whole.then_some(names)
    }

    /// Whether counters prevent overlaps: every partition consumes some of its own slice's
    /// counters.
    fn counts(&self) -> bool {
        self.slices.values().all(|slice| {
            let sets = slice.spec.shared_counters.iter().flatten();
            let sets: Vec<&String> = sets.map(|set| &set.name).collect();
            let mut parts = slice.spec.devices.iter().flatten();
            parts.all(|device| {
                let mut consumed = device.consumes_counters.iter().flatten();
                !device.name.starts_with("whole-")
                    || consumed.any(|it| sets.contains(&&it.counter_set))
            })
        })
    }

    /// Whether every slice is within the API's limits.
    fn within_limits(&self) -> bool {
        self.slices.values().all(|slice| {
            let devices = slice.spec.devices.as_deref().unwrap_or_default();
            let sets = slice.spec.shared_counters.iter().flatten();
            let counters = sets.map(|set| set.counters.len()).sum::<usize>();
            let consumed = devices.iter().flat_map(|it| it.consumes_counters.iter());
            let consumed = consumed.flatten().map(|it| it.counters.len());
            let consumed: Vec<usize> = consumed.collect();
            devices.len() <= DEVICES_MAX
                && counters <= COUNTERS_MAX
                && consumed.iter().all(|count| *count <= COUNTERS_MAX)
                && consumed.iter().sum::<usize>() <= CONSUMED_MAX
        })
    }
}

fn names(offered: &Offered) -> Option<Vec<String>> {
    let mut names: Vec<String> = (offered.devices.iter()).map(|it| it.name.clone()).collect();
    names.sort();
    Some(names)
}

#[test]
fn a_change_within_one_slice_is_one_write_and_keeps_the_generation() {
    let mut kept = Kept::default();
    let first = kept.writes(&offered(8, 0));
    assert!(matches!(&first[..], [SliceWrite::Create(_)]), "{first:?}");
    for write in first {
        kept.write(write);
    }
    assert_eq!(kept.writes(&offered(8, 0)), []);
    let second = kept.writes(&offered(7, 0));
    let [SliceWrite::Replace(slice)] = &second[..] else {
        panic!("{second:?}");
    };
    assert_eq!(slice.spec.pool.generation, 1);
    assert_eq!(slice.spec.devices.as_ref().map(Vec::len), Some(7));
    let owner = &slice.metadata.owner_references.as_ref().expect("an owner")[0];
    assert_eq!((owner.kind.as_str(), owner.uid.as_str()), ("Node", "1234"));
}

#[test]
fn a_node_without_devices_has_an_empty_slice() {
    let mut kept = Kept::default();
    let nothing = Offered::default();
    kept.write_all(&nothing, |_| ());
    assert_eq!(kept.slices.len(), 1);
    assert_eq!(kept.writes(&nothing), []);
}

#[test]
fn eight_gpus_in_partitions_are_a_slice_each_beside_that_of_the_cards() {
    let mut kept = Kept::default();
    let all = offered(4, 8);
    assert!(kept.write_all(&all, |_| ()));
    assert_eq!(kept.slices.len(), 9);
    assert_eq!(kept.pool(), names(&all));
    assert!(kept.within_limits() && kept.counts());
    let with_counters = |it: &&ResourceSlice| it.spec.shared_counters.is_some();
    let parted: Vec<_> = kept.slices.values().filter(with_counters).collect();
    assert_eq!(parted.len(), 8);
    for slice in parted {
        assert_eq!(slice.spec.devices.as_ref().map(Vec::len), Some(26));
    }
    // A failed card is one write, and so is a failed GPU.
    let card = Offered {
        devices: all.devices[1..].to_vec(),
        ..all.clone()
    };
    assert!(matches!(&kept.writes(&card)[..], [SliceWrite::Replace(_)]));
}

proptest! {
    /// For any earlier state: between the writes a pool is the old one, the new one, the new one
    /// without the devices that share counters, or incomplete; after them it is the new one, and
    /// nothing is left to write.
    #[test]
    fn a_pool_is_never_seen_half_written(
        all in prop::collection::vec((0_usize..400, 0_usize..4), 1..6),
    ) {
        let mut kept = Kept::default();
        for (plain, parted) in all {
            let wanted = offered(plain, parted);
            let before = kept.pool();
            let after = names(&wanted);
            let apart = |all: &[String]| -> Vec<String> {
                let plain = all.iter().filter(|name| !name.starts_with("whole-"));
                plain.cloned().collect()
            };
            let plainly = after.as_deref().map(apart);
            let mut all_well = true;
            let done = kept.write_all(&wanted, |kept| {
                let seen = kept.pool();
                let known = seen == before || seen == after
                    || seen.as_deref().map(apart) == plainly;
                all_well &= (seen.is_none() || known) && kept.counts() && kept.within_limits();
            });
            prop_assert!(done && all_well);
            prop_assert_eq!(kept.pool(), after);
            prop_assert_eq!(kept.writes(&wanted), vec![]);
        }
    }

    /// For servers that keep counters and servers that drop them, in any order: partitions are
    /// never visible without counters.
    #[test]
    fn what_overlaps_is_never_seen_without_counters(
        all in prop::collection::vec((any::<bool>(), 0_usize..3, 0_usize..4), 1..8),
    ) {
        let mut kept = Kept::default();
        for (drops, plain, parted) in all {
            kept.drops = drops;
            let mut well = true;
            if !kept.write_all(&offered(plain, parted), |kept| well &= kept.counts()) {
                // Then as plain devices.
                prop_assert!(kept.write_all(&offered(plain, 0), |kept| well &= kept.counts()));
            }
            prop_assert!(well);
        }
    }
}
