//! Placement by potential, by table and by property.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::memo::Memo;
use super::piece::PieceWorth;
use super::potential::Potential;
use super::reserve::Reserve;
use super::rollout::Rollout;
use super::scarcity::scarcity;
use super::*;

/// Less work than the default tuning.
const QUICK: Tuning = Tuning {
    sequences: 16,
    shortest: 2,
    longest: 12,
    piece: 1.0,
    scarce: 1.0,
    reserve: 1000.0,
    reserve_late: 8000.0,
    reserve_from: 4,
    quantum: 10.0,
};

fn pod(cpu: u32, gpus: u8, milli: u16) -> PodDemand {
    PodDemand {
        cpu,
        mem: 1024,
        gpus,
        milli,
        models: ANY_MODEL,
    }
}

fn node(gpus: u8) -> NodeShape {
    NodeShape {
        cpu: 96_000,
        mem: 400_000,
        gpus,
        model: 0,
    }
}

fn mix_of(pods: &[(PodDemand, u64)]) -> Mix {
    Mix::from_counts(&pods.iter().copied().collect())
}

/// Nodes, and a chooser that knows them.
struct Nodes {
    chooser: NodeChooser,
    sites: Vec<ChooserNode>,
}

impl Nodes {
    /// Empty nodes, their ranks in their order.
    fn new(mix: &Mix, shapes: &[NodeShape], tuning: Tuning) -> Nodes {
        let site = |(rank, shape): (usize, &NodeShape)| ChooserNode {
            shape: *shape,
            room: NodeRoom::empty(shape),
            rank: rank as u32,
        };
        Nodes::at(mix, shapes.iter().enumerate().map(site).collect(), tuning)
    }

    fn at(mix: &Mix, sites: Vec<ChooserNode>, tuning: Tuning) -> Nodes {
        let mut chooser = NodeChooser::new(tuning);
        for (at, site) in sites.iter().enumerate() {
            chooser.set(at, Some(*site));
        }
        chooser.expect(mix.clone());
        chooser.settle();
        Nodes { chooser, sites }
    }

    fn choose(&mut self, demand: &PodDemand) -> Option<usize> {
        let sites = &self.sites;
        self.chooser
            .choose(demand, |at| sites[at].room.fits(demand))
    }

    fn take(&mut self, at: usize, demand: &PodDemand) {
        let room = self.sites[at].room;
        let gpu = if demand.is_share() {
            let piece = self.chooser.piece(at, demand).expect("a GPU that has room");
            let seat = room.free.iter().position(|free| *free == piece);
            seat.expect("a GPU of the node") as u8
        } else {
            0
        };
        self.sites[at].room = room.after(demand, room.mask(demand, gpu)).canonical();
        self.chooser.set(at, Some(self.sites[at]));
    }

    /// Places pods one after another, as far as they fit.
    fn fill(&mut self, pods: &[PodDemand]) -> Vec<Option<usize>> {
        let mut out = Vec::new();
        for demand in pods {
            let at = self.choose(demand);
            if let Some(at) = at {
                self.take(at, demand);
            }
            out.push(at);
        }
        out
    }
}

#[test]
fn a_share_goes_to_the_gpu_that_it_fills() {
    let mix = mix_of(&[(pod(1000, 1, 600), 1), (pod(1000, 1, 400), 1)]);
    let mut nodes = Nodes::new(&mix, &[node(2)], Tuning::default());
    nodes.fill(&[pod(1000, 1, 600), pod(1000, 1, 400)]);
    assert_eq!(nodes.sites[0].room.gpu_slice(), [1000, 0]);
}

#[test]
fn a_small_pod_leaves_the_node_of_eight_for_large_pods() {
    let mix = mix_of(&[(pod(8000, 8, WHOLE), 3), (pod(1000, 1, WHOLE), 7)]);
    let mut nodes = Nodes::new(&mix, &[node(8), node(2)], Tuning::default());
    assert_eq!(nodes.choose(&pod(1000, 1, WHOLE)), Some(1));
}

