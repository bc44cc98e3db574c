//! GPUs that fall off the bus, links that fail, slices.

use hardware::{Gpu, Inventory, LinkKind};

use crate::standin::StandIn;
use crate::tree;

/// Four H100 on a switch, and an L4 that shares none of it.
const FIVE: &str = "[machine]\ndriver = \"550.54.15\"\n\
    [[gpu]]\nmodel = \"NVIDIA H100 80GB HBM3\"\nmemory_mib = 81559\ncount = 4\n\
    compute_capability = \"9.0\"\nnvlinks = 18\nnvswitch = true\n\
    [[gpu]]\nmodel = \"NVIDIA L4\"\nmemory_mib = 23034\nnuma = 1\n";

fn look(machine: &mut hardware::Machine) -> Inventory {
    machine.look().unwrap()
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
    // Asked twice: the second look is like the first.
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
    // GPU 3's neighbours have lost a link each; all others have theirs.
    assert_eq!(
        links().filter(|link| link.kind == LinkKind::Nvl).count(),
        32 - 2 * 4
    );
}
