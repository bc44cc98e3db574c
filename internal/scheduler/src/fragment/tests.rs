//! Placement by potential, by table and by property.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::node::MAX_GPUS;
use super::piece::PieceWorth;
use super::reserve::Prices;
use super::rollout::Rollout;
use super::scarcity::scarcity;
use super::*;

/// Prices of large places are history (they are looked at again every few placements), so what
/// compares histories leaves them out.
const NO_RESERVE: Tuning = Tuning {
    sequences: 16,
    shortest: 2,
    longest: 12,
    piece: 1.0,
    scarce: 1.0,
    reserve: 0.0,
    reserve_late: 0.0,
    reserve_from: 8,
    quantum: 10.0,
};

fn pod(cpu: u32, gpus: u8, milli: u16) -> Demand {
    Demand {
        cpu,
        mem: 1024,
        gpus,
        milli,
        models: ANY_MODEL,
    }
}

fn node(gpus: u8) -> Shape {
    Shape {
        cpu: 96_000,
        mem: 400_000,
        gpus,
        model: 0,
    }
}

fn mix_of(pods: &[(Demand, u64)]) -> Mix {
    Mix::from_counts(&pods.iter().copied().collect())
}

fn in_order(shapes: &[Shape]) -> Vec<u32> {
    (0..shapes.len() as u32).collect()
}

/// Places pods one after another, as far as they fit.
fn fill(chooser: &mut Chooser, pods: &[Demand]) -> Vec<Option<Placement>> {
    let mut out = Vec::new();
    for demand in pods {
        let place = chooser.choose(demand);
        if let Some(place) = place {
            let room = *chooser.room(place.node).expect("a node that was chosen");
            chooser.set_room(place.node, &room.after(demand, place.mask));
        }
        out.push(place);
    }
    out
}

#[test]
fn a_share_goes_beside_the_share_that_it_completes() {
    let mix = mix_of(&[(pod(1000, 1, 600), 1), (pod(1000, 1, 400), 1)]);
    let shapes = [node(2)];
    let mut chooser = Chooser::new(&mix, &shapes, &[0], Tuning::default());
    let pods = [pod(1000, 1, 600), pod(1000, 1, 400)];
    let masks: Vec<u16> = fill(&mut chooser, &pods)
        .iter()
        .map(|p| p.expect("room").mask)
        .collect();
    assert_eq!(masks[0], masks[1]);
}

#[test]
fn a_small_pod_leaves_the_node_of_eight_to_large_ones() {
    let mix = mix_of(&[(pod(8000, 8, WHOLE), 3), (pod(1000, 1, WHOLE), 7)]);
    let shapes = [node(8), node(2)];
    let mut chooser = Chooser::new(&mix, &shapes, &[0, 1], Tuning::default());
    let place = chooser.choose(&pod(1000, 1, WHOLE)).expect("room");
    assert_eq!(place.node, 1);
}

#[test]
fn a_pod_that_may_use_any_model_leaves_the_scarce_one() {
    let bound = Demand {
        models: 1 << 1,
        ..pod(1000, 1, WHOLE)
    };
    let mix = mix_of(&[(bound, 5), (pod(1000, 1, WHOLE), 5)]);
    let scarce = Shape {
        model: 1,
        ..node(4)
    };
    let shapes = [scarce, node(4), node(4), node(4)];
    let mut chooser = Chooser::new(&mix, &shapes, &in_order(&shapes), Tuning::default());
    let place = chooser.choose(&pod(1000, 1, WHOLE)).expect("room");
    assert_ne!(place.node, 0);
    assert_eq!(chooser.choose(&bound).expect("room").node, 0);
}

#[test]
fn a_pod_that_fits_nowhere_has_no_place() {
    let shapes = [node(2), node(4)];
    let mut chooser = Chooser::new(&Mix::default(), &shapes, &[0, 1], Tuning::default());
    assert_eq!(chooser.choose(&pod(1000, 8, WHOLE)), None);
    assert_eq!(chooser.choose(&pod(97_000, 1, WHOLE)), None);
}

#[test]
fn a_piece_is_worth_what_packs_into_it() {
    // Shares of 600 need a GPU each and fill it with one of 400 for nothing more.
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
    let mut room = Room::empty(&node(2));
    let shares = Rollout::new(&mix_of(&[(pod(100, 1, 500), 1)]), 8, 16, 16);
    assert_eq!(shares.idle(&room), 0.0);
    let large = Rollout::new(&mix_of(&[(pod(100, 4, WHOLE), 1)]), 8, 16, 16);
    assert_eq!(large.idle(&room), 2000.0);
    room.cpu = 50;
    assert_eq!(shares.idle(&room), 2000.0);
}