#[test]
fn a_pod_for_any_model_leaves_the_scarce_model() {
    let bound = PodDemand {
        models: 1 << 1,
        ..pod(1000, 1, WHOLE)
    };
    let mix = mix_of(&[(bound, 5), (pod(1000, 1, WHOLE), 5)]);
    let scarce = NodeShape {
        model: 1,
        ..node(4)
    };
    let shapes = [scarce, node(4), node(4), node(4)];
    let mut nodes = Nodes::new(&mix, &shapes, Tuning::default());
    assert_ne!(nodes.choose(&pod(1000, 1, WHOLE)), Some(0));
    assert_eq!(nodes.choose(&bound), Some(0));
}

#[test]
fn only_permitted_nodes_are_chosen() {
    let small = pod(1000, 1, WHOLE);
    let mut nodes = Nodes::new(
        &mix_of(&[(small, 1)]),
        &[node(2), node(4)],
        Tuning::default(),
    );
    assert_eq!(nodes.choose(&pod(1000, 8, WHOLE)), None);
    assert_eq!(nodes.choose(&pod(97_000, 1, WHOLE)), None);
    assert_eq!(nodes.chooser.choose(&small, |at| at == 1), Some(1));
    assert_eq!(nodes.chooser.choose(&small, |_| false), None);
    // The nodes that are open to one pod do not affect the next pod.
    assert_eq!(nodes.choose(&small), Some(0));
}

#[test]
fn a_node_that_is_gone_is_not_chosen_until_it_is_back() {
    let small = pod(1000, 1, WHOLE);
    let mut nodes = Nodes::new(
        &mix_of(&[(small, 1)]),
        &[node(2), node(4)],
        Tuning::default(),
    );
    let first = nodes.choose(&small).expect("room");
    nodes.chooser.set(first, None);
    nodes.chooser.settle();
    assert_eq!(nodes.choose(&small), Some(1 - first));
    nodes.chooser.set(first, Some(nodes.sites[first]));
    nodes.chooser.settle();
    assert_eq!(nodes.choose(&small), Some(first));
}

#[test]
fn a_piece_is_worth_what_packs_into_it() {
    // A share of 600 needs a GPU of its own, and a share of 400 fits beside it at no further cost.
    let worth = PieceWorth::of(&mix_of(&[(pod(1, 1, 600), 2), (pod(1, 1, 400), 1)]));
    assert_eq!(worth.waste(1000), 0.0);
    assert_eq!(worth.waste(399), 399.0);
    assert_eq!(worth.waste(590), 590.0);
    assert_eq!(worth.waste(600), -400.0);
    // Without shares every piece is worth its size.
    let plain = PieceWorth::of(&mix_of(&[(pod(1, 2, WHOLE), 1)]));
    assert_eq!(plain.waste(310), 0.0);
}

#[test]
fn a_roll_out_of_pods_that_fit_leaves_nothing_and_of_others_everything() {
    let mut room = NodeRoom::empty(&node(2));
    let shares = Rollout::new(&mix_of(&[(pod(100, 1, 500), 1)]), 8, 16, 16);
    let idle = |roll: &Rollout, room: &NodeRoom| roll.idle(room, &mut Memo::default());
    assert_eq!(idle(&shares, &room), 0.0);
    let large = Rollout::new(&mix_of(&[(pod(100, 4, WHOLE), 1)]), 8, 16, 16);
    assert_eq!(idle(&large, &room), 2000.0);
    room.cpu = 50;
    assert_eq!(idle(&shares, &room), 2000.0);
}

#[test]
fn only_the_shapes_that_a_class_is_bound_to_are_scarce() {
    let bound = PodDemand {
        models: 1 << 1,
        ..pod(1000, 1, WHOLE)
    };
    let rare = NodeShape {
        model: 1,
        ..node(8)
    };
    let shapes = BTreeMap::from([(rare, 1), (node(8), 3)]);
    let prices = scarcity(&mix_of(&[(bound, 1), (pod(1000, 1, WHOLE), 3)]), &shapes);
    assert_eq!(prices[&rare], 1.0);
    assert_eq!(prices[&node(8)], 0.0);
}

