//! GPUs that fall off the bus, links that fail, slices.

use hardware::{Gpu, Inventory, LinkKind};

use crate::standin::StandIn;
use crate::tree;

/// Four H100 on a switch, and an L4 without a link to it.
const FIVE: &str = "[machine]\ndriver = \"550.54.15\"\n\
    [[gpu]]\nmodel = \"NVIDIA H100 80GB HBM3\"\nmemory_mib = 81559\ncount = 4\n\
    compute_capability = \"9.0\"\nnvlinks = 18\nnvswitch = true\n\
    [[gpu]]\nmodel = \"NVIDIA L4\"\nmemory_mib = 23034\nnuma = 1\n";

fn look(machine: &mut hardware::MachineProbe) -> Inventory {
    machine.observe().unwrap()
}

fn five() -> StandIn {
    let standin = StandIn::saying(FIVE);
    tree::make(
        &standin.root(),
        &StandIn::of("4x-a40.toml").described().inventory,
    );
    standin
}

#[test]
fn a_gpu_that_is_lost_from_the_start_does_not_hide_the_others() {
    let standin = five();
    standin.with("[[state]]\ngpu = 2\nlost = true\n");
    let mut machine = standin.machine();
    // Two looks: the second one equals the first.
    for _ in 0..2 {
        let found = look(&mut machine);
        let [warning] = &found.warnings[..] else {
            panic!("{:?}", found.warnings)
        };
        assert!(warning.starts_with("GPU 2 is not offered"), "{warning}");
        let indices: Vec<u32> = found.gpus.iter().map(|gpu| gpu.index).collect();
        assert_eq!(indices, [0, 1, 3, 4]);
        assert!(found.gpus.iter().all(|gpu| gpu.healthy));
    }
}

#[test]
fn a_gpu_that_is_lost_later_stays_as_unhealthy_until_it_is_back() {
    let standin = five();
    let mut machine = standin.machine();
    let mut healths = || {
        let gpus = look(&mut machine).gpus;
        gpus.iter()
            .map(|gpu| (gpu.healthy, gpu.problem.is_empty()))
            .collect::<Vec<_>>()
    };
    let well = [(true, true); 5];
    assert_eq!(healths(), well);
    standin.with("[[state]]\ngpu = 3\nlost = true\n");
    let lost = healths();
    assert_eq!((lost[3], lost[2]), ((false, false), (true, true)));
    standin.with("");
    assert_eq!(healths(), well);
}

#[test]
fn a_gpu_that_the_driver_wants_reset_is_unhealthy_until_it_is_and_the_others_are_well() {
    let standin = five();
    let mut machine = standin.machine();
    let mut problem = |recovery: u32| {
        standin.with(&format!("[[state]]\ngpu = 2\nrecovery = {recovery}\n"));
        let gpus = look(&mut machine).gpus;
        let others = gpus.iter().filter(|gpu| gpu.index != 2);
        assert!(others.into_iter().all(|gpu| gpu.healthy));
        assert_eq!(gpus[2].healthy, gpus[2].problem.is_empty());
        gpus[2].problem.clone()
    };
    assert!(problem(1).contains("--gpu-reset"));
    assert!(problem(2).contains("restart of the machine"));
    assert!(problem(4).contains("has ended"));
    assert_eq!(problem(0), "");
}

#[test]
fn what_runs_on_a_gpu_cannot_go_on_where_it_is_lost_or_must_be_reset() {
    let standin = five();
    let mut machine = standin.machine();
    look(&mut machine);
    for (state, failed) in [
        ("lost = true", true),
        ("recovery = 1", true),
        ("recovery = 2", true),
        ("recovery = 3", false),
        ("recovery = 4", false),
        ("recovery = 0", false),
        ("recovery = 1\nold_driver = true", false),
    ] {
        standin.with(&format!("[[state]]\ngpu = 1\n{state}\n"));
        assert_eq!(look(&mut machine).gpus[1].failed, failed, "{state}");
        let described = standin.described().inventory;
        assert_eq!(described.gpus[1].failed, failed, "{state}");
    }
}

#[test]
fn a_card_whose_rows_cannot_be_replaced_is_unhealthy_and_one_whose_rows_wait_is_not() {
    let standin = StandIn::of("hgx-h100.toml");
    tree::make(&standin.root(), &standin.described().inventory);
    let mut machine = standin.machine();
    standin.with(
        "[[state]]\ngpu = 0\nremap_failed = true\n[[state]]\ngpu = 1\nremap_pending = true\n",
    );
    let gpus = look(&mut machine).gpus;
    assert!(!gpus[0].healthy && gpus[0].problem.contains("exchanged") && !gpus[0].failed);
    assert!(gpus[1].healthy && gpus[1].signs.rows_pending);
}