#[test]
fn only_the_shapes_that_a_class_is_bound_to_are_scarce() {
    let bound = Demand {
        models: 1 << 1,
        ..pod(1000, 1, WHOLE)
    };
    let rare = Shape {
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
        let mut prices = Prices::new(&mix, &tuning);
        let room = Room::empty(&node(8));
        (0..nodes).for_each(|_| prices.count(&room));
        // The rest of the cluster has GPUs, but no place for 8.
        (0..40).for_each(|_| prices.count(&Room::empty(&node(4))));
        prices.reprice();
        let after = room.after(&pod(1000, 1, WHOLE), 1);
        let lost = prices.lost(&room, &after);
        prices.of(lost)
    };
    assert!(price(1) > price(2), "{} {}", price(1), price(2));
    assert!(price(2) > price(30));
    assert!(price(30) > 0.0);
}

#[test]
fn the_bound_allows_for_a_piece_that_is_worth_more_than_its_size() {
    let mix = mix_of(&[(pod(1000, 1, 600), 2), (pod(1000, 1, 400), 1)]);
    let shape = node(1);
    let potential = Potential::new(&mix, &BTreeMap::from([(shape, 1)]), NO_RESERVE);
    let (empty, mut room) = (Room::empty(&shape), Room::empty(&shape));
    room.free[0] = 600;
    assert!(potential.of(0, &room) < 0.0);
    assert!(potential.of(0, &room) >= potential.least(0, &empty));
}

#[test]
fn fragmentation_is_what_a_class_cannot_use() {
    let mut room = Room::empty(&node(2));
    room.free[0] = 300;
    let half = mix_of(&[(pod(1000, 1, 500), 1)]);
    assert_eq!(fragmentation(&half, &room), 300.0);
    let none = mix_of(&[(pod(1000, 0, 0), 1)]);
    assert_eq!(fragmentation(&none, &room), 1300.0);
    let large = mix_of(&[(pod(1000, 4, WHOLE), 1)]);
    assert_eq!(fragmentation(&large, &room), 1300.0);
}

#[test]
fn a_mix_is_learnt_after_fifty_pods_and_at_each_doubling() {
    let mut learner = Learner::default();
    let due: Vec<u64> = (1..=400)
        .filter(|_| learner.arrived(&pod(1000, 1, 500)).is_some())
        .collect();
    assert_eq!(due, [50, 100, 200, 400]);
}

fn shapes() -> impl Strategy<Value = Vec<Shape>> {
    let one = (1u32..=96, 1u32..=64, 0u8..=8, 0u8..3).prop_map(|(cores, gib, gpus, model)| Shape {
        cpu: cores * 1000,
        mem: gib * 4096,
        gpus,
        model,
    });
    prop::collection::vec(one, 1..12)
}

fn demand() -> impl Strategy<Value = Demand> {
    let gpus = prop_oneof![
        Just((0u8, 0u16)),
        (1u16..1000).prop_map(|milli| (1, milli)),
        prop_oneof![Just(1u8), Just(2), Just(4), Just(8)].prop_map(|n| (n, WHOLE)),
    ];
    let models = prop_oneof![3 => Just(ANY_MODEL), 1 => 1u64..8];
    (1u32..20_000, 1u32..40_000, gpus, models).prop_map(|(cpu, mem, (gpus, milli), models)| {
        Demand {
            cpu,
            mem,
            gpus,
            milli,
            models,
        }
    })
}