#[test]
fn the_last_large_places_cost_more_than_the_first() {
    let tuning = Tuning::default();
    let mix = mix_of(&[(pod(8000, 8, WHOLE), 1), (pod(1000, 1, WHOLE), 300)]);
    let price = |nodes: usize| {
        let mut reserve = Reserve::new(&mix, &tuning);
        let room = NodeRoom::empty(&node(8));
        (0..nodes).for_each(|_| reserve.count(&room, 1));
        // The rest of the cluster has GPUs, but no place for 8.
        (0..40).for_each(|_| reserve.count(&NodeRoom::empty(&node(4)), 1));
        reserve.reprice();
        let after = room.after(&pod(1000, 1, WHOLE), 1);
        reserve.price(reserve.lost(&room, &after))
    };
    assert!(price(1) > price(2), "{} {}", price(1), price(2));
    assert!(price(2) > price(30));
    assert!(price(30) > 0.0);
}

#[test]
fn fragmentation_is_what_a_class_cannot_use() {
    let mut room = NodeRoom::empty(&node(2));
    room.free[0] = 300;
    let half = mix_of(&[(pod(1000, 1, 500), 1)]);
    assert_eq!(fragmentation(&half, &room), 300.0);
    let none = mix_of(&[(pod(1000, 0, 0), 1)]);
    assert_eq!(fragmentation(&none, &room), 1300.0);
    let large = mix_of(&[(pod(1000, 4, WHOLE), 1)]);
    assert_eq!(fragmentation(&large, &room), 1300.0);
}

fn shapes() -> impl Strategy<Value = Vec<NodeShape>> {
    let one =
        (1u32..=96, 1u32..=64, 0u8..=8, 0u8..3).prop_map(|(cores, gib, gpus, model)| NodeShape {
            cpu: cores * 1000,
            mem: gib * 4096,
            gpus,
            model,
        });
    prop::collection::vec(one, 1..12)
}

fn demand() -> impl Strategy<Value = PodDemand> {
    let gpus = prop_oneof![
        Just((0u8, 0u16)),
        (1u16..1000).prop_map(|milli| (1, milli)),
        prop_oneof![Just(1u8), Just(2), Just(4), Just(8)].prop_map(|n| (n, WHOLE)),
    ];
    let models = prop_oneof![3 => Just(ANY_MODEL), 1 => 1u64..8];
    (1u32..20_000, 1u32..40_000, gpus, models).prop_map(|(cpu, mem, (gpus, milli), models)| {
        PodDemand {
            cpu,
            mem,
            gpus,
            milli,
            models,
        }
    })
}

fn demands(most: usize) -> impl Strategy<Value = Vec<PodDemand>> {
    // Few classes, many pods, as real workloads are.
    (
        prop::collection::vec(demand(), 1..6),
        prop::collection::vec(0usize..6, 1..most),
    )
        .prop_map(|(classes, picks)| {
            let pick = |at: &usize| classes[at % classes.len()];
            picks.iter().map(pick).collect()
        })
}

