//! Compares the chosen GPUs with every possible set, evaluated by brute force.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::path::Path;

use hardware::choice::Quality;
use hardware::description::MachineDescription;
use hardware::{Bandwidth, GpuChooser, Inventory, LinkKind, PathGraph};
use proptest::prelude::*;

const MACHINES: [&str; 6] = [
    "hgx-h100.toml",
    "dgx-a100.toml",
    "4x-a40.toml",
    "8x-l4.toml",
    "8x-v100.toml",
    "gb200-tray.toml",
];

fn machine(name: &str) -> PathGraph {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/examples/machines");
    described(&std::fs::read_to_string(dir.join(name)).unwrap())
}

fn described(text: &str) -> PathGraph {
    let mut inventory = Inventory::default();
    let description = MachineDescription::parse(text, Path::new("machine.toml")).unwrap();
    description.apply(&mut inventory);
    PathGraph::of(&inventory)
}

/// The best round trip through the set, over all orders.
fn ring(graph: &PathGraph, set: &[usize]) -> Bandwidth {
    fn go(
        graph: &PathGraph,
        first: usize,
        at: usize,
        open: &mut Vec<usize>,
        worst: Bandwidth,
    ) -> Bandwidth {
        if open.is_empty() {
            return worst.min(graph.between(at, first));
        }
        let mut best = Bandwidth(0);
        for place in 0..open.len() {
            let next = open.remove(place);
            let so_far = worst.min(graph.between(at, next));
            best = best.max(go(graph, first, next, open, so_far));
            open.insert(place, next);
        }
        best
    }
    match set {
        [] | [_] => Bandwidth::UNLIMITED,
        [first, rest @ ..] => go(
            graph,
            *first,
            *first,
            &mut rest.to_vec(),
            Bandwidth::UNLIMITED,
        ),
    }
}

fn quality(graph: &PathGraph, set: &[usize], free: &[usize]) -> Quality {
    let gpus = graph.gpus.len();
    let left: Vec<usize> = free
        .iter()
        .copied()
        .filter(|gpu| !set.contains(gpu))
        .collect();
    let near = |gpu: usize, nic: usize| {
        let edge = graph.edge(gpu, gpus + nic)?;
        (edge.kind <= LinkKind::Pxb).then_some(edge.bandwidth)
    };
    let mut nics = 0;
    for nic in 0..graph.nics.len() {
        if set.iter().any(|gpu| near(*gpu, nic).is_some()) {
            nics += (0..gpus).filter_map(|gpu| near(gpu, nic)).max().unwrap().0;
        }
    }
    let nodes: BTreeSet<u32> = set.iter().filter_map(|gpu| graph.gpus[*gpu].numa).collect();
    let mut pairs_left = 0;
    for (at, one) in left.iter().enumerate() {
        for other in &left[at + 1..] {
            pairs_left += u64::from(graph.between(*one, *other).0);
        }
    }
    Quality {
        ring: ring(graph, set),
        nics: Bandwidth(nics),
        spread: Reverse(nodes.len() as u32),
        left: ring(graph, &left),
        pairs_left,
    }
}

/// The quality of the best set.
fn best(graph: &PathGraph, free: &[usize], must: &[usize], size: usize) -> Option<Quality> {
    let sets = (0u32..1 << graph.gpus.len()).filter(|set| set.count_ones() as usize == size);
    let sets = sets.map(|set| {
        (0..graph.gpus.len())
            .filter(|gpu| set >> gpu & 1 == 1)
            .collect()
    });
    sets.filter(|set: &Vec<usize>| {
        set.iter().all(|gpu| free.contains(gpu)) && must.iter().all(|gpu| set.contains(gpu))
    })
    .map(|set| quality(graph, &set, free))
    .max()
}

/// Chooses `size` of the `free` GPUs, and compares the result with the best set.
fn check(graph: &PathGraph, free: &BTreeSet<usize>, must: &BTreeSet<usize>, size: usize) {
    let free: Vec<usize> = free.union(must).copied().collect();
    let must: Vec<usize> = must.iter().copied().collect();
    let chosen = GpuChooser::new(graph.clone()).choose(&free, &must, size);
    match best(graph, &free, &must, size) {
        Some(best) if size > 0 => {
            assert_eq!(chosen.len(), size);
            assert!(
                must.iter().all(|gpu| chosen.contains(gpu)),
                "{chosen:?} {must:?}"
            );
            assert!(
                chosen.iter().all(|gpu| free.contains(gpu)),
                "{chosen:?} {free:?}"
            );
            let found = quality(graph, &chosen, &free);
            assert_eq!(found, best, "{chosen:?} of {free:?}");
        }
        _ => assert!(chosen.is_empty()),
    }
}

#[test]
fn on_every_described_machine_no_set_of_all_its_gpus_is_better_than_the_chosen() {
    for name in MACHINES {
        let graph = machine(name);
        let all: BTreeSet<usize> = (0..graph.gpus.len()).collect();
        for size in 1..=all.len() {
            check(&graph, &all, &BTreeSet::new(), size);
        }
    }
}

