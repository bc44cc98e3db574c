//! The shared resources of a GPU's partitions as counters of one set: each of its memory slices,
//! its compute slices, and its optical flow engines. An allocator that respects the counters, as
//! kube-scheduler does, allocates no partitions that overlap. Pure.

use std::collections::BTreeMap;

use hardware::partition::{InstanceProfile, engines};
use k8s_openapi::api::resource::v1::{Counter, CounterSet, DeviceCounterConsumption};
use resources::quantity::Quantity;

/// Counters by name.
type SharedCounters = BTreeMap<String, Counter>;

/// Compute slices.
const COMPUTE: &str = "compute-slices";
/// Optical flow engines, of which a GPU has few.
const ENGINES: &str = "optical-flow-engines";

fn add(counters: &mut SharedCounters, name: String, value: u32) {
    if value > 0 {
        let value = Quantity::from_value(value.into()).to_k8s();
        counters.insert(name, Counter { value });
    }
}

/// The counters of `size` memory slices from `start` on, and the others.
fn counters(start: u32, size: u32, compute: u32, engines: u32) -> SharedCounters {
    let mut counters = SharedCounters::new();
    for slice in start..start + size {
        add(&mut counters, format!("memory-slice-{slice}"), 1);
    }
    add(&mut counters, COMPUTE.to_owned(), compute);
    add(&mut counters, ENGINES.to_owned(), engines);
    counters
}

/// All counters of a GPU with these profiles: the memory slices of all places, the compute slices of
/// the largest profile, and the engines. The set has the GPU's name as a device.
pub fn set(name: &str, profiles: &[InstanceProfile]) -> CounterSet {
    let ends = profiles.iter().flat_map(|it| {
        let starts = it.starts.iter();
        starts.map(|start| start + it.size)
    });
    let slices = profiles.iter().map(|it| it.slices);
    let (ends, slices) = (ends.max().unwrap_or(0), slices.max().unwrap_or(0));
    CounterSet {
        name: name.to_owned(),
        counters: counters(0, ends, slices, engines(profiles)),
    }
}

/// The consumption of the whole GPU: the entire set.
pub fn whole(set: &CounterSet) -> Vec<DeviceCounterConsumption> {
    vec![DeviceCounterConsumption {
        counter_set: set.name.clone(),
        counters: set.counters.clone(),
    }]
}

/// The consumption of an instance of a profile at a place.
pub fn part(
    set: &CounterSet,
    profile: &InstanceProfile,
    start: u32,
) -> Vec<DeviceCounterConsumption> {
    vec![DeviceCounterConsumption {
        counter_set: set.name.clone(),
        counters: counters(start, profile.size, profile.slices, profile.engines),
    }]
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use hardware::{mig, partition::place};
    use proptest::prelude::*;

    use super::*;

    const MODELS: [&str; 3] = [
        "NVIDIA H100 80GB HBM3",
        "NVIDIA A100-SXM4-40GB",
        "NVIDIA A100-SXM4-80GB",
    ];

    fn profiles(model: &str) -> Vec<InstanceProfile> {
        mig::profiles(model)
            .iter()
            .map(InstanceProfile::from)
            .collect()
    }

    fn value(counters: &SharedCounters, name: &str) -> i64 {
        let value = counters.get(name).map_or("0", |counter| &counter.value.0);
        i64::from_str(value).expect("a number")
    }

    /// Takes the requested counters if all suffice, as kube-scheduler does.
    fn take(left: &mut BTreeMap<String, i64>, asked: &[DeviceCounterConsumption]) -> bool {
        let [asked] = asked else { panic!("one set") };
        let enough = |name: &String| left.get(name).copied().unwrap_or(0);
        if !(asked.counters.keys()).all(|name| value(&asked.counters, name) <= enough(name)) {
            return false;
        }
        for name in asked.counters.keys() {
            *left.entry(name.clone()).or_default() -= value(&asked.counters, name);
        }
        true
    }

    fn all(set: &CounterSet) -> BTreeMap<String, i64> {
        let names = set.counters.keys();
        names
            .map(|name| (name.clone(), value(&set.counters, name)))
            .collect()
    }

    #[test]
    fn a_gpu_is_its_memory_slices_its_computing_and_its_engines() {
        let profiles = profiles(MODELS[0]);
        let set = set("gpu-a", &profiles);
        let shown: Vec<String> = (set.counters.keys())
            .map(|name| format!("{name} {}", value(&set.counters, name)))
            .collect();
        let memory = (0..8).map(|slice| format!("memory-slice-{slice} 1"));
        let mut expected = vec!["compute-slices 7".to_owned()];
        expected.extend(memory);
        expected.push("optical-flow-engines 1".to_owned());
        assert_eq!(shown, expected);
        let largest = profiles.last().expect("profiles");
        assert_eq!(part(&set, largest, 0), whole(&set), "{}", largest.name);
        let small = &part(&set, &profiles[0], 6)[0];
        let small: Vec<&String> = small.counters.keys().collect();
        assert_eq!(small, ["compute-slices", "memory-slice-6"]);
    }

    proptest! {
        /// For any order of requests: a driver can create what the counters allow beside the
        /// present instances, and would refuse what they refuse.
        #[test]
        fn the_counters_allow_what_a_gpu_can_be_cut_into(
            model in 0..MODELS.len(), asked in prop::collection::vec((0..200_usize, any::<bool>()), 1..30),
        ) {
            let (known, profiles) = (mig::profiles(MODELS[model]), profiles(MODELS[model]));
            let set = set("gpu-a", &profiles);
            let places: Vec<(&InstanceProfile, u32)> = place::all(&profiles).collect();
            let mut left = all(&set);
            let mut placed: mig::Placed = Vec::new();
            for (number, ends) in asked {
                let (profile, start) = places[number % places.len()];
                let of_driver = known.iter().find(|it| it.name == profile.name).expect("known");
                let fits = of_driver.fits(start, &placed);
                let took = take(&mut left, &part(&set, profile, start));
                prop_assert_eq!(took, fits, "{} at {} beside {:?}", profile.name, start, placed);
                if took {
                    placed.push((of_driver, start));
                }
                if ends && let Some((gone, start)) = placed.pop() {
                    let gone = profiles.iter().find(|it| it.name == gone.name).expect("known");
                    for (name, counter) in &part(&set, gone, start)[0].counters {
                        let value: i64 = counter.value.0.parse().expect("a number");
                        *left.get_mut(name).expect("it was taken") += value;
                    }
                }
                prop_assert_eq!(take(&mut left.clone(), &whole(&set)), placed.is_empty());
            }
        }
    }
}