fn mix_from(pods: &[PodDemand]) -> Mix {
    let mut counts = BTreeMap::new();
    for demand in pods {
        *counts.entry(*demand).or_insert(0) += 1;
    }
    Mix::from_counts(&counts)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn a_pod_that_fits_somewhere_always_has_a_place(
        shapes in shapes(), pods in demands(60),
    ) {
        let mut nodes = Nodes::new(&mix_from(&pods), &shapes, QUICK);
        for demand in &pods {
            let Some(at) = nodes.choose(demand) else {
                prop_assert!(!nodes.sites.iter().any(|site| site.room.fits(demand)));
                continue;
            };
            let room = nodes.sites[at].room;
            prop_assert!(room.fits(demand));
            nodes.take(at, demand);
            prop_assert_eq!(room.idle() - nodes.sites[at].room.idle(), demand.gpu_total());
        }
    }

    #[test]
    fn the_order_of_the_nodes_never_matters(
        shapes in shapes(), pods in demands(60), turn in 0usize..12,
    ) {
        let mix = mix_from(&pods);
        let mut one = Nodes::new(&mix, &shapes, QUICK);
        // The same nodes with the same ranks, visited backwards from somewhere in the middle.
        let mut order: Vec<usize> = (0..shapes.len()).rev().collect();
        let turn = turn % order.len();
        order.rotate_left(turn);
        let turned = order.iter().map(|at| one.sites[*at]).collect();
        let mut other = Nodes::at(&mix, turned, QUICK);
        let found = other.fill(&pods).into_iter().map(|at| at.map(|at| order[at]));
        prop_assert_eq!(one.fill(&pods), found.collect::<Vec<_>>());
    }

    #[test]
    fn kept_scores_never_change_a_choice(
        shapes in shapes(), pods in demands(40), then in demands(12), before in demands(12),
    ) {
        let mix = mix_from(&pods);
        let mut kept = Nodes::new(&mix_from(&before), &shapes, QUICK);
        // Another mix, and nodes of other shapes, were there once.
        kept.fill(&before);
        kept.chooser.set(0, None);
        kept.chooser.settle();
        for (at, shape) in shapes.iter().enumerate() {
            kept.sites[at].room = NodeRoom::empty(shape);
            kept.chooser.set(at, Some(kept.sites[at]));
        }
        kept.chooser.expect(mix.clone());
        kept.chooser.settle();
        kept.fill(&pods);
        // Scores kept for a pod are shared with pods of the same size that admit other models.
        let bound = |demand: &PodDemand| PodDemand { models: 0b101, ..*demand };
        let all = pods.iter().chain(&then).flat_map(|demand| [*demand, bound(demand)]);
        for demand in &all.collect::<Vec<_>>() {
            let mut anew = Nodes::at(&mix, kept.sites.clone(), QUICK);
            prop_assert_eq!(kept.choose(demand), anew.choose(demand));
            if demand.is_share() {
                for at in 0..shapes.len() {
                    let piece = kept.chooser.piece(at, demand);
                    prop_assert_eq!(piece, anew.chooser.piece(at, demand));
                }
            }
        }
    }

    #[test]
    fn the_numbering_of_gpus_does_not_matter_to_a_potential(shapes in shapes(), pods in demands(40)) {
        let mut counts = BTreeMap::new();
        for shape in &shapes {
            *counts.entry(*shape).or_insert(0) += 1;
        }
        let potential = Potential::new(&mix_from(&pods), &counts, Tuning::default());
        let mut memo = Memo::default();
        for shape in &shapes {
            let kind = potential.kind(shape);
            let mut room = NodeRoom::empty(shape);
            for demand in &pods {
                let value = potential.of(kind, &room, &mut memo);
                let turned = room.canonical();
                prop_assert!((potential.of(kind, &turned, &mut memo) - value).abs() < 1e-6);
                if room.fits(demand) {
                    let gpu = room.tightest(demand.milli).unwrap_or(0);
                    room = room.after(demand, room.mask(demand, gpu));
                }
            }
        }
    }

    #[test]
    fn a_roll_out_that_skips_pods_gives_the_same_result(
        shapes in shapes(), pods in demands(40), before in demands(40),
    ) {
        let roll = Rollout::new(&mix_from(&pods), 12, 3, 20);
        let mut memo = Memo::default();
        for shape in &shapes {
            let mut room = NodeRoom::empty(shape);
            for demand in &before {
                let idle = roll.idle(&room, &mut memo);
                prop_assert!((idle - roll.idle_by_hand(&room)).abs() < 1e-6);
                if room.fits(demand) {
                    let gpu = room.tightest(demand.milli).unwrap_or(0);
                    room = room.after(demand, room.mask(demand, gpu));
                }
            }
        }
    }
}
