//! The inventory from the driver and sysfs equals the description.

use hardware::{Inventory, Origin, matrix};
use proptest::prelude::*;

use crate::standin::{MACHINES, StandIn};
use crate::tree;

/// A described machine as detection finds it: from the driver, whose device files are numbered,
/// and which reports no use for idle GPUs.
fn as_found(mut described: Inventory) -> Inventory {
    described.origin = Origin::Nvml;
    described.os = "Linux".into();
    for gpu in &mut described.gpus {
        gpu.minor = gpu.minor.or(Some(gpu.index));
        gpu.load.memory_mib = gpu.load.memory_mib.or(Some(0));
    }
    described
}

#[test]
fn every_described_machine_is_found_as_it_is_described() {
    for machine in MACHINES {
        let standin = StandIn::of(machine);
        let described = as_found(standin.described().inventory);
        tree::make(&standin.root(), &described);
        let found = standin.machine().observe().unwrap();
        assert_eq!(found, described, "{machine}");
        assert_eq!(matrix::draw(&found), matrix::draw(&described), "{machine}");
    }
}

prop_compose! {
    fn a_state()(
        celsius in proptest::option::of(20u32..110),
        watts in proptest::option::of(50u32..700),
        used in proptest::option::of(0u64..20_000),
        percent in proptest::option::of(0u32..=100),
        errors in (0u64..9, 0u64..9),
        down in proptest::collection::btree_set(0usize..18, 0..4),
        generation in proptest::option::of(1u32..=5),
        width in proptest::option::of(prop::sample::select(vec![4u32, 8, 16])),
        fabric in proptest::option::of(prop::sample::select(vec!["none", "starting", "completed"])),
    ) -> String {
        let mut text = format!("corrected = {}\nuncorrected = {}\n", errors.0, errors.1);
        let mut say = |field: &str, value: Option<String>| {
            text.extend(value.map(|value| format!("{field} = {value}\n")));
        };
        say("celsius", celsius.map(|it| it.to_string()));
        say("watts", watts.map(|it| it.to_string()));
        say("memory_used_mib", used.map(|it| it.to_string()));
        say("utilisation", percent.map(|it| it.to_string()));
        say("pcie_generation", generation.map(|it| it.to_string()));
        say("pcie_width", width.map(|it| it.to_string()));
        say("fabric", fabric.map(|it| format!("{it:?}")));
        say("nvlinks_down", Some(format!("{down:?}").replace('{', "[").replace('}', "]")));
        text
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_gpus_do_and_suffer_is_found_so(
        machine in prop::sample::select(MACHINES.to_vec()),
        states in proptest::collection::vec((0usize..4, a_state()), 0..4),
    ) {
        let standin = StandIn::of(machine);
        let described = standin.described().inventory;
        tree::make(&standin.root(), &described);
        let mut seen = std::collections::BTreeSet::new();
        let tables: String = (states.iter())
            .filter(|(gpu, _)| seen.insert(*gpu))
            .map(|(gpu, state)| format!("[[state]]\ngpu = {gpu}\n{state}"))
            .collect();
        let mut eyes = standin.machine();
        eyes.observe().unwrap();
        // The library reads the file again while it is open.
        standin.with(&tables);
        let found = eyes.observe().unwrap();
        prop_assert_eq!(found, as_found(standin.described().inventory), "{}", tables);
    }
}