fn some() -> impl Strategy<Value = BTreeSet<usize>> {
    proptest::collection::btree_set(0usize..8, 0..=8)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn on_described_machines_no_set_is_better_than_the_chosen(
        name in prop::sample::select(MACHINES.to_vec()),
        free in some(),
        must in proptest::collection::btree_set(0usize..8, 0..3),
        size in 0usize..=8,
    ) {
        let graph = machine(name);
        let there = |set: BTreeSet<usize>| -> BTreeSet<usize> {
            set.into_iter().filter(|gpu| *gpu < graph.gpus.len()).collect()
        };
        let (free, must) = (there(free), there(must));
        check(&graph, &free, &must, size);
    }

    #[test]
    fn on_meshes_of_any_kind_no_set_is_better_than_the_chosen(
        // Few kinds of links, so that sets tie and the criteria after the ring decide.
        links in proptest::collection::vec(0u32..3, 21),
        numa in proptest::collection::vec(0u32..2, 7),
        away in proptest::collection::btree_set(0usize..7, 0..2),
        size in 2usize..=5,
    ) {
        let mut text = String::new();
        for node in numa {
            text += &format!("[[gpu]]\nmodel = \"M\"\nmemory_mib = 1\nnuma = {node}\n");
        }
        let pairs = (0..7).flat_map(|one| (one + 1..7).map(move |other| (one, other)));
        for ((one, other), links) in pairs.zip(links).filter(|(_, links)| *links > 0) {
            text += &format!("[[nvlink]]\ngpus = [{one}, {other}]\nlinks = {links}\n");
        }
        let graph = described(&text);
        let free = (0..7).filter(|gpu| !away.contains(gpu)).collect();
        check(&graph, &free, &BTreeSet::new(), size);
    }
}

fn chosen(graph: PathGraph, free: &[usize], size: usize) -> Vec<usize> {
    GpuChooser::new(graph).choose(free, &[], size)
}

#[test]
fn in_the_hybrid_mesh_pairs_have_two_links_fours_one_and_all_eight_a_ring_of_two() {
    let graph = machine("8x-v100.toml");
    let all = [0, 1, 2, 3, 4, 5, 6, 7];
    let two = chosen(graph.clone(), &all, 2);
    assert_eq!(graph.edge(two[0], two[1]).unwrap().links, 2);
    assert_eq!(ring(&graph, &all), Bandwidth(40_000));
    // The double links form one ring of eight: no four GPUs have a ring of them. Of the sets of
    // four with single links, one near all four cards is chosen.
    let four = chosen(graph.clone(), &all, 4);
    let quality = quality(&graph, &four, &all);
    assert_eq!(
        (quality.ring, quality.nics),
        (Bandwidth(20_000), Bandwidth(48_000))
    );
}

#[test]
fn a_bridge_between_two_cards_is_kept_whole_for_who_comes_later() {
    // The one GPU without its double-linked partner.
    assert_eq!(chosen(machine("4x-a40.toml"), &[0, 2, 3], 1), [0]);
    assert_eq!(chosen(machine("4x-a40.toml"), &[0, 1, 3], 1), [3]);
    assert_eq!(chosen(machine("4x-a40.toml"), &[0, 1, 3], 2), [0, 1]);
}

#[test]
fn links_to_switches_count_and_a_gpu_that_lost_some_is_left_out() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/examples/machines");
    let text = std::fs::read_to_string(dir.join("hgx-h100.toml")).unwrap();
    let worn = described(&format!(
        "{text}\n[[state]]\ngpu = 2\nnvlinks_down = [0, 1]\n"
    ));
    let all = [0, 1, 2, 3, 4, 5, 6, 7];
    assert_eq!(chosen(worn.clone(), &all, 7), [0, 1, 3, 4, 5, 6, 7]);
    assert_eq!(worn.between(0, 1).to_string(), "370.8 GB/s");
    assert_eq!(worn.between(0, 2).to_string(), "329.6 GB/s");
    // All else equal: GPUs of one socket, so that the other socket stays whole.
    assert_eq!(chosen(machine("hgx-h100.toml"), &all, 4), [0, 1, 2, 3]);
}

#[test]
fn on_more_gpus_than_there_are_tables_for_a_group_with_links_is_found() {
    let mut text = "[[gpu]]\nmodel = \"M\"\nmemory_mib = 1\ncount = 24\n".to_string();
    for (one, other) in [(9, 13), (13, 17), (9, 17), (1, 2)] {
        text += &format!("[[nvlink]]\ngpus = [{one}, {other}]\nlinks = 4\n");
    }
    let graph = described(&text);
    let all: Vec<usize> = (0..24).collect();
    assert_eq!(chosen(graph.clone(), &all, 3), [9, 13, 17]);
    assert_eq!(GpuChooser::new(graph).choose(&all, &[1], 2), [1, 2]);
}