fn demands(most: usize) -> impl Strategy<Value = Vec<Demand>> {
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

fn mix_from(pods: &[Demand]) -> Mix {
    let mut counts = BTreeMap::new();
    for demand in pods {
        *counts.entry(*demand).or_insert(0) += 1;
    }
    Mix::from_counts(&counts)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn a_placement_always_fits_and_a_pod_that_fits_always_has_one(
        shapes in shapes(), pods in demands(60), known in any::<bool>(),
    ) {
        let mix = if known { mix_from(&pods) } else { Mix::default() };
        let mut chooser = Chooser::new(&mix, &shapes, &in_order(&shapes), Tuning::default());
        for demand in &pods {
            let rooms: Vec<Room> =
                (0..shapes.len()).map(|n| *chooser.room(n).expect("a node")).collect();
            let Some(place) = chooser.choose(demand) else {
                prop_assert!(!rooms.iter().any(|room| room.fits(demand)));
                continue;
            };
            let room = rooms[place.node];
            prop_assert!(room.fits(demand));
            prop_assert_eq!(place.mask.count_ones(), u32::from(demand.gpus));
            for (gpu, free) in room.free.iter().enumerate().take(MAX_GPUS) {
                prop_assert!(place.mask >> gpu & 1 == 0 || *free >= demand.milli);
            }
            let after = room.after(demand, place.mask);
            prop_assert_eq!(room.idle() - after.idle(), demand.gpu_total());
            chooser.set_room(place.node, &after);
        }
    }

    #[test]
    fn nothing_known_is_best_fit(shapes in shapes(), pods in demands(60)) {
        let rank = in_order(&shapes);
        let mut chooser = Chooser::new(&Mix::default(), &shapes, &rank, Tuning::default());
        for demand in &pods {
            let left = |n: usize| {
                let room = chooser.room(n).expect("a node");
                let cpu = f64::from(room.cpu - demand.cpu) / 128_000.0;
                let gpu = f64::from(room.idle() - demand.gpu_total()) / 8000.0;
                // Cut to steps of a hundredth of a large node, as the scores are.
                ((-1000.0 * (cpu + gpu)) as f32 * 0.1).floor() as i64
            };
            let fits = |n: &usize| chooser.room(*n).is_some_and(|room| room.fits(demand));
            let best = (0..shapes.len()).filter(fits).max_by_key(|n| (left(*n), usize::MAX - n));
            let place = chooser.choose(demand);
            prop_assert_eq!(place.map(|p| p.node), best);
            if let Some(place) = place {
                let room = *chooser.room(place.node).expect("a node");
                if demand.is_share() {
                    let gpu = place.mask.trailing_zeros() as u8;
                    prop_assert_eq!(room.tightest(demand.milli), Some(gpu));
                }
                chooser.set_room(place.node, &room.after(demand, place.mask));
            }
        }
    }

    #[test]
    fn the_order_of_the_nodes_never_matters(
        shapes in shapes(), pods in demands(60), turn in 0usize..12,
    ) {
        let mix = mix_from(&pods);
        let rank = in_order(&shapes);
        let mut one = Chooser::new(&mix, &shapes, &rank, Tuning::default());
        // The same nodes with the same ranks, visited backwards from somewhere in the middle.
        let mut order: Vec<usize> = (0..shapes.len()).rev().collect();
        let turn = turn % order.len();
        order.rotate_left(turn);
        let turned: Vec<Shape> = order.iter().map(|n| shapes[*n]).collect();
        let ranks: Vec<u32> = order.iter().map(|n| rank[*n]).collect();
        let mut other = Chooser::new(&mix, &turned, &ranks, Tuning::default());
        let named = |places: Vec<Option<Placement>>, order: &[usize]| {
            let name = |p: Placement| (order[p.node], p.mask);
            places.into_iter().map(|p| p.map(name)).collect::<Vec<_>>()
        };
        let straight: Vec<usize> = (0..shapes.len()).collect();
        prop_assert_eq!(
            named(fill(&mut one, &pods), &straight),
            named(fill(&mut other, &pods), &order)
        );
    }

    #[test]
    fn kept_scores_equal_those_worked_out_anew(
        shapes in shapes(), pods in demands(40), then in demands(12),
    ) {
        let mix = mix_from(&pods);
        let rank = in_order(&shapes);
        let mut kept = Chooser::new(&mix, &shapes, &rank, NO_RESERVE);
        fill(&mut kept, &pods);
        for demand in pods.iter().chain(&then) {
            let mut anew = Chooser::new(&mix, &shapes, &rank, NO_RESERVE);
            for node in 0..shapes.len() {
                anew.set_room(node, kept.room(node).expect("a node"));
            }
            prop_assert_eq!(kept.choose(demand), anew.choose(demand));
        }
    }

    #[test]
    fn a_potential_never_falls_under_a_bound_of_before(shapes in shapes(), pods in demands(40)) {
        let mut counts = BTreeMap::new();
        for shape in &shapes {
            *counts.entry(*shape).or_insert(0) += 1;
        }
        let potential = Potential::new(&mix_from(&pods), &counts, Tuning::default());
        for shape in &shapes {
            let kind = potential.kind(shape);
            let (mut room, mut least) = (Room::empty(shape), f64::NEG_INFINITY);
            for demand in &pods {
                let bound = potential.least(kind, &room);
                least = least.max(bound);
                prop_assert!(potential.of(kind, &room) >= least - 1e-6);
                // The numbering of GPUs doesn't matter.
                let turned = room.canonical();
                prop_assert!((potential.of(kind, &room) - potential.of(kind, &turned)).abs() < 1e-6);
                if room.fits(demand) {
                    let gpu = room.tightest(demand.milli).unwrap_or(0);
                    room = room.after(demand, room.mask(demand, gpu));
                }
            }
        }
    }
}