#[test]
fn gpus_of_a_driver_that_goes_away_stay_and_are_not_well_until_it_is_back() {
    let standin = five();
    let gone = FIVE.replacen("[machine]\n", "[machine]\ndriver_gone = true\n", 1);
    standin.replace(&gone);
    let kernels = standin.root().join("proc/driver/nvidia");
    std::fs::create_dir_all(&kernels).unwrap();
    std::fs::write(kernels.join("version"), "NVRM version").unwrap();
    let mut machine = standin.machine();
    let found = look(&mut machine);
    assert!(found.gpus.is_empty(), "none was ever seen");
    assert_eq!(found.warnings.len(), 1, "{:?}", found.warnings);
    standin.replace(FIVE);
    assert!(look(&mut machine).gpus.iter().all(|gpu| gpu.healthy));
    standin.replace(&gone);
    // First the open library reports the fault, then a library that cannot be opened.
    for _ in 0..2 {
        let found = look(&mut machine);
        assert_eq!((found.gpus.len(), found.warnings.len()), (5, 1));
        for gpu in &found.gpus {
            assert!(!gpu.healthy && !gpu.failed, "{}", gpu.problem);
            assert!(gpu.problem.contains("driver does not answer"));
        }
    }
    standin.replace(FIVE);
    assert!(look(&mut machine).gpus.iter().all(|gpu| gpu.healthy));
}

#[test]
fn a_gpu_that_the_driver_lists_no_more_stays_as_gone_until_it_is_back() {
    let standin = five();
    let mut machine = standin.machine();
    let before = look(&mut machine).gpus;
    standin.replace(FIVE.split("[[gpu]]\nmodel = \"NVIDIA L4\"").next().unwrap());
    let after = look(&mut machine).gpus;
    assert_eq!(after.len(), 5);
    assert_eq!(after[4].id, before[4].id);
    assert!(!after[4].healthy && after[4].failed);
    assert!(after[4].problem.contains("no longer lists it"));
    assert!(after[..4].iter().all(|gpu| gpu.healthy));
    standin.replace(FIVE);
    assert_eq!(look(&mut machine).gpus, before);
}

#[test]
fn a_gpu_that_is_off_the_bus_is_said_to_be() {
    let standin = StandIn::of("8x-l4.toml");
    let described = standin.described().inventory;
    tree::make(&standin.root(), &described);
    let mut machine = standin.machine();
    look(&mut machine);
    standin.with("[[state]]\ngpu = 5\nlost = true\n");
    let problem = |machine: &mut hardware::MachineProbe| look(machine).gpus[5].problem.clone();
    assert!(!problem(&mut machine).contains("fallen off"));
    let slot = standin.root().join("sys/bus/pci/devices");
    std::fs::remove_file(slot.join(&described.gpus[5].pci))
        .or_else(|_| std::fs::remove_dir_all(slot.join(&described.gpus[5].pci)))
        .unwrap();
    assert!(problem(&mut machine).contains("fallen off the PCIe bus"));
}

#[test]
fn a_link_that_is_down_is_not_counted_at_either_end() {
    let standin = five();
    standin.with("[[state]]\ngpu = 1\nnvlinks_down = [0]\n");
    let found = look(&mut standin.machine());
    let path = |from: &Gpu, to: &Gpu| {
        let link = from.links.iter().find(|link| link.to == to.id).unwrap();
        (link.kind, link.count)
    };
    let [first, second, third, _, l4] = &found.gpus[..] else {
        panic!("{:?}", found.gpus)
    };
    assert_eq!(path(first, second), (LinkKind::Nvs, 17));
    assert_eq!(path(second, first), (LinkKind::Nvs, 17));
    assert_eq!(path(first, third), (LinkKind::Nvs, 18));
    assert_eq!(path(first, l4), (LinkKind::Sys, 0));
}

#[test]
fn a_gpu_that_is_cut_while_one_looks_shows_its_slices() {
    let standin = five();
    let mut machine = standin.machine();
    assert_eq!(look(&mut machine).gpus[0].slices, None);
    standin.with("[[state]]\ngpu = 0\nmig = [\"3g.40gb\", \"1g.10gb\"]\n");
    let found = look(&mut machine);
    assert_eq!(
        found.gpus[0].slices,
        standin.described().inventory.gpus[0].slices
    );
    let slices = found.gpus[0].slices.as_deref().unwrap();
    let profiles: Vec<&str> = slices.iter().map(|slice| slice.profile.as_str()).collect();
    assert_eq!(profiles, ["3g.40gb", "1g.10gb"]);
    standin.with("[[state]]\ngpu = 0\nmig = []\n");
    assert_eq!(look(&mut machine).gpus[0].slices, Some(vec![]));
}

#[test]
fn a_description_that_cannot_be_read_leaves_things_as_they_were() {
    let standin = five();
    let mut machine = standin.machine();
    let before = look(&mut machine);
    standin.with("[[state]]\ngpu = 17\n");
    assert_eq!(look(&mut machine), before);
}

#[test]
fn links_to_a_gpu_that_is_lost_are_not_taken_for_links_to_a_switch() {
    let standin = StandIn::of("8x-v100.toml");
    tree::make(&standin.root(), &standin.described().inventory);
    standin.with("[[state]]\ngpu = 3\nlost = true\n");
    let found = look(&mut standin.machine());
    assert_eq!(found.gpus.len(), 7);
    let links = || found.gpus.iter().flat_map(|gpu| &gpu.links);
    assert!(links().all(|link| link.kind != LinkKind::Nvs));
    // GPU 3's neighbours have lost a link each; all others keep theirs.
    assert_eq!(
        links().filter(|link| link.kind == LinkKind::Nvl).count(),
        32 - 2 * 4
    );
}
