//! Chooses free devices with good links to each other, for pods whose devices no scheduler chose.
//! Pure: whole GPUs are compared by `hardware`'s tables; slices have no links to compare.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use hardware::GpuChooser;

use crate::unit::Unit;

/// The best `size` of the `available` devices that include all of `must`; empty if there are too
/// few.
pub fn best(
    chooser: &GpuChooser,
    offered: &[Unit],
    available: &BTreeSet<String>,
    must: &BTreeSet<String>,
    size: usize,
) -> Vec<String> {
    if offered.iter().any(|unit| unit.shared) {
        return spread(offered, available, must, size);
    }
    let gpus = &chooser.graph().gpus;
    let places: BTreeMap<&str, usize> = (gpus.iter().enumerate())
        .map(|(place, gpu)| (gpu.id.as_str(), place))
        .collect();
    let of = |ids: &BTreeSet<String>| -> Option<Vec<usize>> {
        ids.iter()
            .map(|id| places.get(id.as_str()).copied())
            .collect()
    };
    if let (Some(free), Some(must)) = (of(available), of(must)) {
        let chosen = chooser.choose(&free, &must, size);
        return (chosen.into_iter())
            .map(|place| gpus[place].id.clone())
            .collect();
    }
    // With slices: the required devices, then the first in the machine's order.
    let known = |id: &&String| available.contains(*id) || must.contains(*id);
    let ids = || offered.iter().map(|unit| &unit.id).filter(known);
    let (first, rest): (Vec<&String>, Vec<&String>) = ids().partition(|id| must.contains(*id));
    let chosen: Vec<String> = (first.into_iter().chain(rest))
        .take(size)
        .cloned()
        .collect();
    if chosen.len() < size {
        return Vec::new();
    }
    chosen
}

/// The available devices that are `near` a device of another kind, and those that `must` be chosen;
/// all available devices if these are too few.
pub fn nearest(
    near: impl Fn(&Unit) -> bool,
    offered: &[Unit],
    available: BTreeSet<String>,
    must: &BTreeSet<String>,
    size: usize,
) -> BTreeSet<String> {
    let close =
        |unit: &&Unit| must.contains(&unit.id) || (available.contains(&unit.id) && near(unit));
    let close: BTreeSet<String> = (offered.iter().filter(close))
        .map(|unit| unit.id.clone())
        .collect();
    if close.len() < size { available } else { close }
}

/// Chooses among devices with replicas: each time a replica of the device that was chosen least so
/// far, on a tie of the device with the most free replicas.
fn spread(
    offered: &[Unit],
    available: &BTreeSet<String>,
    must: &BTreeSet<String>,
    size: usize,
) -> Vec<String> {
    let of = |ids: &BTreeSet<String>| -> Vec<&Unit> {
        let there = |unit: &&Unit| ids.contains(&unit.id);
        offered.iter().filter(there).collect()
    };
    let mut chosen = of(must);
    let mut free = of(available);
    free.retain(|unit| !must.contains(&unit.id));
    while chosen.len() < size {
        let load = |unit: &Unit| {
            let same = |other: &&&Unit| other.device == unit.device;
            let mine = chosen.iter().filter(same).count();
            (mine, Reverse(free.iter().filter(same).count()))
        };
        // The first on a tie.
        let Some(place) = (0..free.len()).min_by_key(|place| load(free[*place])) else {
            return Vec::new();
        };
        chosen.push(free.remove(place));
    }
    chosen.truncate(size);
    chosen.into_iter().map(|unit| unit.id.clone()).collect()
}

/// One available unit for each device; devices without an available unit are left out.
pub fn representatives(
    devices: &[String],
    offered: &[Unit],
    available: &BTreeSet<String>,
) -> Vec<String> {
    let mut taken: BTreeSet<&str> = BTreeSet::new();
    for device in devices {
        let fits = |unit: &&Unit| {
            unit.device == *device
                && available.contains(&unit.id)
                && !taken.contains(unit.id.as_str())
        };
        if let Some(unit) = offered.iter().find(fits) {
            taken.insert(&unit.id);
        }
    }
    taken.into_iter().map(String::from).collect()
}

/// So many available units of one device, if the device is offered in parts.
pub fn parts_of(
    device: &str,
    offered: &[Unit],
    available: &BTreeSet<String>,
    size: usize,
) -> Vec<String> {
    let here = |unit: &&Unit| unit.device == device && available.contains(&unit.id);
    let ids = offered.iter().filter(here).map(|unit| unit.id.clone());
    ids.take(size).collect()
}

#[cfg(test)]
mod tests {
    use hardware::description::MachineDescription;
    use hardware::{Inventory, PathGraph};

    use super::*;
    use crate::inventory::NodeHardware;

    /// Four GPUs, two on each socket; the pairs of a socket have NVLinks. `more` changes the last.
    fn two_pairs(more: &str) -> (GpuChooser, Vec<Unit>) {
        let text = format!(
            "[machine]\nmig_strategy = \"single\"\n\
             [[gpu]]\nmodel = \"A\"\nmemory_mib = 1\ncount = 2\nnuma = 0\nid = [\"GPU-0\", \"GPU-1\"]\n\
             [[gpu]]\nmodel = \"A\"\nmemory_mib = 1\ncount = 2\nnuma = 1\nid = [\"GPU-2\", \"GPU-3\"]\n\
             [[nvlink]]\ngpus = [0, 1]\nlinks = 4\n[[nvlink]]\ngpus = [2, 3]\nlinks = 4\n{more}"
        );
        let mut inventory = Inventory::default();
        let description = MachineDescription::parse(&text, std::path::Path::new("m.toml"));
        description.expect("a machine").apply(&mut inventory);
        let offers = crate::offer::offers(
            &NodeHardware::of(&inventory).inventory,
            &crate::sharing::Sharing::default(),
        );
        let offered = offers[resources::names::NVIDIA_GPU].clone();
        (GpuChooser::new(PathGraph::of(&inventory)), offered)
    }

    fn set(ids: &[&str]) -> BTreeSet<String> {
        ids.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn devices_with_nvlinks_between_them_go_together() {
        let (chooser, offered) = two_pairs("");
        let best = |free: &[&str], must: &[&str], size: usize| {
            best(&chooser, &offered, &set(free), &set(must), size)
        };
        let all = ["GPU-0", "GPU-1", "GPU-2", "GPU-3"];
        assert_eq!(best(&all, &[], 2), ["GPU-0", "GPU-1"]);
        assert_eq!(best(&all, &["GPU-3"], 2), ["GPU-2", "GPU-3"]);
        assert_eq!(best(&all[1..], &[], 2), ["GPU-2", "GPU-3"]);
        // A single GPU is taken so that a linked pair stays free.
        assert_eq!(best(&all[1..], &[], 1), ["GPU-1"]);
    }

    /// Two devices with three replicas each.
    fn replicas() -> Vec<Unit> {
        let unit = |device: &str, n: usize| Unit {
            id: format!("{device}::{n}"),
            device: device.to_string(),
            shared: true,
            healthy: true,
            numa: None,
        };
        let of = |device: &'static str| (0..3).map(move |n| unit(device, n));
        of("GPU-0").chain(of("GPU-1")).collect()
    }

    #[test]
    fn shared_devices_with_the_fewest_holders_and_distinct_devices_are_chosen_first() {
        let units = replicas();
        let best = |free: &[&str], must: &[&str], size: usize| {
            best(&GpuChooser::default(), &units, &set(free), &set(must), size).join(" ")
        };
        let all: Vec<&str> = units.iter().map(|unit| unit.id.as_str()).collect();
        assert_eq!(best(&all, &[], 1), "GPU-0::0");
        assert_eq!(best(&all[1..], &[], 1), "GPU-1::0");
        assert_eq!(best(&all, &[], 2), "GPU-0::0 GPU-1::0");
        assert_eq!(best(&all, &["GPU-1::2"], 2), "GPU-1::2 GPU-0::0");
        assert_eq!(best(&all[..3], &[], 2), "GPU-0::0 GPU-0::1");
        assert_eq!(best(&all[..1], &[], 2), "");
    }

    #[test]
    fn a_chosen_device_is_given_by_a_replica_that_is_free() {
        let units = replicas();
        let free = set(&["GPU-0::2", "GPU-1::1", "GPU-1::2"]);
        let ids = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let given = |names: &[&str]| representatives(&ids(names), &units, &free);
        assert_eq!(given(&["GPU-1", "GPU-0"]), ["GPU-0::2", "GPU-1::1"]);
        assert_eq!(given(&["GPU-1", "GPU-1"]), ["GPU-1::1", "GPU-1::2"]);
        assert_eq!(given(&["GPU-0", "GPU-0"]), ["GPU-0::2"]);
    }

    #[test]
    fn parts_are_all_of_one_device() {
        let free = set(&["GPU-0::2", "GPU-1::1", "GPU-1::2"]);
        let units = replicas();
        let given = |size| parts_of("GPU-1", &units, &free, size);
        assert_eq!(given(2), ["GPU-1::1", "GPU-1::2"]);
        assert_eq!(given(1), ["GPU-1::1"]);
    }

    #[test]
    fn devices_near_a_containers_cards_come_first_where_there_are_enough() {
        let (chooser, offered) = two_pairs("");
        let all = set(&["GPU-0", "GPU-1", "GPU-2", "GPU-3"]);
        let best = |near: &[&str], must: &[&str], size: usize| {
            let (near, must) = (set(near), set(must));
            let near = |unit: &Unit| near.contains(&unit.device);
            let free = nearest(near, &offered, all.clone(), &must, size);
            best(&chooser, &offered, &free, &must, size).join(" ")
        };
        assert_eq!(best(&["GPU-2", "GPU-3"], &[], 2), "GPU-2 GPU-3");
        assert_eq!(best(&["GPU-3"], &[], 1), "GPU-3");
        assert_eq!(best(&["GPU-3"], &["GPU-0"], 2), "GPU-0 GPU-3");
        // A nearby device counts less than two linked devices.
        assert_eq!(best(&["GPU-3"], &[], 2), "GPU-0 GPU-1");
        assert_eq!(best(&[], &[], 2), "GPU-0 GPU-1");
    }

    #[test]
    fn nothing_is_preferred_where_there_are_too_few() {
        let (chooser, offered) = two_pairs("");
        assert!(best(&chooser, &offered, &set(&["GPU-0"]), &set(&[]), 2).is_empty());
    }

    #[test]
    fn slices_are_given_in_the_machines_order_with_those_that_must_be() {
        let (chooser, offered) =
            two_pairs("[[state]]\ngpu = 3\nmig = [\"1g.10gb\", \"1g.10gb\"]\n");
        let ids: Vec<&str> = offered.iter().map(|gpu| gpu.id.as_str()).collect();
        assert_eq!(ids.len(), 5);
        let (slice, last) = (ids[3], ids[4]);
        let all = set(&ids);
        assert_eq!(
            best(&chooser, &offered, &all, &set(&[last]), 2),
            [last, "GPU-0"]
        );
        let slices = set(&[slice, last]);
        assert_eq!(best(&chooser, &offered, &slices, &set(&[]), 1), [slice]);
        assert!(best(&chooser, &offered, &slices, &set(&[]), 3).is_empty());
    }
}
